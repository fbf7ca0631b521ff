"""Keras's own fit on a recipe, timed: what its users have without kmgpu. Nothing of Keras is replaced.

An epoch is one window of time: within it fit does not wait for the devices, and to make it wait would measure another
thing. The first epoch compiles, and is not counted.
"""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import Any

from kmgpu import backends
from kmgpu.backends.adapter import Place
from kmgpu.data import source, trees
from kmgpu.errors import UsageError
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import EventWriter, RunDir
from kmgpu.worker import weights
from kmgpu.worker.session import call_recipe
from kmgpu.worker.sizes import shares

LEAST_EPOCHS = 3  # one that compiles, and two to time


def fit(rundir: RunDir) -> None:
    """Run a job of mode "fit", alone in its process."""
    job = rundir.job()
    row = backends.find(job.backend, job.strategy)
    place = Place(
        device_kind=job.device_kind, devices=job.devices, device_ids=job.device_ids, process=0, processes=1,
        threads=max(1, len(os.sched_getaffinity(0))), deterministic=job.deterministic, rendezvous="",
    )  # fmt: skip
    keras, scope, framework = importlib.import_module(row.stock).stock(place)
    events = EventWriter(rundir.events_file)
    keras.utils.set_random_seed(job.seed)
    with scope:
        recipe = call_recipe(job)
        x, y, sample_weight = _arrays(recipe)
        model = recipe.model
        if not model.built:
            model(trees.transform(lambda array: array[:1], x))
        initial = _place(model, job, keras)
    batch_size = job.batch_size or recipe.batch_size
    rows = len(next(array for _, array in trees.leaves(x, "x")))
    epochs, rows = _length(job, recipe, rows, batch_size)
    steps = -(-rows // batch_size)
    facts = {
        "backend": job.backend, "framework": framework, "keras": keras.__version__, "strategy": "Keras fit",
        "track": job.track, "randomness": "native", "seed": job.seed, "device_kind": job.device_kind,
        "devices": [f"{job.device_kind}:{index}" for index in range(job.devices)], "processes": 1,
        "batch_size": batch_size, "per_device_batch": shares(batch_size, job.devices), "rows": rows,
        "validation_rows": 0, "steps_per_epoch": steps, "epochs": epochs, "initial_weights": initial,
        "parameters": model.count_params(), "threads_per_process": place.threads,
        "learning_rate": float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)),
        "precision": {"dtype": keras.config.dtype_policy().name}, "compiled": bool(model.jit_compile) and "jit",
    }  # fmt: skip
    events.write("start", **facts, **recipe.policies)
    began = [0.0]

    def ended(epoch: int, logs: dict[str, Any]) -> None:
        metrics = {name: float(value) for name, value in logs.items()}  # which waits for the devices
        seconds = time.perf_counter() - began[0]
        events.write(
            "window", epoch=epoch, step=epoch * steps, steps=steps, samples=rows, seconds=seconds, losses=[],
            compiling=epoch == 0,
        )
        events.write("epoch", epoch=epoch, seconds=seconds, evaluation_seconds=0.0, metrics=metrics)

    timer = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: began.__setitem__(0, time.perf_counter()), on_epoch_end=ended
    )
    x, y, sample_weight = trees.transform(lambda array: array[:rows], (x, y, sample_weight))
    model.fit(
        x, y, sample_weight=sample_weight, batch_size=batch_size, epochs=epochs, shuffle=recipe.shuffle,
        class_weight=recipe.class_weight, callbacks=[timer], verbose=0,
    )  # fmt: skip
    final = weights.digest(keras.ops.convert_to_numpy(variable) for variable in model.weights)
    peak = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line).split()[1])
    events.write(
        "end", initial_weights=initial, sample_order=None, final_weights=[final], peak_bytes=[peak * 1024], threads=[0]
    )
    events.close()


def _arrays(recipe: Recipe) -> tuple[Any, Any, Any]:
    """Return the training data; raises UsageError for what fit cannot do with them."""
    if recipe.accumulate > 1:
        raise UsageError(f"the recipe accumulates {recipe.accumulate} micro-batches, which Keras's fit does not")
    if recipe.gradient_reduction != "mean" or recipe.batch_norm != "global":
        raise UsageError("the recipe asks for gradients or batch statistics that Keras's fit does not know")
    data = recipe.train() if source.is_function(recipe.train) else recipe.train
    if not source.is_arrays(data):
        raise UsageError(f"the recipe's data are a {type(data).__name__}, and Keras's fit is timed with arrays")
    x, y, sample_weight = source.Arrays.of(data, "train").fields
    return x, y, sample_weight


def _place(model: Any, job: Job, keras: Any) -> str:
    """Give the model the job's initial weights, or leave those it has drawn; return their hash."""
    named = [(variable.path, [keras.ops.convert_to_numpy(variable)]) for variable in model.weights]
    if job.initial_weights is not None:
        values = weights.read(Path(job.initial_weights), named)
        for variable, value in zip(model.weights, values, strict=True):
            variable.assign(value)
        return weights.digest(values)
    return weights.digest(values[0] for _, values in named)


def _length(job: Job, recipe: Recipe, rows: int, batch_size: int) -> tuple[int, int]:
    """Return how many epochs over how many rows are as long as the job wants it, and long enough to be timed."""
    steps = -(-rows // batch_size)
    if job.max_steps is None:
        return max(LEAST_EPOCHS, job.epochs or recipe.epochs), rows
    if job.max_steps >= LEAST_EPOCHS * steps:
        return job.max_steps // steps, rows
    return LEAST_EPOCHS, min(rows, max(1, job.max_steps // LEAST_EPOCHS) * batch_size)
