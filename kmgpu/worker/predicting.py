"""Prediction: the outputs for every row of a source, once and in order, on any number of devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kmgpu.backends.adapter import Adapter
from kmgpu.data.loader import batches
from kmgpu.data.source import Source
from kmgpu.data.trees import leaves
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir
from kmgpu.worker import weights
from kmgpu.worker.sizes import batch_sizes


def predict(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, rows: Source, record: Callable) -> None:
    """Write predictions.npz: one array for each output of the model ("output", or "output/<name>"), a row per row."""
    size = job.batch_size or recipe.batch_size
    part = (adapter.process, adapter.processes)
    parts: dict[str, list[np.ndarray]] = {}
    for batch in batches(rows, batch_size=size, seed=0, epoch=0, shuffle=False, part=part):
        if not parts:
            options = {
                "loss_gather": job.loss_gather, "track": job.track, "sizes": (),
                "evaluated": batch_sizes(len(rows), size),
            }  # fmt: skip
            for note in adapter.prepare(recipe, [batch], options):
                record("note", text=note)
            initial = weights.initialise(adapter, job, rundir)
        for name, values in leaves(adapter.predict(adapter.put(batch)), "output"):
            parts.setdefault(name, []).append(_join(adapter, values, batch.size))
    if adapter.process == 0:
        whole: dict[str, Any] = {name: np.concatenate(values) for name, values in parts.items()}
        np.savez(rundir.path / "predictions.npz", **whole)
    record("end", initial_weights=initial, rows=len(rows))


def _join(adapter: Adapter, values: Any, size: int) -> np.ndarray:
    """Return the rows of all processes, in order."""
    if adapter.processes == 1 or len(values) == size:
        return values
    most = -(-size // adapter.processes)
    padded = np.concatenate([values, np.zeros((most - len(values), *values.shape[1:]), values.dtype)])
    counts = adapter.gather(np.array(len(values)))
    return np.concatenate([rows[:count] for rows, count in zip(adapter.gather(padded), counts, strict=True)])
