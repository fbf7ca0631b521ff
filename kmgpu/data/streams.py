"""Streams: data that comes as batches of its own making; one element is one global batch.

``tf.data.Dataset``, ``keras.utils.PyDataset``, torch's ``DataLoader``, grain's ``IterDataset`` and ``DataLoader``,
generators and other iterables, each known by what it can do or by the name of its class: no library is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from kmgpu.data import trees
from kmgpu.data.ahead import mapped
from kmgpu.data.source import FIELDS, check_rows, is_arrays, is_function, plain
from kmgpu.errors import UsageError

Fields = tuple[Any, Any, Any]  # x, y, sample_weight: trees of arrays, the latter two may be None


@dataclass(frozen=True)
class Stream:
    """Batches in an order of their own."""

    kind: str  # in words
    begin: Callable[[], Iterator[Any]]  # a pass from the first batch on
    steps: int | None = None  # batches of a pass, where they are known
    endless: bool = False  # whether a pass has no end, or none that can be known
    once: bool = False  # whether there is one pass only
    draws: bool = False  # whether each pass may draw an order of its own when it begins
    seed: Callable[[int], None] = lambda seed: None
    skip: Callable[[bool], None] | None = None  # draws what a pass draws, even if it has begun; None: read one batch
    on_epoch_begin: Callable[[], None] = lambda: None
    on_epoch_end: Callable[[], None] = lambda: None
    note: str | None = None  # for the user


EMPTY = Stream("empty", lambda: iter(()))  # in processes that do not read it


def as_stream(data: Any, what: str, workers: int = 0) -> Stream | None:
    """Return the stream that ``data`` is; None where it is none. ``workers`` threads read a PyDataset, else its own."""
    if isinstance(data, Stream):
        return data
    if is_arrays(data) or is_function(data) or isinstance(data, (str, bytes)):
        return None
    ancestors = [f"{ancestor.__module__}.{ancestor.__name__}" for ancestor in type(data).__mro__]
    if any(name.startswith("tensorflow.python.data.") for name in ancestors):
        return _of_tensorflow(data)
    if any(name.startswith("keras.") and name.endswith(".PyDataset") for name in ancestors):
        return _of_keras(data, workers)
    if "torch.utils.data.dataloader.DataLoader" in ancestors:
        return _of_torch(data)
    if any(name.startswith("torch.") and name.endswith(".IterableDataset") for name in ancestors):
        raise UsageError(f"{what} is a torch IterableDataset, which gives samples; wrap it in a torch DataLoader")
    if hasattr(data, "__next__"):
        return Stream(f"a {type(data).__name__}", lambda: data, endless=True, once=True)
    if not hasattr(data, "__iter__") or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        return None
    return Stream(f"a {type(data).__name__}", lambda: iter(data), _length(data), draws=True)


def of_function(load: Callable[[], Any], first: Any, what: str) -> Stream | None:
    """Return the stream of a function that has given ``first``; it is called anew for a pass if that can be used once.

    None where ``first`` is no stream.
    """
    stream = as_stream(first, what)
    if stream is None or not stream.once:
        return stream
    made = [first]

    def begin() -> Iterator[Any]:
        return iter(made.pop() if made else load())

    return Stream(f"the function {getattr(load, '__name__', type(load).__name__)}", begin, draws=True)


def fields_of(element: Any, name: str) -> Fields:
    """Return x, y, sample_weight of an element of a stream, copied: a generator may fill the same arrays again."""
    values = tuple(element) if isinstance(element, (tuple, list)) else (element,)
    if not 1 <= len(values) <= 3:
        raise UsageError(f"{name} is a {type(element).__name__} of {len(values)}; it must be (x, y[, sample_weight])")
    named = zip(FIELDS, (*values, None, None)[:3], strict=True)
    fields = tuple(trees.as_arrays(value, f"{name}: {field}") for field, value in named)
    if not list(trees.leaves(fields[0], "x")):
        raise UsageError(f"{name}: x holds no array; it must be (x, y[, sample_weight])")
    check_rows(fields, name)
    x, y, sample_weight = trees.transform(lambda array: plain(np.array(array, order="C")), fields)
    return x, y, sample_weight


def form(fields: Fields) -> str:
    """Return what all batches of a stream have in common: their arrays, with dtype and number of axes."""
    return str(trees.transform(lambda array: f"{array.dtype} of {array.ndim} axes", fields))


def _of_tensorflow(data: Any) -> Stream:
    cardinality = int(data.cardinality())  # -1: infinite, -2: not known
    steps = cardinality if cardinality >= 0 else None
    return Stream("a tf.data.Dataset", data.as_numpy_iterator, steps, endless=cardinality == -1, draws=True)


def _of_torch(data: Any) -> Stream:
    """Return the stream of a DataLoader; what it draws, without a generator of its own, follows from the run's seed.

    A pass draws a seed for worker processes, then what its sampler draws, some of it at its end
    (torch/utils/data/dataloader.py and sampler.py, 2.13).
    """
    torch: Any = sys.modules["torch"]
    states: list[Any] = []

    def seed(number: int) -> None:
        if data.generator is None:
            data.generator = torch.Generator()
            data.generator.manual_seed(number)
            if getattr(data.sampler, "generator", data) is None:  # random order; that of the batches holds the same
                data.sampler.generator = data.generator

    def generators() -> list[Any]:
        return [each for each in (data.generator, getattr(data.sampler, "generator", None)) if each is not None]

    def begin() -> Iterator[Any]:
        states[:] = [generator.get_state() for generator in generators()]
        return iter(data)

    def skip(begun: bool) -> None:
        if begun:
            for generator, state in zip(generators(), states, strict=True):
                generator.set_state(state)
        torch.empty((), dtype=torch.int64).random_(generator=data.generator)
        if type(data.sampler).__name__ not in ("SequentialSampler", "_InfiniteConstantSampler"):
            for _ in data.sampler if data.batch_sampler is None else data.batch_sampler:
                pass

    return Stream("a DataLoader", begin, _length(data), draws=True, seed=seed, skip=skip)


def _of_keras(data: Any, workers: int) -> Stream:
    threads, note = workers or data.workers, None
    if data.use_multiprocessing:
        note = (
            f"the PyDataset asks for processes to read it, and is read by {threads or 1} threads: "
            "a process with a framework in it is not forked"
        )
    steps = data.num_batches
    pool = ThreadPoolExecutor(threads, thread_name_prefix="kmgpu-data") if threads > 1 else None

    def begin() -> Iterator[Any]:
        numbers = count() if steps is None else range(steps)
        if pool is None:
            return (data[number] for number in numbers)
        return mapped(pool, data.__getitem__, numbers, max(threads, data.max_queue_size))

    return Stream(
        "a keras PyDataset", begin, steps, endless=steps is None, on_epoch_begin=data.on_epoch_begin,
        on_epoch_end=data.on_epoch_end, note=note,
    )  # fmt: skip


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # torch's DataLoader over an IterableDataset, for one
        return None
