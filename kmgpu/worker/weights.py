"""Weights: where they start, whether all replicas agree, and how they are saved."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from kmgpu.backends.adapter import Adapter
from kmgpu.errors import RunFailed, UsageError
from kmgpu.job import Job
from kmgpu.rundir import RunDir
from kmgpu.worker import checkpoint
from kmgpu.worker.checkpoint import digest


def initialise(adapter: Adapter, job: Job, rundir: RunDir) -> str:
    """Give the model its initial weights, and write them for others to start from; return their hash."""
    digested = place(adapter, job)
    named = adapter.variables()
    if adapter.process == 0:
        write(rundir.initial_weights_file, named)
    return digested


def place(adapter: Adapter, job: Job) -> str:
    """Give the model its weights, of the job's file or as process 0 drew them, the same bits everywhere; their hash.

    The file may be a checkpoint, which is a directory.
    """
    named = adapter.variables()
    if job.initial_weights is not None and Path(job.initial_weights).is_dir():
        adapter.assign(checkpoint.weights_of(Path(job.initial_weights), adapter.model))
    elif job.initial_weights is not None:
        adapter.assign(read(Path(job.initial_weights), named))
    elif adapter.processes > 1:
        adapter.assign([adapter.gather(values[0])[0] for _, values in named])
    check_replicas(adapter)
    return digest(values[0] for _, values in adapter.variables())


def write(path: Path, named: Sequence[tuple[str, list[np.ndarray]]], numbered: bool = True) -> None:
    """Write one tensor for each variable, under "<index in model order>/<path>", or its plain and unique path."""
    tensors: dict[str, np.ndarray] = {}
    for index, (name, values) in enumerate(named):
        key = f"{index:04d}/{name}" if numbered else name if name not in tensors else f"{name}_{index}"
        tensors[key] = np.require(values[0], requirements="C")  # which leaves a scalar one
    save_file(tensors, path, metadata={"order": json.dumps(list(tensors))})  # safetensors sorts by name


def read(path: Path, named: Sequence[tuple[str, list[np.ndarray]]]) -> list[np.ndarray]:
    """Read what ``write`` wrote, in model order; refuses weights of another model in one sentence."""
    try:
        with safe_open(path, framework="numpy") as file:
            order = (file.metadata() or {}).get("order")
            keys = json.loads(order) if order else sorted(file.keys())
            tensors = {key: file.get_tensor(key) for key in keys}
    except Exception as error:  # safetensors raises classes of its own
        raise UsageError(
            f"cannot read the initial weights {path} ({error}); give initial_weights.safetensors or "
            "weights.safetensors of a run"
        ) from error
    if len(keys) != len(named):
        raise UsageError(
            f"{path} holds {len(keys)} tensors, the model has {len(named)} weights; use weights of this model"
        )
    for key, (name, values) in zip(keys, named, strict=True):
        if key.rpartition("/")[2] != name.rpartition("/")[2]:
            raise UsageError(
                f"{path}: {key} stands where the model has {name}; use weights of this recipe with these settings"
            )
        if tensors[key].shape != values[0].shape:
            raise UsageError(
                f"{path}: {key} has shape {tensors[key].shape}, the model's {name} has {values[0].shape}; "
                "use weights of this recipe with these settings"
            )
    return [tensors[key] for key in keys]


def digests(adapter: Adapter) -> list[str]:
    """Return the hash of all weights on each device, in order of the devices."""
    named = adapter.variables()
    local = [digest(values[replica] for _, values in named) for replica in range(len(named[0][1]))]
    joined = adapter.gather(np.frombuffer("".join(local).encode(), np.uint8))
    return [bytes(row).decode()[start : start + 64] for row in joined for start in range(0, len(row), 64)]


def check_replicas(adapter: Adapter) -> None:
    """Raise RunFailed with the first variable, in model order, that is not the same bits on all devices."""
    if adapter.devices == 1:
        return
    named = adapter.variables()
    words = [[int(digest([value])[:15], 16) for value in values] for _, values in named]
    joined = np.concatenate(adapter.gather(np.array(words, np.int64).T))  # (devices, variables)
    differing = np.flatnonzero((joined != joined[0]).any(axis=0))
    if differing.size:
        index = int(differing[0])
        device = int(np.flatnonzero(joined[:, index] != joined[0, index])[0])
        raise RunFailed(
            f"the weights of the devices differ: {named[index][0]} (number {index} of {len(named)}) "
            f"is not on device {device} what it is on device 0"
        )


def save(adapter: Adapter, model: Any, rundir: RunDir, record: Callable) -> None:
    """Write weights.safetensors and model.keras (process 0)."""
    named = adapter.variables()
    if adapter.process != 0:
        return
    write(rundir.weights_file, named, numbered=False)
    try:
        model.save(rundir.model_file)
        make_portable(rundir.model_file)
    except Exception as error:  # whatever a class of the user's own raises when it is serialised
        rundir.model_file.unlink(missing_ok=True)
        record("note", text=f"model.keras was not written ({type(error).__name__}: {error}); weights.safetensors was")


def make_portable(path: Path) -> None:
    """Rewrite what ties a .keras file to the backend that saved it.

    Keras 3.15 on torch stores its own optimizer classes, and a model trained on JAX stores "compile with XLA".
    """
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    compiled = config.get("compile_config") or {}
    if compiled.get("jit_compile") is True:
        compiled["jit_compile"] = "auto"
    _plain_optimizer(compiled.get("optimizer"))
    parts["config.json"] = json.dumps(config).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    path.write_bytes(whole.getvalue())


def _plain_optimizer(record: Any) -> None:
    if not isinstance(record, dict):
        return
    if str(record.get("module", "")).startswith("keras.src.backend."):
        record["module"], record["registered_name"] = "keras.optimizers", None
    for value in record.get("config", {}).values():
        _plain_optimizer(value)
