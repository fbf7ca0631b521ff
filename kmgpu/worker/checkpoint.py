"""The state of a run as named tensors: taken from an adapter, written, read back and given to any adapter.

Names do not depend on the backend: a kind, the index in Keras's order, and the variable's path, for people to read.
What a framework keeps beside Keras's variables is under "random" and is used on the same backend alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from kmgpu import checkpoints, records
from kmgpu.backends.adapter import Adapter, State
from kmgpu.checkpoints import MANIFEST, TENSORS, Checkpoint
from kmgpu.data.order import OrderHash
from kmgpu.errors import UsageError
from kmgpu.worker.progress import Mean, Progress

Tensors = dict[str, np.ndarray]
MODEL, SLOTS, METRICS, RANDOM = "model", "optimizer", "metrics", "random"


def take(adapter: Adapter) -> Tensors:
    """Return copies of everything that the next step starts from. All processes.

    model/...: weights, moving statistics, layer state and seeds, in the order of ``model.variables``. optimizer/...:
    slots, iterations, learning rate, loss scale, averages of weights. metrics/...: (parts, ...), which add up.
    random/...: (processes, ...).
    """
    state, model = adapter.state(), adapter.model
    values = {id(variable): value for variable, value in zip(model.trainable_variables, state.trainable, strict=True)}
    values |= {id(variable): value for variable, value in zip(model.non_trainable_variables, state.other, strict=True)}
    tensors = _named(MODEL, model.variables, [values[id(variable)] for variable in model.variables])
    tensors |= _named(SLOTS, model.optimizer.variables, state.slots)
    tensors |= _named(METRICS, model.metrics_variables, adapter.metric_parts())
    own = adapter.random_state()
    return tensors | {f"{RANDOM}/{name}": adapter.gather(value) for name, value in own.items()}


def give(adapter: Adapter, tensors: Tensors, same_framework: bool, where: Path) -> None:
    """Set everything that the next step starts from. All processes. Raises UsageError for tensors of another model."""
    model = adapter.model
    values = _matching(tensors, MODEL, model.variables, where)
    by_id = {id(variable): value for variable, value in zip(model.variables, values, strict=True)}
    adapter.load_state(
        State(
            [by_id[id(variable)] for variable in model.trainable_variables],
            [by_id[id(variable)] for variable in model.non_trainable_variables],
            _matching(tensors, SLOTS, model.optimizer.variables, where),
        )
    )
    adapter.load_metric_parts(_matching(tensors, METRICS, model.metrics_variables, where, parts=True))
    random = {name.partition("/")[2]: value for name, value in tensors.items() if name.startswith(f"{RANDOM}/")}
    if same_framework and all(len(value) == adapter.processes for value in random.values()):
        adapter.load_random_state({name: value[adapter.process] for name, value in random.items()})


def weights_of(path: Path, model: Any) -> list[np.ndarray]:
    """Return the weights that a checkpoint holds, in the order of ``model.weights``; raises UsageError."""
    values = _matching(read(checkpoints.read(path)), MODEL, model.variables, path)
    by_id = {id(variable): value for variable, value in zip(model.variables, values, strict=True)}
    return [by_id[id(variable)] for variable in model.weights]


def _named(kind: str, variables: Sequence[Any], values: Sequence[np.ndarray]) -> Tensors:
    pairs = enumerate(zip(variables, values, strict=True))
    return {f"{kind}/{index:04d}/{variable.path}": value for index, (variable, value) in pairs}


def _matching(tensors: Tensors, kind: str, variables: Sequence[Any], where: Path, parts: bool = False) -> list[Any]:
    """Return the tensors of a kind in order; each must have the last name and the shape of its variable.

    Keras numbers layers as it makes them, so that the names before the last one may differ.
    """
    found = [(name, value) for name, value in tensors.items() if name.startswith(f"{kind}/")]
    if len(found) != len(variables):
        raise UsageError(
            f"{where} has {len(found)} tensors of the {kind}, this {kind} has {len(variables)} variables; "
            "resume with the recipe and the versions that it was trained with"
        )
    for (name, value), variable in zip(found, variables, strict=True):
        shape, path = value.shape[1:] if parts else value.shape, variable.path
        if name.rpartition("/")[2] != path.rpartition("/")[2] or shape != tuple(variable.shape):
            raise UsageError(
                f"{where}: {name} of shape {shape} stands where the {kind} has {path} of shape {tuple(variable.shape)}"
                "; resume with the recipe and the versions that it was trained with"
            )
    return [value for _, value in found]


def position(progress: Progress, adapter: Adapter) -> dict[str, Any]:
    """Return where training stands, as JSON. All processes."""
    lanes = adapter.gather(progress.order.lanes)
    last = adapter.gather(progress.last_update(adapter.process).lanes)
    return {
        "epoch": progress.epoch, "step": progress.step, "updates": progress.updates, "samples": progress.samples,
        "loss_total": float(progress.loss.total), "loss_rows": progress.loss.rows, "finite": progress.finite,
        "sample_order": OrderHash.join(lanes), "last_update": OrderHash.join(last),
    }  # fmt: skip


def progress_at(at: dict[str, Any], process: int) -> Progress:
    """Return the progress that ``position`` described; process 0 holds the order of what was consumed before."""
    words = at["sample_order"]
    lanes = np.array([int(words[:16], 16), int(words[16:], 16)], np.uint64) if process == 0 else None
    return Progress(
        at["epoch"], at["step"], at["updates"], at["samples"], Mean(at["loss_total"], at["loss_rows"]),
        OrderHash(lanes), at["finite"],
    )  # fmt: skip


def write(run: Path, tensors: Tensors, manifest: dict[str, Any]) -> dict[str, Any]:
    """Write a whole checkpoint or none, and return its name and size. ``manifest`` says all but what follows from it.

    Raises OSError, for example if the disk is full.
    """
    called = checkpoints.name(manifest["position"]["updates"])
    with checkpoints.building(run, called) as place:
        flat = {name: _storable(value) for name, value in tensors.items()}
        save_file(flat, place / TENSORS)
        size = (place / TENSORS).stat().st_size
        whole = {
            "format": checkpoints.FORMAT, **manifest,
            "files": {TENSORS: {"bytes": size, "sha256": checkpoints.file_digest(place / TENSORS)}},
            "tensors": {
                name: {"dtype": value.dtype.name, "shape": list(value.shape), "sha256": digest([flat[name]])}
                for name, value in tensors.items()
            },
        }  # fmt: skip
        text = records.dumps({"sha256": checkpoints.digest(whole), **whole}, indent=1)
        (place / MANIFEST).write_text(text + "\n", encoding="utf-8")
    return {"checkpoint": called, "bytes": size}


def read(checkpoint: Checkpoint) -> Tensors:
    """Return the tensors of a checkpoint, in their order; raises UsageError for one that is not what was written."""
    tensors: Tensors = {}
    try:
        with safe_open(checkpoint.path / TENSORS, framework="numpy") as file:
            for name, said in checkpoint.manifest["tensors"].items():
                stored = file.get_tensor(name)
                if digest([stored]) != said["sha256"]:
                    raise UsageError(f"{checkpoint.path} is damaged: {name} is not what was written")
                tensors[name] = stored.view(np.dtype(said["dtype"])).reshape(said["shape"])
    except UsageError:
        raise
    except Exception as error:  # safetensors raises classes of its own
        raise UsageError(f"{checkpoint.path} is damaged: {TENSORS} cannot be read ({error})") from error
    return tensors


def digest(values: Iterable[np.ndarray]) -> str:
    """Return one hash of arrays: their dtypes, shapes and bytes, in order."""
    state = hashlib.sha256()
    for value in values:
        state.update(f"{value.dtype.str}{value.shape}".encode())
        state.update(np.ascontiguousarray(value).tobytes())
    return state.hexdigest()


def _storable(value: np.ndarray) -> np.ndarray:
    """Return an array as safetensors takes it from NumPy, which knows no bfloat16 and no float8: their bits then."""
    value = np.asarray(value, order="C")
    return value if value.dtype.kind in "fiub" else value.view(np.dtype(f"u{value.dtype.itemsize}"))
