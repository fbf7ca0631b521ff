"""A recipe looked at before a run: what it is made of, and two steps of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from kmgpu.backends.adapter import Adapter
from kmgpu.data.feed import Feed
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir, write_json
from kmgpu.worker import loop, weights
from kmgpu.worker.sizes import shares

STEPS = 2


def run(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, feed: Feed, record: Callable) -> None:
    """Write check.json: parameters, operations, bytes and layers of the model, notes, and what two steps gave."""
    updates = feed.sample(STEPS)
    first = updates[0]
    adapter.tools.check_targets(recipe.model, first[0], "train")
    options = {"loss_gather": job.loss_gather, "track": job.track, "sizes": (first[0].update_size,), "evaluated": ()}
    notes = adapter.prepare(recipe, first, options)
    adapter.tools.check_labels(recipe.model, feed.labels(), "train")
    weights.initialise(adapter, job, rundir)
    facts = adapter.facts()  # before the first step: on JAX it takes over what the model holds
    operations = adapter.operations([adapter.put(batch) for batch in first])
    losses, seconds = [], []
    for update in updates:
        began = time.perf_counter()
        losses += adapter.losses([adapter.train_step([adapter.put(batch) for batch in update])])
        seconds.append(time.perf_counter() - began)
    record("facts", **facts)
    peak = loop.peak_bytes(adapter)
    if adapter.process == 0:
        found: dict[str, Any] = {
            "framework": facts["framework"], "parameters": facts["parameters"],
            "trained_parameters": sum(math.prod(v.shape) for v in recipe.model.trainable_variables),
            "layers": len(list(recipe.model._flatten_layers(include_self=False))),
            "batch_size": first[0].update_size, "per_device_batch": shares(first[0].update_size, adapter.devices),
            "rows": feed.rows, "operations": operations, "losses": losses, "seconds": seconds, "peak_bytes": peak,
            "layer_notes": adapter.tools.layer_notes(recipe.model), "notes": notes,
            "bytes": adapter.tools.step_bytes(recipe.model, first[0]),
        }  # fmt: skip
        write_json(rundir.path / "check.json", found)
    record("end")
