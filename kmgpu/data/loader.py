"""Global batches of an epoch, and the rows of them that one process computes."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from kmgpu.data import trees
from kmgpu.data.order import epoch_order
from kmgpu.data.source import Source
from kmgpu.errors import UsageError


@dataclass(frozen=True)
class Batch:
    """One global batch: who is in it, and the data of this process's rows.

    ``x``, ``y`` and ``sample_weight`` are trees (dicts, lists, tuples) of NumPy arrays of ``rows`` rows; ``y`` and
    ``sample_weight`` may be None.
    """

    step: int  # in its epoch, from 0
    indices: np.ndarray  # (size,) int64: the samples of the global batch, in order
    first: int  # position in the global batch of this process's first row
    x: Any
    y: Any
    sample_weight: Any
    offset: int = 0  # position in the update of the batch's first row; not 0 in later batches of an accumulated update
    update: int = 0  # rows of the update; 0 is those of the batch, as without accumulation
    contents: np.ndarray | None = None  # (rows,) int64: hashes of this process's rows, where samples have no index
    form: str = ""  # of the arrays of a stream, whose batches may have several; a framework compiles for each

    @property
    def update_size(self) -> int:
        """Rows of the update that the batch is part of."""
        return self.update or self.size

    @property
    def size(self) -> int:
        """Rows of the global batch."""
        return len(self.indices)

    @property
    def rows(self) -> int:
        """Rows of this process."""
        return trees.rows_of(self.x)

    @property
    def positions(self) -> np.ndarray:
        """(rows,) int64: the positions of this process's rows in the global batch."""
        return np.arange(self.first, self.first + self.rows)

    @property
    def samples(self) -> np.ndarray:
        """(rows,) int64: which samples this process's rows are, by index or else by content."""
        return self.indices[self.positions] if self.contents is None else self.contents

    def counted(self, process: int) -> bool:
        """Whether this process's rows count in sums over all processes.

        Not so in the later processes of a batch with fewer rows than processes: each of them computed the whole batch.
        """
        return process == 0 or self.rows < self.size


def batches(source: Source, **options: Any) -> Iterator[Batch]:
    """Yield the global batches of one epoch, each an update of its own; options as those of ``updates``."""
    for (batch,) in updates(source, accumulate=1, **options):
        yield batch


def updates(
    source: Source,
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    shuffle: bool,
    accumulate: int,
    part: tuple[int, int] = (0, 1),
    start: int = 0,
    steps: int | None = None,
    chosen: Collection[int] | None = None,
    class_weight: dict[int, float] | None = None,
) -> Generator[tuple[Batch, ...], None, None]:
    """Yield the updates of one epoch: ``batch_size`` rows in ``accumulate`` near-equal batches, fewer if rows are few.

    The last update may be short. Of the updates from ``start`` to before ``steps`` come those that are ``chosen``. Each
    batch holds the rows of ``part``, which is (process, processes); the source is asked for these alone. Where a batch
    has fewer rows than processes, each gets all of them.
    """
    order = epoch_order(len(source), seed, epoch, shuffle)
    for step, first in islice(enumerate(range(0, len(order), batch_size)), start, steps):
        if chosen is not None and step not in chosen:
            continue
        indices = order[first : first + batch_size]
        batches = []
        for share, own in places(len(indices), accumulate, part):
            x, y, sample_weight = source.take(indices[own])
            if class_weight is not None:
                sample_weight = class_weights(y, sample_weight, class_weight)
            batch = Batch(
                step, indices[share], own.start - share.start, x, y, sample_weight, share.start, len(indices)
            )
            batches.append(batch)
        yield tuple(batches)


def places(size: int, accumulate: int, part: tuple[int, int]) -> Iterator[tuple[slice, slice]]:
    """Yield the positions in an update of ``size`` rows of each of its batches, and of the part's rows of that."""
    process, processes = part
    for share in split(size, min(accumulate, size)) or []:
        rows = share.stop - share.start
        own = (split(rows, processes) or [slice(0, rows)] * processes)[process]
        yield share, slice(share.start + own.start, share.start + own.stop)


def split(size: int, parts: int) -> list[slice] | None:
    """Return contiguous near-equal shares of ``size`` rows, larger ones first; None where there are too few rows."""
    if size < parts:
        return None
    share, extra = divmod(size, parts)
    bounds = [part * share + min(part, extra) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(bounds[:-1], bounds[1:], strict=True)]


def class_weights(y: Any, sample_weight: Any, class_weight: dict[int, float]) -> np.ndarray:
    """Return sample weights (rows,) float32 from the labels, which are (rows,), (rows, 1) or one-hot.

    As Keras has it (keras/src/trainers/data_adapters/data_adapter_utils.py, class_weight_to_sample_weights): a label
    that ``class_weight`` does not name weighs 1.
    """
    if not isinstance(class_weight, dict):
        raise UsageError(f"class_weight is {class_weight!r}; it must be a dict from label to weight")
    if sample_weight is not None:
        raise UsageError("the recipe gives both class_weight and sample_weight; give one of them, as Keras demands")
    if not isinstance(y, np.ndarray):
        came = "no y" if y is None else f"several outputs (y is a {type(y).__name__})"
        raise UsageError(f"class_weight needs one output, and the data has {came}; use sample_weight instead")
    labels = y
    if y.ndim > 1:
        labels = y.squeeze(-1) if y.shape[-1] == 1 else y.argmax(-1)
    if labels.ndim != 1:
        raise UsageError(
            f"class_weight needs one label per row, and y has shape {y.shape}; use sample_weight instead"
        )
    values, places = np.unique(np.round(labels).astype(np.int32), return_inverse=True)
    weights = [class_weight.get(int(value), 1.0) for value in values]
    return np.asarray(weights, np.float32)[places]
