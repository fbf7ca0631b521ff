"""Study directories as a real study leaves them, with noise as a real machine has it: for tests of reports.

A run's speed is its cell's, times what its whole block has in common (the machine's mood), times its process's own
luck, times that of each window. All draws come from one seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fake_runs
import numpy as np

from kmgpu import grid, records
from kmgpu.job import Job
from kmgpu.rundir import EventWriter, RunDir, write_json

PROVED = {"ok": True, "sentence": "Same mathematics proved: by a fake.", "unproved": [], "parted": False}
BEGAN = 1_760_000_000.0
ROWS, VALIDATION_ROWS = 1437, 360


@dataclass
class Fake:
    """A study to be written; ``cell`` and ``start`` are by (backend, devices), ``fail`` by the name of a run."""

    backends: Sequence[str] = ("torch", "tensorflow", "jax")
    devices: Sequence[int] = (1, 2)
    repeats: int = 5
    seed: int = 0
    scaling: str = "strong"
    batch_size: int = 64
    epochs: int = 3
    block_noise: float = 0.05
    process_noise: float = 0.03
    window_noise: float = 0.05
    slower: Mapping[tuple[str, int], float] = field(default_factory=dict)  # a factor on the time of a step
    seconds: Mapping[str, float] = field(default_factory=lambda: fake_runs.STEP_SECONDS)  # of a step on one device
    gain: float = 0.6  # exponent of the speed over devices
    waiting: float = 0.004  # part of the time
    start: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    end: Mapping[tuple[str, int], Mapping[str, Any]] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    fail: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[tuple[str, int], float] = field(default_factory=dict)  # a factor on the losses
    proof: Mapping[str, Any] | None = field(default_factory=lambda: PROVED)
    tracks: Sequence[str] = ("same-math",)

    def write(self, path: Path) -> Path:
        """Write the directory and return its path."""
        draws = np.random.default_rng(self.seed)
        cells = grid.grid(
            self.backends, self.devices, repeats=self.repeats, scaling=self.scaling, batch_size=self.batch_size,
            tracks=self.tracks,
        )  # fmt: skip
        path.mkdir(parents=True)
        write_json(path / "study.json", {
            "format": 1, "started": BEGAN, "recipe": "/somewhere/digits_cnn.py", "backends": list(self.backends),
            "devices": list(self.devices), "scaling": self.scaling, "repeats": self.repeats, "settings": {},
            "batch_size": self.batch_size, "epochs": self.epochs, "seed": 0, "precision": "float32",
            "track": self.tracks[0], "parity": self.proof is not None, "price": len(self.tracks) > 1,
            "runs": [cell.name for cell in cells],
        })  # fmt: skip
        if self.proof is not None:
            write_json(path / "proof.json", {"format": 1, **self.proof})
        moods = np.exp(draws.normal(size=self.repeats) * self.block_noise)
        clock = BEGAN + 10
        for cell in cells:
            luck = float(moods[cell.repeat] * np.exp(draws.normal() * self.process_noise))
            clock = self._run(path / cell.name, cell, luck, draws, clock) + 1.5
        return path

    def _run(self, path: Path, cell: Any, luck: float, draws: Any, clock: float) -> float:
        of = Job(**{
            **vars(fake_runs.job(cell.backend, cell.devices)), "batch_size": cell.batch_size, "epochs": self.epochs,
            "track": cell.track, **self.job,
        })  # fmt: skip
        rundir = RunDir.create(path, of)
        write_json(rundir.environment_file, {
            "time": clock, "kmgpu": "0.1.0", "python": "3.11.7", "os": "Test Linux", "cpu": "Test CPU", "cores": 2,
            "memory_bytes": 24 * 2**30, "load_average": [0.2, 0.3, 0.3], "gpus": [], "gpu_driver": None,
            "variables": {}, **self.environment,
        })  # fmt: skip
        reason = self.fail.get(path.name)
        ended = clock + 2.0
        if reason is None:
            rundir.initial_weights_file.write_bytes(b"weights")
            ended = self._events(rundir, of, cell, luck, draws, clock)
        outcome = {"format": 1, "status": "ok" if reason is None else "failed", "reason": reason}
        outcome |= {"launched_time": clock, "ended": ended, **records.fold(rundir.events())}
        write_json(rundir.outcome_file, outcome)
        return ended

    def _events(self, rundir: RunDir, of: Job, cell: Any, luck: float, draws: Any, clock: float) -> float:
        events, key = EventWriter(rundir.events_file), (cell.backend, cell.devices)
        batch = of.batch_size or 64
        steps, processes = -(-ROWS // batch), of.devices if of.backend == "torch" else 1
        now = clock + 4.0 + float(draws.uniform(0, 0.2))
        events.write("start", time=now, **{
            "backend": of.backend, "framework": fake_runs.FRAMEWORKS[of.backend], "keras": "3.15.1",
            "strategy": of.strategy, "track": of.track, "device_kind": of.device_kind, "seed": of.seed,
            "devices": [f"{of.device_kind}:{index}" for index in range(of.devices)], "processes": processes,
            "batch_size": batch, "per_device_batch": [batch // of.devices] * of.devices, "rows": ROWS,
            "validation_rows": VALIDATION_ROWS, "steps_per_epoch": steps, "epochs": self.epochs,
            "learning_rate": 1e-3, "precision": {"dtype": "float32", "tf32": False},
            "numerics": {"product_bits": 24, "convolution_bits": 24, "loss_scaling": False},
            "deterministic": False, "threads": 2 // processes, "parameters": 5450,
            "initial_weights": fake_runs.WEIGHTS, "compiled": fake_runs.COMPILED[of.backend],
            "accumulate": 1, "batch_norm": "global", "gradient_reduction": "mean", **self.start.get(key, {}),
        })  # fmt: skip
        each = self.seconds[of.backend] / of.devices**self.gain * batch / 64 * luck * self.slower.get(key, 1.0)
        monitored, done = [], 0
        for epoch in range(self.epochs):
            first, began = done, now
            while done < first + steps:
                compiling = done in (0, steps - 1)
                size = 1 if compiling else min(10, first + steps - done - (epoch == 0))
                seconds = each * size * float(np.exp(draws.normal() * self.window_noise))
                seconds += 0.8 if compiling else 0.0
                losses = [self._loss(done + step, steps, key, draws) for step in range(size)]
                now += seconds
                events.write(
                    "window", time=now, epoch=epoch, step=done, steps=size, samples=min(size * batch, ROWS),
                    seconds=seconds, waiting_seconds=seconds * self.waiting, losses=losses, compiling=compiling,
                )  # fmt: skip
                done += size
                monitored.append((now, processes, min(100.0 * of.devices, 195.0)))
            loss = self._loss(done, steps, key, draws)
            events.write("epoch", time=now + 0.1, **{
                "epoch": epoch, "seconds": now - began, "waiting_seconds": 0.0, "evaluation_seconds": 0.1,
                "callback_seconds": 0.01, "learning_rate": 1e-3, "metrics": {
                    "loss": loss, "accuracy": 1 - loss / 3, "val_loss": 1.1 * loss, "val_accuracy": 1 - loss / 2.9,
                },
            })  # fmt: skip
            now += 0.11
        hashes = {"initial_weights": fake_runs.WEIGHTS, "sample_order": fake_runs.ORDER}
        if self.scaling == "weak":
            hashes["sample_order"] = f"{of.devices}" * 64
        events.write("end", time=now + 0.2, **{
            **hashes, "final_weights": ["ab" * 32] * of.devices, "peak_bytes": [500 * 2**20] * processes,
            "threads": [3] * processes, **self.end.get(key, {}),
        })  # fmt: skip
        events.close()
        monitor = EventWriter(rundir.monitor_file)
        for when, count, percent in monitored:
            told = [
                {"process": number, "pid": 10 + number, "cpu_percent": percent / count, "rss_bytes": 480 * 2**20}
                for number in range(count)
            ]
            monitor.write("monitor", time=when, load_average=1.0, processes=told, devices=[])
        monitor.close()
        return now + 0.8

    def _loss(self, step: int, steps: int, key: tuple[str, int], draws: Any) -> float:
        smooth = 2.3 * math.exp(-step / (1.5 * steps)) + 0.05 + 0.03 * math.sin(step)
        return smooth * (1 + 1e-7 * step * float(draws.normal())) * self.losses.get(key, 1.0)
