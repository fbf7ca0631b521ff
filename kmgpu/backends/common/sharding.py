"""How the rows of a batch lie on the replicas, while a step is run or traced."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sharding:
    """How the rows of one global batch lie on the replicas, while a step is run or traced."""

    count: int = 1  # replicas that share the batch; 1: this replica has all rows
    index: Any = 0  # of this replica; a number, or a tensor where all replicas are one program
    first: Any = 0  # position in the batch of this replica's first row
    rows: int = 1  # of this replica
    size: int = 1  # of the batch
    update: int = 1  # rows of the update that the batch is part of; the same unless gradients are accumulated
    offset: int = 0  # position in the update of the batch's first row
    replicas: int = 1  # that compute the same where the batch is not shared
    all_sum: Callable[[Any], Any] = lambda tensor: tensor  # over the replicas; differentiable
    batch_norm: str = "global"  # or "replica", or "moving": as where it does not train
    groups: int = 1  # shares of which BatchNorm takes statistics apart, as so many replicas would
    shipped: bool = False  # whether a replica does what the framework does by itself, as if its rows were all
    counts: bool = True  # whether metrics count this replica's rows; not where several replicas have the same rows
    denominators: Denominators | None = None  # those of the whole update, where it has several batches
    loss_scale: float = 1.0  # what the losses that layers add are multiplied by, beside the share of rows
    gradient_scale: int = 1  # what the gradient is multiplied by, and the loss is not

    @property
    def share(self) -> float:
        return self.rows / self.update

    def total(self, count: Any) -> Any:
        """Return the sum over the whole update of a count that depends on the rows: valid tokens, weights."""
        return self.all_sum(count) if self.denominators is None else self.denominators.total(count, self.all_sum)

    def whole(self, count: int) -> int | float:
        """Return the number over the whole update of what this replica has ``count`` of, row by row."""
        product = count * self.update
        return product // self.rows if product % self.rows == 0 else product / self.rows


@dataclass(frozen=True)
class Policy:
    """What a recipe wants to depend on the number of devices, and that number.

    The reference of a parity check computes on one device what so many devices would.
    """

    devices: int
    batch_norm: str = "global"
    gradient_reduction: str = "mean"

    def on(self, sharding: Sharding) -> Sharding:
        """Return how rows lie under this policy."""
        groups = self.devices if sharding.count == 1 and self.batch_norm == "replica" and not sharding.shipped else 1
        scale = self.devices if self.gradient_reduction == "sum" else 1
        return dataclasses.replace(sharding, batch_norm=self.batch_norm, groups=groups, gradient_scale=scale)


class Denominators:
    """Counts over an update of several batches: recorded in a pass over each of them, then added up and given."""

    def __init__(self, given: Sequence[Any] | None = None):
        self.recorded: list[Any] = []
        self._given = None if given is None else list(given)
        self._asked = 0

    def total(self, count: Any, all_sum: Callable[[Any], Any]) -> Any:
        if self._given is None:
            self.recorded.append(all_sum(count))
            return self.recorded[-1]
        self._asked += 1
        return self._given[self._asked - 1]


_state = threading.local()  # MirroredStrategy runs its replicas in threads


def sharding() -> Sharding:
    return getattr(_state, "sharding", None) or Sharding()


def within_step() -> bool:
    """Whether the calling thread computes a step."""
    return getattr(_state, "sharding", None) is not None


@contextlib.contextmanager
def use(value: Sharding) -> Iterator[None]:
    """Within this context the calling thread is a replica with these rows."""
    before = getattr(_state, "sharding", None)
    _state.sharding = value
    try:
        yield
    finally:
        _state.sharding = before


def unshared(size: int, update: int, replicas: int, index: int, offset: int = 0) -> Sharding:
    """Return the sharding of a batch that every replica computes whole; the first one's rows count in metrics."""
    return Sharding(rows=size, size=size, update=update, offset=offset, replicas=replicas, counts=index == 0)


def as_shipped(rows: int, replicas: int) -> Sharding:
    """Return the sharding of a replica that knows only its own rows: the loss becomes a mean of the replicas' means."""
    return Sharding(rows=rows, size=rows, update=rows, replicas=replicas, shipped=True)


def size_of(tensor: Any) -> int:
    """Return the number of elements of a tensor whose shape is static."""
    return int(np.prod(tuple(tensor.shape), dtype=np.int64))
