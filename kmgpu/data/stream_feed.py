"""Feeds of streams: one process reads, and sends the others their rows of each batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu.data import channel, trees
from kmgpu.data.ahead import Ahead
from kmgpu.data.feed import Feed, RowFeed, Update, Updates, Wish, chained, copies, first_updates, pool_of
from kmgpu.data.loader import Batch, class_weights, places
from kmgpu.data.order import OrderHash, content_hashes
from kmgpu.data.share import share
from kmgpu.data.source import as_source
from kmgpu.data.streams import Fields, Stream, as_stream, fields_of, form
from kmgpu.errors import UsageError


def open_feed(data: Any, wish: Wish) -> Feed:
    """Return the feed of what a recipe gives as data. To be called by all processes."""
    folder = None if wish.folder is None else wish.folder / wish.what
    data = share(data, folder, wish.process, wish.what)
    stream = as_stream(data, wish.what, wish.workers)
    if stream is None:
        feed = RowFeed(as_source(data, wish.what, pool_of(wish)), wish)
        feed.notes = copies(feed, wish)
        return feed
    stream.seed(wish.seed)
    if folder is None or wish.process == 0:
        return StreamFeed(stream, wish)
    return SentFeed(wish, folder / "stream")


class StreamFeed:
    """Batches as a stream gives them, read by this process alone, and sent to the others."""

    stream = True
    rows: int | None = None
    sizes: tuple[int, ...]

    def __init__(self, stream: Stream, wish: Wish):
        if wish.given and wish.what == "train":
            raise UsageError(
                f"--batch-size is {wish.batch_size}, and train is {stream.kind}, which makes its own batches; "
                "leave it out, and let the recipe say how large they are"
            )
        steps = wish.steps
        if steps is None and stream.endless:
            name = "steps_per_epoch" if wish.what == "train" else f"{wish.what}_steps"
            other = ", or the function that makes it, which each epoch then calls" if stream.once else ""
            raise UsageError(f"{wish.what} is {stream.kind}, whose end cannot be known; give {name}{other}")
        self.steps = stream.steps if steps is None else steps
        self._stream, self._wish = stream, wish
        self._peers: list[Any] = []
        self._elements = self._passes()
        self._read = 0  # elements since the beginning
        self._passed = 0  # passes begun
        self._begins, self._epochs = 0, 0  # epochs begun and ended
        self._form = ""
        self._begun: tuple[Update, Updates] | None = None
        self._opened: tuple[Fields, Iterator[Fields]] | None = None  # the elements of epoch 0, with its first one
        self.skipped: str | None = None
        self.notes = [] if stream.note is None else [stream.note]

    def first(self) -> Update:
        if self._begun is None:
            self._join()
            items = self._updates(self._opening(), 0)
            self._begun = next(items), items
            self.batch_size = self._begun[0][0].update_size
            self.sizes = (self.batch_size,)
        return self._begun[0]

    def labels(self) -> Any:
        return self.first()[0].y

    def fingerprint(self) -> np.ndarray:
        return np.zeros(1, np.int64)  # one process reads for all

    def epoch(self, number: int, start: int = 0) -> Ahead[Update]:
        begun, self._begun = self._begun, None
        opened, self._opened = self._opened, None
        if begun is not None and (number, start) == (0, 0):
            return Ahead(chained(*begun))
        if begun is not None:
            begun[1].close()
        if opened is not None and number == 0:  # a run that goes on in its first epoch: in the pass that was begun
            return Ahead(self._updates(chain((opened[0],), opened[1]), start))
        return Ahead(self._updates(self._fields(number), start))

    def end_epoch(self) -> None:
        self._stream.on_epoch_end()
        self._epochs += 1

    def sample(self, steps: int) -> list[Update]:
        return first_updates(self, steps)

    def _join(self) -> None:
        """Wait for the other processes, and tell them what cannot be seen from the batches."""
        wish = self._wish
        if wish.folder is not None:
            self._peers = channel.listen(wish.folder / wish.what / "stream", wish.processes - 1)
            for peer in self._peers:
                channel.send(peer, "steps", self.steps)

    def _updates(self, elements: Iterator[Fields], start: int) -> Updates:
        """Yield the updates of an epoch from a step on, each sent to the other processes before."""
        wish, row = self._wish, 0
        try:
            for fields in islice(elements, start):
                row += trees.rows_of(fields[0])
                self.skipped = _digest(fields)
            for step, fields in enumerate(elements, start):
                numbers = np.arange(row, row + trees.rows_of(fields[0]))
                row += len(numbers)
                for process, peer in enumerate(self._peers, 1):
                    _send(peer, _cut(step, fields, numbers, process, wish))
                yield _cut(step, fields, numbers, 0, wish)
        except Exception as error:
            self._tell("error", f"{type(error).__name__}: {error}")
            raise
        finally:
            self._tell("end")

    def _tell(self, kind: str, record: Any = None) -> None:
        for peer in self._peers:
            with contextlib.suppress(channel.PeerLost):
                channel.send(peer, kind, record)

    def _fields(self, epoch: int) -> Iterator[Fields]:
        """Yield the elements of an epoch; with ``steps``, it goes on where the epoch before stopped."""
        wish, stream = self._wish, self._stream
        by_passes = wish.steps is None or (wish.again and not stream.once)
        while self._epochs < epoch:  # a run that is resumed
            self._begin_epoch()
            if by_passes:
                self._open_pass(self._epochs)
            self.end_epoch()
        self._begin_epoch()
        if by_passes:
            yield from islice(self._pass(), wish.steps)
            return
        assert wish.steps is not None
        if not wish.again:
            self._skip(epoch * wish.steps)
        yield from islice(self._elements, wish.steps)

    def _opening(self) -> Iterator[Fields]:
        """Yield the elements of epoch 0; what has been read of it is kept until it is known where training begins."""
        elements = self._fields(0)
        first = next(elements)
        self._opened = first, elements
        yield first
        yield from elements

    def _begin_epoch(self) -> None:
        if self._begins <= self._epochs:  # else the first batch, which is read to build the model, has begun it
            self._stream.on_epoch_begin()
            self._begins += 1

    def _open_pass(self, number: int) -> None:
        """Draw what a pass of the uninterrupted run has drawn; the first one may have been begun."""
        begun = self._passed > number
        if self._stream.skip is not None:
            self._stream.skip(begun)
            self._passed = number + 1
        elif self._stream.draws and not begun:
            next(self._pass(), None)

    def _skip(self, count: int) -> None:
        """Read on until ``count`` elements have been read; whole passes of known length are only opened."""
        length = self._stream.steps
        if length and count - self._read >= length and not self._stream.once:
            for number in range(count // length):
                self._open_pass(number)
            self._elements, self._read = self._passes(), count - count % length
        for fields in islice(self._elements, max(0, count - self._read)):
            self.skipped = _digest(fields)

    def _passes(self) -> Iterator[Fields]:
        while True:
            yield from self._pass()
            if self._stream.once:
                raise UsageError(
                    f"{self._wish.what}: {self._stream.kind} ended after {self._read} batches, and more are needed; "
                    "give the function that makes it, or ask for fewer steps or epochs"
                )

    def _pass(self) -> Iterator[Fields]:
        """Yield x, y, sample_weight of each batch of one pass, all of one form."""
        elements, number, kind = self._stream.begin(), 0, self._stream.kind
        self._passed += 1
        while True:
            name = f"{self._wish.what}: batch {number}"
            try:
                element = next(elements)
            except StopIteration:
                break
            except Exception as error:
                error.add_note(f"batch {number} of {self._wish.what}")
                raise
            fields = fields_of(element, name)
            self._form = self._form or form(fields)
            if form(fields) != self._form:
                raise UsageError(f"{name} is {form(fields)}, and the first was {self._form}; all must be alike")
            number += 1
            self._read += 1
            yield fields
        if number == 0:
            raise UsageError(f"{self._wish.what} is {kind} that gave no batch; at least one is needed")


def _digest(fields: Fields) -> str:
    """Return a hash of an element, that of the update which it was: ``worker.progress.Progress.last_update``."""
    order = OrderHash()
    order.add(0, np.arange(trees.rows_of(fields[0])), content_hashes(array for _, array in trees.leaves(fields, "")))
    return OrderHash.join(order.lanes)


class SentFeed:
    """The rows of this process of what process 0 reads from a stream."""

    stream = True
    skipped: str | None = None
    rows: int | None = None
    sizes: tuple[int, ...]
    notes: list[str] = []

    def __init__(self, wish: Wish, path: Path):
        self._wish, self._path = wish, path
        self._begun: tuple[Update, Updates] | None = None

    def first(self) -> Update:
        if self._begun is None:
            self._connection = channel.connect(self._path, self._wish.process)
            _, self.steps, _ = channel.receive(self._connection)
            items = self._updates()
            self._begun = next(items), items
            self.batch_size = self._begun[0][0].update_size
            self.sizes = (self.batch_size,)
        return self._begun[0]

    def labels(self) -> Any:
        return self.first()[0].y

    def fingerprint(self) -> np.ndarray:
        return np.zeros(1, np.int64)  # one process reads for all

    def epoch(self, number: int, start: int = 0) -> Ahead[Update]:
        begun, self._begun = self._begun, None
        if begun is not None and (number, start) == (0, 0):
            return Ahead(chained(*begun))
        if begun is not None:
            begun[1].close()
        return Ahead(self._updates())

    def end_epoch(self) -> None:
        pass

    def sample(self, steps: int) -> list[Update]:
        return first_updates(self, steps)

    def _updates(self) -> Updates:
        kind = "begin"
        try:
            while True:
                kind, record, arrays = channel.receive(self._connection)
                if kind == "end":
                    return
                if kind == "error":
                    raise channel.PeerLost(f"process 0 failed while it read the data: {record}")
                yield _received(record, arrays)
        finally:
            while kind == "update":  # closed before the end: process 0 still sends what it has read
                kind, _, _ = channel.receive(self._connection)


def _cut(step: int, fields: Fields, numbers: np.ndarray, process: int, wish: Wish) -> Update:
    """Return the rows of one process of an element of a stream, as an update."""
    own_form = str(trees.transform(lambda array: array.shape[1:], fields))
    batches = []
    for piece, own in places(len(numbers), wish.accumulate, (process, wish.processes)):
        x, y, sample_weight = trees.transform(lambda array, own=own: array[own], fields)
        contents = content_hashes(array for _, array in trees.leaves((x, y, sample_weight), ""))
        if wish.class_weight is not None:
            sample_weight = class_weights(y, sample_weight, wish.class_weight)
        batch = Batch(
            step, numbers[piece], own.start - piece.start, x, y, sample_weight, piece.start, len(numbers), contents,
            own_form,
        )  # fmt: skip
        batches.append(batch)
    return tuple(batches)


def _send(peer: channel.Connection, update: Update) -> None:
    records, arrays = [], []
    for batch in update:
        numbers = int(batch.indices[0]), len(batch.indices)
        records.append([batch.step, *numbers, batch.first, batch.offset, batch.update, batch.form])
        arrays.append((batch.x, batch.y, batch.sample_weight, batch.contents))
    channel.send(peer, "update", records, arrays)


def _received(records: list[list[Any]], arrays: list[Any]) -> Update:
    batches = []
    for (step, number, size, first, offset, update, form_), fields in zip(records, arrays, strict=True):
        x, y, sample_weight, contents = fields
        indices = np.arange(number, number + size)
        batches.append(Batch(step, indices, first, x, y, sample_weight, offset, update, contents, form_))
    return tuple(batches)
