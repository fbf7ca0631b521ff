"""Sources: what a recipe gives as data, as rows by index.

Data is a tuple ``(x, y)`` or ``(x, y, sample_weight)``, or x alone (for prediction, or a model that needs no y), or a
random-access object. x, y and sample_weight are each one array, or several in a dict, list or tuple, nested as the
model's inputs and outputs are; ``trees.as_arrays`` says which lists are one array and which are several.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, Protocol

import numpy as np

from kmgpu.data import trees
from kmgpu.errors import UsageError

FIELDS = ("x", "y", "sample_weight")
_EXPECTED = "a tuple (x, y) or (x, y, sample_weight) of arrays, or an object with __len__ and rows by index"


class Source(Protocol):
    """Rows by index."""

    def __len__(self) -> int: ...

    def take(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        """Return x, y, sample_weight as trees of arrays of ``len(indices)`` rows; y and sample_weight may be None."""


def as_source(data: Any, what: str, pool: Executor | None = None) -> Source:
    """Return the rows of ``data``, which is no stream; ``what`` is its name in errors: "train" or "validation".

    The rows of a random-access object are read by the threads of ``pool``, if there is one. Raises UsageError.
    """
    if is_arrays(data):
        return Arrays.of(data, what)
    if is_function(data) or isinstance(data, (str, bytes)) or not hasattr(data, "__getitem__"):
        kind = "a function" if is_function(data) else f"of type {type(data).__name__}"  # share() calls functions
        raise UsageError(f"{what} is {kind}, which is no data; give {_EXPECTED}, or a stream of batches")
    return Rows(data, what, pool)


class Arrays:
    """Rows of arrays in memory or of memory maps."""

    @classmethod
    def of(cls, data: Any, what: str) -> Arrays:
        """Return the rows of a tuple (x, y) or (x, y, sample_weight), or of x alone."""
        if isinstance(data, list) and trees.is_several(data):
            raise UsageError(f"{what} is a list, and which of it is y cannot be known; give {_EXPECTED}")
        fields = data if isinstance(data, tuple) else (data, None)
        if not 2 <= len(fields) <= 3:
            raise UsageError(f"{what} is a tuple of {len(fields)}; give {_EXPECTED}")
        x, y, sample_weight = (*fields, None)[:3]
        return cls(x, y, sample_weight, what)

    def __init__(self, x: Any, y: Any, sample_weight: Any, what: str):
        given = zip(FIELDS, (x, y, sample_weight), strict=True)
        self.fields = tuple(trees.as_arrays(field, f"{what}: {name}") for name, field in given)
        if not list(trees.leaves(self.fields[0], "x")):
            raise UsageError(f"{what}: x holds no array; give {_EXPECTED}")
        check_rows(self.fields, what)

    def __len__(self) -> int:
        return trees.rows_of(self.fields[0])

    def take(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        x, y, sample_weight = trees.transform(lambda array: plain(array[indices]), self.fields)
        return x, y, sample_weight


class Rows:
    """Rows of a random-access object: ``len(data)``, and ``data[i]`` is ``(x, y)`` or ``(x, y, sample_weight)``.

    No row is read before it is taken, so that each is read once, and what reading it raises comes as it is, with a note
    that names the row.
    """

    def __init__(self, data: Any, what: str, pool: Executor | None = None):
        try:
            self._length = len(data)
        except TypeError as error:
            raise UsageError(f"{what}: the {type(data).__name__} has no length ({error}); give {_EXPECTED}") from None
        if self._length == 0:
            raise UsageError(f"{what}: the {type(data).__name__} has no rows; at least one is needed")
        self._data, self._what = data, what
        self._map = map if pool is None else pool.map

    def __len__(self) -> int:
        return self._length

    def take(self, indices: np.ndarray) -> tuple[Any, Any, Any]:
        rows = list(self._map(self._row, indices.tolist()))
        forms = [_form(row) for row in rows]
        for index, form in zip(indices, forms, strict=True):
            if form != forms[0]:
                raise UsageError(
                    f"{self._what}: row {index} is {form} and row {indices[0]} is {forms[0]}; all rows must be alike"
                )
        x, y, sample_weight = trees.stack(rows)
        check_rows((x, y, sample_weight), self._what)
        return x, y, sample_weight

    def _row(self, index: int) -> tuple[Any, ...]:
        """Return x, y, sample_weight of one row; a row that is no tuple is x alone."""
        try:
            row = self._data[index]
        except Exception as error:
            error.add_note(f"row {index} of {self._what}")
            raise
        fields = row if isinstance(row, tuple) else (row, None)
        if isinstance(row, list) or not 2 <= len(fields) <= 3:
            came = f"a {type(row).__name__} of {len(row)}"
            raise UsageError(f"{self._what}: row {index} is {came}; it must be a tuple (x, y) or (x, y, sample_weight)")
        named = zip(FIELDS, (*fields, None)[:3], strict=True)
        return tuple(trees.as_arrays(field, f"{self._what}: row {index}: {name}") for name, field in named)


def is_function(data: Any) -> bool:
    """Whether data is given as a function of no arguments (or a class) that returns it."""
    return callable(data) and (isinstance(data, type) or not hasattr(data, "__getitem__"))


def is_arrays(data: Any) -> bool:
    """Whether data is arrays or a tree of them, rather than an object with rows by index."""
    return isinstance(data, (tuple, list, dict)) or trees.is_array(data)


def check_rows(fields: tuple[Any, ...], what: str) -> None:
    """Raise UsageError unless all arrays hold numbers, and one row for each sample."""
    named = [pair for name, field in zip(FIELDS, fields, strict=True) for pair in trees.leaves(field, name)]
    first_name, first = named[0]
    for name, array in named:
        if array.dtype.kind in "OSUMmc":
            raise UsageError(f"{what}: {name} has dtype {array.dtype}; it must hold real numbers, rows of one shape")
        if array.ndim == 0:
            raise UsageError(f"{what}: {name} is the single number {array}; it must be an array with a row per sample")
        if len(array) != len(first):
            raise UsageError(
                f"{what}: {first_name} has {len(first):,} rows and {name} has {len(array):,}; "
                "all arrays must have one row per sample"
            )
    if len(first) == 0:
        raise UsageError(f"{what}: {first_name} has no rows; at least one is needed")


def plain(rows: np.ndarray) -> np.ndarray:
    """Return rows in memory, contiguous and in the machine's byte order, as frameworks want them."""
    dtype = rows.dtype if rows.dtype.isnative else rows.dtype.newbyteorder("=")
    return np.ascontiguousarray(rows, dtype)


def _form(tree: Any) -> str:
    return str(trees.transform(np.shape, tree))
