"""Data held once per host: one process makes the arrays, all of them map the same files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu.data import streams, trees
from kmgpu.data.source import Arrays, is_arrays, is_function
from kmgpu.errors import BY_NAME, KmgpuError, RunFailed


def share(load: Any, directory: Path | None, process: int, what: str = "data") -> Any:
    """Return the data that the function ``load`` gives, held once for all processes of a host.

    Process 0 calls ``load``, writes its arrays into ``directory`` (private, local, one for each data set) and last a
    manifest, by rename; all processes then map the files, and get a tuple (x, y, sample_weight). Every process calls
    ``load`` itself where it gives a random-access object, or memory maps (held once already), or numbers that .npy
    files cannot hold. Where it gives a stream, the others get an empty one: process 0 reads it for them. Nothing is
    written where ``directory`` is None: one process. What is no function is returned as it is. An error of process 0 is
    raised in all of them.
    """
    if not is_function(load):
        return load
    if directory is None:
        data = load()
        return streams.of_function(load, data, what) or data
    manifest = Path(directory) / "manifest.json"
    if process == 0:
        data, tree = _make(load, manifest, what)
        return data if tree is None else _read(tree, manifest.parent)
    while not manifest.exists():  # whoever started the processes ends this one if process 0 dies
        time.sleep(0.02)
    record = json.loads(manifest.read_text(encoding="utf-8"))
    if "error" in record:
        # Of the same class, so that the run ends with one exit code whichever process is heard first.
        name = "" if record["error"] in BY_NAME else record["error"] + ": "
        message = f"process 0 failed while it loaded the data: {name}{record['message']}"
        raise BY_NAME.get(record["error"], RunFailed)(message)
    if record["stream"]:
        return streams.EMPTY
    return load() if record["tree"] is None else _read(record["tree"], manifest.parent)


def _make(load: Any, manifest: Path, what: str) -> tuple[Any, Any]:
    """Load and write the data; return it and the tree of its files (None where every process is to load)."""
    manifest.parent.mkdir(parents=True, exist_ok=True)
    assert not manifest.exists(), f"{manifest.parent} already holds data"
    try:
        data = load()
        stream = streams.of_function(load, data, what)
        tree = None if stream else _write(data, manifest.parent, what)
    except Exception as error:
        kind = "OutOfMemory" if isinstance(error, MemoryError) else type(error).__name__
        _publish(manifest, {"error": kind, "message": str(error)})
        raise
    _publish(manifest, {"tree": tree, "stream": stream is not None})
    return stream or data, tree


def _write(data: Any, directory: Path, what: str) -> Any:
    """Write each array into a file; return the tree of their names, encoded."""
    if not is_arrays(data):
        return None
    fields = Arrays.of(data, what).fields
    arrays = [array for _, array in trees.leaves(fields, what)]
    if any(isinstance(array, np.memmap) or array.dtype.kind == "V" for array in arrays):
        return None
    count = iter(range(len(arrays)))

    def save(array: np.ndarray) -> str:
        name = f"{next(count)}.npy"
        try:
            np.save(directory / name, array, allow_pickle=False)
        except OSError as error:
            raise KmgpuError(f"{what}: no room for {array.nbytes:,} bytes in {directory} ({error})") from error
        return name

    return trees.encode(fields, save)


def _read(tree: Any, directory: Path) -> Any:
    """Return the data whose arrays' files a tree names, as memory maps."""
    return trees.decode(tree, lambda name: np.load(directory / name, mmap_mode="r", allow_pickle=False))


def _publish(manifest: Path, record: dict[str, Any]) -> None:
    neighbour = manifest.with_suffix(".part")
    neighbour.write_text(json.dumps(record), encoding="utf-8")
    neighbour.replace(manifest)
