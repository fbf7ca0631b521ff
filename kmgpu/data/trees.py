"""Trees of arrays: one array, or several in dicts, lists and tuples, as a Keras model's inputs and outputs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.errors import UsageError


def as_arrays(value: Any, name: str) -> Any:
    """Return ``value`` with each leaf a NumPy array; memory maps stay memory maps, and None stays None.

    A list or tuple is several arrays where it holds an array or a dict at any depth (``[images, ages]``); of numbers
    alone it is one array (``[[0, 1], [2, 3]]``).
    """
    if value is None or isinstance(value, np.memmap):
        return value
    if isinstance(value, dict):
        return {key: as_arrays(item, f"{name}[{key!r}]") for key, item in value.items()}
    if is_several(value):
        items = [as_arrays(item, f"{name}[{number}]") for number, item in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    try:
        return np.asarray(value)
    except Exception as error:  # ragged lists, tensors that cannot leave their device, ...
        kind = type(value).__name__
        raise UsageError(f"{name}, of type {kind}, cannot be read as an array of numbers ({error})") from error


def is_array(value: Any) -> bool:
    """Whether it is an array of NumPy or of another library (which converts itself), and not a number."""
    return hasattr(value, "__array__") and not isinstance(value, np.generic)


def is_several(value: Any) -> bool:
    """Whether it stands for several arrays."""
    if isinstance(value, (list, tuple)):
        return any(is_array(item) or is_several(item) for item in value)
    return isinstance(value, dict)


def leaves(tree: Any, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a tree, each with its name, such as ``x['age']``."""
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from leaves(item, f"{name}[{key!r}]")
    elif isinstance(tree, (list, tuple)):
        for number, item in enumerate(tree):
            yield from leaves(item, f"{name}[{number}]")
    elif tree is not None:
        yield name, tree


def transform(function: Callable[..., Any], *trees: Any) -> Any:
    """Return a tree of ``function`` of the leaves at the same place of all trees, which have one form."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: transform(function, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, (list, tuple)):
        items = [transform(function, *items) for items in zip(*trees, strict=True)]
        return tuple(items) if isinstance(first, tuple) else items
    return None if first is None else function(*trees)


def stack(trees: Sequence[Any]) -> Any:
    """Return a tree of arrays with one row for each of ``trees``, which have one form."""
    return transform(lambda *rows: np.stack(rows), *trees)


def rows_of(tree: Any) -> int:
    """Return the number of rows of the arrays in a tree."""
    return len(next(leaves(tree, ""))[1])


def encode(tree: Any, function: Callable[[Any], Any]) -> Any:
    """Return a tree of ``function`` of its leaves, which JSON holds, as JSON keeps it: with tuples, numbers as keys."""
    if isinstance(tree, dict):
        return {"dict": [[key, encode(item, function)] for key, item in tree.items()]}
    if isinstance(tree, (list, tuple)):
        return {type(tree).__name__: [encode(item, function) for item in tree]}
    return None if tree is None else {"leaf": function(tree)}


def decode(record: Any, function: Callable[[Any], Any]) -> Any:
    """Return the tree that ``encode`` wrote, of ``function`` of its leaves."""
    if record is None:
        return None
    ((kind, items),) = record.items()
    if kind == "leaf":
        return function(items)
    if kind == "dict":
        return {key: decode(item, function) for key, item in items}
    read = [decode(item, function) for item in items]
    return tuple(read) if kind == "tuple" else read
