"""What a trained model gives: its scores, and its outputs for every row, once and in order."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu import checkpoints
from kmgpu.backends.adapter import Adapter
from kmgpu.data.feed import Feed
from kmgpu.data.loader import Batch
from kmgpu.data.trees import leaves
from kmgpu.errors import UsageError
from kmgpu.job import FORMAT, Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir, write_json
from kmgpu.worker import checkpoint, loop, weights

EXPORTS = {"savedmodel": "tf_saved_model", "onnx": "onnx"}  # names of Keras's
FLOATS = "float32"  # what files hold instead of bfloat16, which is no type of NumPy's


def evaluate(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, rows: Feed, record: Callable) -> None:
    """Write evaluation.json: loss and metrics over all rows, each counted once."""
    (first,) = rows.first()
    adapter.tools.check_targets(recipe.model, first, job.options["data"])
    started = _prepare(job, adapter, recipe, first, {"evaluated": rows.sizes}, record)
    metrics, count = loop.evaluate(adapter, rows)
    if adapter.process == 0:
        found = {"format": FORMAT, "data": job.options["data"], "rows": count, "batch_size": rows.batch_size, **started}
        write_json(rundir.path / "evaluation.json", {**found, "metrics": metrics})
    record("end", initial_weights=started["weights"], rows=count)


def predict(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, rows: Feed, record: Callable) -> None:
    """Write the outputs for all rows into the file that the job names: .npy for one output, .npz by name for any."""
    parts: dict[str, list[np.ndarray]] = {}
    output = Path(job.options["output"])
    (first,) = rows.first()
    first = _named_inputs(first, recipe.model)
    started = _prepare(job, adapter, recipe, first, {"predicted": rows.sizes}, record)
    for (batch,) in rows.epoch(0):
        named = _named_outputs(adapter.predict(adapter.put(_named_inputs(batch, recipe.model))), adapter.model)
        if output.suffix == ".npy" and len(named) > 1:
            raise UsageError(
                f"the model has {len(named)} outputs ({', '.join(named)}) and {output.name} holds one array; "
                "give an .npz as --output"
            )
        for name, values in named.items():
            parts.setdefault(name, []).append(_join(adapter, values, batch.size))
    if adapter.process == 0:
        _write(output, {name: np.concatenate(values) for name, values in parts.items()})
    record("end", initial_weights=started["weights"], rows=rows.rows)


def export(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, rows: Feed, record: Callable) -> None:
    """Write the model in a format of Keras's exporters, whole or not at all; replaces what is there."""
    (first,) = rows.first()
    started = _prepare(job, adapter, recipe, first, {}, record)
    adapter.variables()  # JAX gives its state back to Keras's variables
    output = Path(job.options["output"])
    neighbour = output.with_name(f".{os.getpid()}.{output.name}")  # with the ending that Keras asks for
    try:
        if job.options["format"] == "weights":
            recipe.model.save_weights(neighbour)
        elif job.options["format"] == "keras":  # of a checkpoint: with all that it holds of the optimizer
            path = Path(str(job.initial_weights))
            checkpoint.give(adapter, checkpoint.read(checkpoints.read(path)), False, path)
            adapter.variables()
            recipe.model.save(neighbour)
            weights.make_portable(neighbour)
        else:
            recipe.model.export(neighbour, format=EXPORTS[job.options["format"]], verbose=False)
        _remove(output)
        neighbour.replace(output)
    finally:
        _remove(neighbour)
    record("end", initial_weights=started["weights"])


def read_input(path: str) -> Any:
    """Return the data of an .npy (one input, as a memory map) or a function that gives those of an .npz, by name.

    Names that ``np.savez`` gives by itself (arr_0, arr_1) are a list of inputs; one array of any name is one input.
    """
    if path.endswith(".npy"):
        return np.load(path, mmap_mode="r", allow_pickle=False), None

    def load() -> Any:
        with np.load(path, allow_pickle=False) as arrays:
            x = {name: arrays[name] for name in arrays.files}
        if len(x) == 1:
            return next(iter(x.values())), None
        return ([x[f"arr_{number}"] for number in range(len(x))] if "arr_0" in x else x), None

    return load


def _prepare(
    job: Job, adapter: Adapter, recipe: Recipe, first: Batch, sizes: dict[str, Any], record: Callable
) -> dict[str, Any]:
    """Build the model with the job's weights, tell of it, and return what evaluation.json says of that."""
    options = {"loss_gather": job.loss_gather, "track": job.track, "sizes": (), "evaluated": (), **sizes}
    notes = adapter.prepare(recipe, [first], options)
    hash = weights.place(adapter, job)
    facts = adapter.facts()
    record("facts", **facts, weights=hash)
    for note in notes:
        record("note", text=note)
    told = ("framework", "keras", "devices", "precision")
    return {"weights": hash, "backend": job.backend, "strategy": job.strategy, **{name: facts[name] for name in told}}


def _named_inputs(batch: Batch, model: Any) -> Batch:
    """Return a batch whose inputs by name are in the order of a model that takes a list of inputs."""
    names = [getattr(tensor, "name", None) for tensor in getattr(model, "inputs", None) or ()]
    wants_a_list = isinstance(getattr(model, "_inputs_struct", None), (list, tuple))
    if not (isinstance(batch.x, dict) and wants_a_list and set(names) == set(batch.x)):
        return batch
    return dataclasses.replace(batch, x=[batch.x[name] for name in names])


def _named_outputs(outputs: Any, model: Any) -> dict[str, np.ndarray]:
    names = list(getattr(model, "output_names", None) or ())
    if isinstance(outputs, (list, tuple)) and len(names) == len(outputs):
        outputs = dict(zip(names, outputs, strict=True))
    flat = dict(leaves(outputs, "output"))
    plain = isinstance(outputs, dict) and len(flat) == len(outputs)
    return dict(zip(outputs, flat.values(), strict=True)) if plain else flat


def _join(adapter: Adapter, values: Any, size: int) -> np.ndarray:
    """Return the rows of all processes, in order."""
    if values.dtype.kind not in "biufc":
        values = values.astype(FLOATS)
    if adapter.processes == 1 or len(values) == size:
        return values
    most = -(-size // adapter.processes)
    padded = np.concatenate([values, np.zeros((most - len(values), *values.shape[1:]), values.dtype)])
    counts = adapter.gather(np.array(len(values)))
    return np.concatenate([rows[:count] for rows, count in zip(adapter.gather(padded), counts, strict=True)])


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, arrays: dict[str, Any]) -> None:
    """Write a whole file or none: to a neighbour first, then renamed."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with neighbour.open("wb") as file:
            if path.suffix == ".npy":
                np.save(file, next(iter(arrays.values())))
            else:
                np.savez(file, **arrays)
        neighbour.replace(path)
    finally:
        neighbour.unlink(missing_ok=True)
