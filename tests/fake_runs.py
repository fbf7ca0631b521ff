"""Run directories as a real run leaves them, made in a millisecond: for tests of everything that reads them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.job import Job
from kmgpu.rundir import EventWriter, RunDir, write_json

FRAMEWORKS = {"torch": "torch 2.13.0", "tensorflow": "tensorflow 2.21.0", "jax": "jax 0.10.2"}
STRATEGIES = {"torch": "ddp", "tensorflow": "mirrored", "jax": "data_parallel"}
STEP_SECONDS = {"torch": 0.012, "tensorflow": 0.020, "jax": 0.008}
COMPILED = {"torch": False, "tensorflow": "tf.function", "jax": "jit"}
WEIGHTS, ORDER = "3f2a91c0" * 8, "77be01aa" * 8


def job(backend: str = "torch", devices: int = 1, **fields: Any) -> Job:
    fields = {"recipe": "/somewhere/digits_cnn.py", "device_kind": "cpu", "batch_size": 64, **fields}
    return Job(backend=backend, strategy=STRATEGIES[backend], devices=devices, **fields)


def write(
    path: Path, of: Job, *, status: str = "ok", reason: str | None = None, start: dict | None = None, **end: Any
) -> RunDir:
    """Write a whole run directory; ``start`` and ``end`` replace fields of these events."""
    rundir = RunDir.create(path, of)
    environment = {"cores": 2, "cpu": "Test CPU", "gpus": [], "gpu_driver": None}
    write_json(rundir.environment_file, environment)
    launched = time.time()
    if status == "ok":
        rundir.initial_weights_file.write_bytes(b"weights")
        _write_events(rundir, of, start or {}, end)
    outcome = {"format": 1, "status": status, "reason": reason, "started": launched, "ended": launched + 9.0}
    events = rundir.events()
    for event in events:
        event["time"] = launched + 4.2
    write_json(rundir.outcome_file, {**outcome, "launched_time": launched, **records.fold(events)})
    return rundir


def _write_events(rundir: RunDir, of: Job, start: dict, end: dict) -> None:
    events = EventWriter(rundir.events_file)
    batch = of.batch_size or 64
    steps, epochs = -(-1437 // batch), of.epochs or 3
    facts = {
        "backend": of.backend, "framework": FRAMEWORKS[of.backend], "keras": "3.15.1", "strategy": of.strategy,
        "track": of.track, "device_kind": of.device_kind, "devices": [f"cpu:{index}" for index in range(of.devices)],
        "processes": of.devices if of.backend == "torch" else 1, "batch_size": batch,
        "per_device_batch": [batch // of.devices] * of.devices, "rows": 1437, "steps_per_epoch": steps,
        "epochs": epochs, "learning_rate": 1e-3, "precision": {"dtype": "float32"}, "threads_per_process": 2,
        "parameters": 5450, "initial_weights": WEIGHTS, "compiled": COMPILED[of.backend],
    }  # fmt: skip
    events.write("start", **{**facts, **start})
    each = STEP_SECONDS[of.backend] / of.devices**0.6 * batch / 64 * (2 if of.track == "keras-fit" else 1)
    for epoch in range(epochs):
        common = {"epoch": epoch, "step": epoch * steps, "losses": [1.0 / (epoch + 1)] * steps}
        seconds = each * steps * (1 + 0.02 * epoch)
        events.write("window", steps=steps, samples=1437, seconds=seconds, compiling=epoch == 0, **common)
        metrics = {"loss": 1.0 / (epoch + 1), "accuracy": 0.9, "val_loss": 1.2 / (epoch + 1), "val_accuracy": 0.9717}
        events.write("epoch", epoch=epoch, seconds=1.0, metrics=metrics, evaluation_seconds=0.1)
    hashes = {"initial_weights": WEIGHTS, "sample_order": ORDER, "final_weights": ["ab" * 32] * of.devices}
    memory = {"peak_bytes": [500 * 2**20] * facts["processes"], "threads": [3] * facts["processes"]}
    events.write("end", **{**hashes, **memory, **end})
    events.close()
