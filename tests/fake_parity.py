"""Records as a parity cell leaves them, of two steps and a small model: for tests of everything that reads them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.rundir import EventWriter, RunDir, write_json

WEIGHTS = ("dense/kernel", "dense/bias", "out/kernel")
STATES = ("bn/moving_mean", "bn/moving_variance")
ROUNDING = 2e-7
STEPS = 2


def record(error: float = ROUNDING) -> dict[str, Any]:
    """One batch compared: everything off by ``error``."""
    return {
        "loss": 2.3, "loss_error": error, "gradient_norm": 1.5, "metrics": {"accuracy": 0.0},
        "gradients": dict.fromkeys(WEIGHTS, error), "states": dict.fromkeys(STATES, error),
    }  # fmt: skip


def reference(noise: float = ROUNDING, steps: int = STEPS, **fields: Any) -> dict[str, Any]:
    """parity.json of the reference cell."""
    return {
        "names": {"trainable": list(WEIGHTS), "other": list(STATES), "slots": []}, "dtypes": {},
        "losses": [2.3] * steps, "floor": [record(noise) for _ in range(steps)],
        "floor_trajectory": trajectory([noise] * steps), **fields,
    }  # fmt: skip


def cell(error: float = ROUNDING, steps: int = STEPS, dtypes: dict[str, str] | None = None) -> dict[str, Any]:
    """parity.json of another cell."""
    step = {"variants": [record(error) for _ in range(3)], "update": dict.fromkeys((*WEIGHTS, "sgd/iteration"), 0.0)}
    return {
        "names": {}, "dtypes": dtypes or {}, "steps": [copy.deepcopy(step) for _ in range(steps)],
        "trajectory": trajectory([error] * steps),
    }  # fmt: skip


def trajectory(errors: Sequence[float]) -> dict[str, Any]:
    """Free running: losses and all weights off by an error after each step."""
    return {
        "losses": list(errors), "weights": list(errors), "first_weights": dict.fromkeys(WEIGHTS, errors[0]),
        "final_weights": dict.fromkeys(WEIGHTS, errors[-1]),
    }  # fmt: skip


def off(record: dict[str, Any], step: int, kind: str, name: str, errors: Sequence[float]) -> dict[str, Any]:
    """Set one quantity of one step: on each of the batches (one error stands for all three), or of the update."""
    if kind == "update":
        record["steps"][step]["update"][name] = errors[0]
        return record
    variants = record["steps"][step]["variants"]
    for variant, error in zip(variants, list(errors) * (3 if len(errors) == 1 else 1), strict=True):
        if kind == "loss":
            variant["loss_error"] = error
        else:
            variant[kind][name] = error
    return record


def write(rundir: RunDir, parity: dict[str, Any] | None, *, reason: str | None = None, **facts: Any) -> None:
    """Write what a cell leaves: events, parity.json, outcome.json; a cell with a ``reason`` has failed."""
    events = EventWriter(rundir.events_file)
    if reason is None:
        told = {"framework": "torch 2.13.0", "devices": ["cpu:0"], "precision": {"dtype": "float32"}, "notes": []}
        events.write("facts", **{**told, "batch_size": 64, "initial_weights": "3f" * 32, **facts})
        rundir.initial_weights_file.write_bytes(b"weights")
        (rundir.path / "parity").mkdir(exist_ok=True)
        (rundir.path / "parity" / "state-0000.safetensors").write_bytes(b"state")
        if parity is not None:
            write_json(rundir.path / "parity.json", parity)
        events.write("end")
    events.close()
    outcome = {"format": 1, "status": "failed" if reason else "ok", "reason": reason, **records.fold(rundir.events())}
    write_json(rundir.outcome_file, outcome)


def directory(
    path: Path, cells: dict[str, Any], reference: dict[str, Any], home: str = "torch-ddp-1", **asked: Any
) -> Path:
    """Write a whole parity directory; ``cells`` are parity.json by the names of run directories, a text is a reason."""
    import fake_runs

    named = [dict(zip(("backend", "strategy", "devices"), name.split("-"), strict=True)) for name in cells]
    study = {
        "format": 1, "kind": "parity", "recipe": "/somewhere/digits_cnn.py", "recipe_name": "digits_cnn",
        "backends": list(dict.fromkeys(name.split("-")[0] for name in [home, *cells])), "devices": [1, 2],
        "settings": {}, "batch_size": None, "seed": 0, "device_kind": "cpu", "steps": len(reference["losses"]),
        "dtype": "float32", "keep_random": False, "reference": home, "cells": [
            {"name": name, **each, "devices": int(each["devices"])} for name, each in zip(cells, named, strict=True)
        ],
    }  # fmt: skip
    path.mkdir(parents=True)
    write_json(path / "study.json", {**study, **asked})
    for name, parity in {home: reference, **cells}.items():
        backend, _, devices = name.split("-")
        rundir = RunDir.create(path / name, fake_runs.job(backend, int(devices), mode="parity"))
        if isinstance(parity, str):
            write(rundir, None, reason=parity)
        else:
            write(rundir, parity, **parity.pop("facts", {}))
    return path
