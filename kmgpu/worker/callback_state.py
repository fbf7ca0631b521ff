"""What callbacks remember, as JSON and named arrays: taken into checkpoints and given back, without pickle.

Keras's callbacks have no methods for it. So a callback of the user's may have ``state_dict()``, which returns numbers,
texts and arrays in dicts and lists, and ``load_state_dict(state)``. Of any other, the plain attributes that are not
what they were when the callback was made, or after its ``on_train_begin``, are what it remembers.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu import records

PREFIX = "callbacks"
_OWN = ("params", "_model", "model", "validation_data")  # set by training itself
# What Keras's own callbacks (and those that inherit from them) keep of one process: it must be made anew. min_delta
# changes its sign when monitor_op is set (keras/src/callbacks/monitor_callback.py, 3.15.1).
_OF_A_PROCESS = {
    "MonitorCallback": ("monitor_op", "min_delta"),
    "CSVLogger": ("csv_file", "writer", "append", "append_header"),
    "TensorBoard": ("_is_tracing", "_profiler_started", "_should_trace", "_previous_epoch_iterations"),
}
_CONTAINERS: dict[type, str] = {list: "list", tuple: "tuple", set: "set", deque: "deque"}
_MADE: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set}
_SCALARS = (bool, int, float, str)


class NotPlain(Exception):
    """A value that JSON and arrays cannot hold."""


class Memories:
    """What the callbacks of a run remember; in process 0."""

    def __init__(self, callbacks: Sequence[Any]):
        self._named = dict(_names(callbacks))
        self._made = {name: _prints(callback) for name, callback in self._named.items()}
        self._begun: dict[str, dict[str, str]] = {}

    def begin(self) -> None:
        """Note what is there after ``on_train_begin``."""
        self._begun = {name: _prints(callback) for name, callback in self._named.items()}

    def take(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return what each callback remembers, as JSON, and the arrays that are named in it."""
        found: dict[str, Any] = {}
        arrays: dict[str, np.ndarray] = {}
        for name, callback in self._named.items():
            if _says_itself(callback):
                found[name] = {"state": _encode(callback.state_dict(), f"{PREFIX}/{name}", arrays)}
                continue
            now, made, begun = _prints(callback), self._made[name], self._begun.get(name, {})
            changed = [key for key, value in now.items() if not made.get(key) == begun.get(key) == value]
            values = {key: _encode(vars(callback)[key], f"{PREFIX}/{name}/{key}", arrays) for key in changed}
            found[name] = {"attributes": values}
        return found, arrays

    def give(self, found: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[str]:
        """Let the callbacks remember; return the names of those of which nothing is known."""
        for name, callback in self._named.items():
            record = found.get(name)
            if record is None:
                continue
            if "state" in record:
                callback.load_state_dict(_decode(record["state"], arrays))
            else:
                vars(callback).update({key: _decode(value, arrays) for key, value in record["attributes"].items()})
        return [name.rpartition("-")[0] for name in self._named if name not in found]

    def notes(self) -> list[str]:
        """Return a line on each of the user's callbacks that keeps what a checkpoint does not hold."""
        notes = []
        for callback in self._named.values():
            if _says_itself(callback) or type(callback).__module__.startswith("keras."):
                continue
            left = sorted(f"{key} ({type(value).__name__})" for key, value in _left_out(callback))
            if left:
                notes.append(
                    f"checkpoints do not hold {', '.join(left)} of the callback {type(callback).__name__}, which "
                    "begins with it anew when a run is resumed; its state_dict and load_state_dict can say what to keep"
                )
        return notes


def _names(callbacks: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield a name for each callback: its class and a number among those of the same class."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        seen[kind] = seen.get(kind, -1) + 1
        yield f"{kind}-{seen[kind]}", callback


def _says_itself(callback: Any) -> bool:
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def _attributes(callback: Any) -> dict[str, Any]:
    ancestors = [each.__name__ for each in type(callback).__mro__ if each.__module__.startswith("keras.")]
    left = {*_OWN, *(name for ancestor in ancestors for name in _OF_A_PROCESS.get(ancestor, ()))}
    return {name: value for name, value in vars(callback).items() if name not in left}


def _prints(callback: Any) -> dict[str, str]:
    """Return what the plain attributes are, each as a text that is another one when the value is."""
    found: dict[str, str] = {}
    for key, value in _attributes(callback).items():
        arrays: dict[str, np.ndarray] = {}
        try:
            text = records.dumps(_encode(value, "", arrays))
        except NotPlain:
            continue
        digests = [hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for array in arrays.values()]
        found[key] = json.dumps([text, digests])
    return found


def _left_out(callback: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are neither plain nor something that a recipe makes again: functions, files, layers."""
    for key, value in _attributes(callback).items():
        kind = type(value)
        again = callable(value) or hasattr(value, "fileno") or hasattr(value, "__fspath__")
        if again or kind.__module__.startswith(("keras.", "logging")) or kind.__name__ == "module":
            continue
        try:
            _encode(value, "", {})
        except NotPlain:
            yield key, value


def _encode(value: Any, name: str, arrays: dict[str, np.ndarray], depth: int = 0) -> Any:
    """Return JSON for a plain value; arrays are put under names that begin with ``name``. Raises NotPlain."""
    kind = type(value)
    if value is None or kind in _SCALARS:
        return value
    if kind is np.ndarray and value.dtype.kind in "biufV" and value.dtype.names is None:
        arrays[name] = np.array(value)
        return {"array": name}
    if isinstance(value, np.generic) and value.dtype.kind in "biufU":
        return {"scalar": value.item(), "dtype": value.dtype.str}
    if depth > 30:
        raise NotPlain(f"{name} is too deep")
    if kind is dict:
        if not all(key is None or type(key) in _SCALARS for key in value):
            raise NotPlain(name)
        pairs = value.items()
        return {"dict": [[key, _encode(item, f"{name}/{key}", arrays, depth + 1)] for key, item in pairs]}
    if kind in _CONTAINERS:
        items = sorted(value, key=repr) if kind is set else value
        found = [_encode(item, f"{name}/{number}", arrays, depth + 1) for number, item in enumerate(items)]
        return {_CONTAINERS[kind]: found, **({"maxlen": value.maxlen} if kind is deque else {})}
    raise NotPlain(f"{name} is a {kind.__name__}")


def _decode(record: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return the value that ``_encode`` wrote."""
    if not isinstance(record, dict):
        return record
    if "array" in record:
        return np.array(arrays[record["array"]])
    if "scalar" in record:
        return np.dtype(record["dtype"]).type(record["scalar"])
    if "dict" in record:
        return {key: _decode(item, arrays) for key, item in record["dict"]}
    if "deque" in record:
        return deque([_decode(item, arrays) for item in record["deque"]], record["maxlen"])
    ((kind, items),) = record.items()
    return _MADE[kind]([_decode(item, arrays) for item in items])
