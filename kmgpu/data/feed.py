"""Feeds: the updates of each epoch, read ahead.

A feed is a ``RowFeed`` of rows by index, in an order that is kmgpu's own, or a ``StreamFeed`` of batches as they come.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kmgpu.data import trees
from kmgpu.data.ahead import Ahead
from kmgpu.data.loader import Batch, updates
from kmgpu.data.order import content_hashes
from kmgpu.data.source import FIELDS, Arrays, Source

Update = tuple[Batch, ...]
Updates = Generator[Update, None, None]
MOST_LABEL_BYTES = 1 << 28  # that are looked through before training
MOST_COPIED_BYTES = 1 << 28  # held in every process without a word
PRINTED = 64  # rows of a fingerprint


@dataclass(frozen=True)
class Wish:
    """What a recipe and a job ask of a feed, and whose rows it is to hold."""

    what: str  # "train" or "validation", for errors
    process: int = 0
    processes: int = 1
    batch_size: int = 32  # of rows; a stream has its own
    given: bool = False  # whether the batch size was given on the command line
    steps: int | None = None  # updates of an epoch; None: as many as there are
    seed: int = 0
    shuffle: bool = False
    accumulate: int = 1
    class_weight: dict[int, float] | None = None
    again: bool = False  # every epoch has the same rows, as an evaluation wants it
    workers: int = 0  # threads, over all processes, that read rows
    folder: Path | None = None  # private and local; None with one process


class Feed(Protocol):
    """The updates of each epoch, in order, for one process."""

    rows: int | None  # of an epoch; None where that is not known
    steps: int | None  # updates of an epoch; None where that is not known
    batch_size: int  # rows of the first update
    sizes: tuple[int, ...]  # rows of the updates, each once; of a stream, those of the first alone
    stream: bool
    notes: list[str]
    skipped: str | None  # a hash of the batch before the first one of an epoch that begins at a later step; of a stream

    def first(self) -> Update:
        """Return the first update of epoch 0, which is kept for ``epoch``."""

    def labels(self) -> Any:
        """Return the y of all rows where that is one array in memory, or else of some rows."""

    def fingerprint(self) -> np.ndarray:
        """Return (n,) int64 that are the same in all processes, unless these have data of their own."""

    def epoch(self, number: int, start: int = 0) -> Ahead[Update]:
        """Begin an epoch at a step; close it where it is not read to its end."""

    def end_epoch(self) -> None:
        """Tell the data that the last update of an epoch has been used."""

    def sample(self, steps: int) -> list[Update]:
        """Return so many updates of as many epochs as it takes; of rows, the last is one that ends an epoch."""


def pool_of(wish: Wish) -> Executor | None:
    """Return this process's share of the threads that read rows."""
    threads = wish.workers // wish.processes + (wish.process < wish.workers % wish.processes)
    return ThreadPoolExecutor(threads, thread_name_prefix="kmgpu-data") if threads > 1 else None


class RowFeed:
    """Batches of rows by index, in kmgpu's own order."""

    stream = False
    skipped: str | None = None

    def __init__(self, source: Source, wish: Wish):
        self._source, self._wish = source, wish
        self.notes: list[str] = []
        size, rows = wish.batch_size, len(source)
        starts = range(0, rows, size)[: wish.steps]
        self.rows: int | None = rows
        self.steps: int | None = len(starts)
        self.batch_size = size
        self.sizes: tuple[int, ...] = tuple(dict.fromkeys(min(size, rows - start) for start in starts))
        self._begun: tuple[Update, Updates] | None = None

    @property
    def arrays(self) -> list[np.ndarray]:
        """The arrays that hold all rows, where there are such."""
        return [array for _, array in trees.leaves(self._source.fields, "")] if isinstance(self._source, Arrays) else []

    def first(self) -> Update:
        if self._begun is None:
            items = self._updates(0, 0)
            self._begun = next(items), items
        return self._begun[0]

    def labels(self) -> Any:
        y = self._source.fields[1] if isinstance(self._source, Arrays) else None
        return y if isinstance(y, np.ndarray) and y.nbytes <= MOST_LABEL_BYTES else self.first()[0].y

    def fingerprint(self) -> np.ndarray:
        """The number of rows, and hashes of some of them where reading them again gives the same."""
        rows = len(self._source)
        hashes = np.zeros(PRINTED, np.int64)
        if isinstance(self._source, Arrays):
            some = self._source.take(np.linspace(0, rows - 1, PRINTED).astype(np.int64))
            arrays = [array for name, field in zip(FIELDS, some, strict=True) for _, array in trees.leaves(field, name)]
            hashes = content_hashes(arrays)
        return np.array([rows, *hashes])

    def epoch(self, number: int, start: int = 0) -> Ahead[Update]:
        begun, self._begun = self._begun, None
        if begun is not None and (number, start) == (0, 0):
            return Ahead(chained(*begun))
        return Ahead(self._updates(number, start))

    def end_epoch(self) -> None:
        pass

    def sample(self, steps: int) -> list[Update]:
        assert self.steps is not None
        chosen = None if steps >= self.steps else {*range(steps - 1), self.steps - 1}
        epochs = (self._updates(epoch, 0, chosen) for epoch in count())
        return list(islice(chain.from_iterable(epochs), steps))

    def _updates(self, epoch: int, start: int, chosen: Collection[int] | None = None) -> Updates:
        wish = self._wish
        return updates(
            self._source, batch_size=self.batch_size, seed=wish.seed, epoch=0 if wish.again else epoch,
            shuffle=wish.shuffle, part=(wish.process, wish.processes), start=start, steps=wish.steps, chosen=chosen,
            class_weight=wish.class_weight, accumulate=wish.accumulate,
        )  # fmt: skip


def copies(feed: RowFeed, wish: Wish) -> list[str]:
    """Return a note where each process holds a copy of large arrays, which it need not."""
    arrays = feed.arrays
    held = sum(array.nbytes for array in arrays if not isinstance(array, np.memmap))
    if wish.processes == 1 or held < MOST_COPIED_BYTES:
        return []
    return [
        f"each of {wish.processes} processes holds its own copy of the arrays of {wish.what}, {held / 2**30:.1f} GiB: "
        "give a function that returns them, and they are held once"
    ]


def chained(first: Update, items: Updates) -> Updates:
    """Yield an update that was read before, and the others."""
    try:
        yield first
        yield from items
    finally:
        items.close()


def first_updates(feed: Feed, steps: int) -> list[Update]:
    """Return the first updates of a feed, of as many epochs as it takes."""
    feed.first()
    found: list[Update] = []
    for epoch in count():
        updates = feed.epoch(epoch)
        for update in updates:
            found.append(update)
            if len(found) == steps:
                updates.close()
                return found
        feed.end_epoch()
    raise AssertionError
