"""How far a run has come: the one thing beside the model's state that training carries from step to step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kmgpu.data.feed import Update
from kmgpu.data.order import OrderHash


class Mean:
    """A mean over batches, weighted by their rows."""

    def __init__(self, total: float = 0.0, rows: int = 0) -> None:
        self.total, self.rows = total, rows

    def add(self, values: Iterable[float], rows: Iterable[int]) -> None:
        for value, count in zip(values, rows, strict=True):
            self.total += value * count
            self.rows += count

    def value(self) -> float:
        return self.total / self.rows


@dataclass
class Progress:
    """What has been trained: always between two updates, and the same in all processes but for ``order``."""

    epoch: int = 0  # the one that is being trained, from 0
    step: int = 0  # updates done in this epoch, which is also the number of the next one
    updates: int = 0  # done in the run
    samples: int = 0  # consumed in the run
    loss: Mean = field(default_factory=Mean)  # of the epoch so far
    order: OrderHash = field(default_factory=OrderHash)  # of the samples that this process has consumed in the run
    finite: bool = True  # whether every loss was a number
    last: Update = ()  # the update that was done last, with this process's rows
    history: list[dict[str, Any]] = field(default_factory=list)  # metrics of each epoch done
    stop: str | None = None  # what ends the training before its last epoch

    def last_update(self, process: int) -> OrderHash:
        """Return a hash of this process's rows of the update that was done last, which says that a stream is joined."""
        order = OrderHash()
        for batch in self.last:
            if batch.counted(process):
                order.add(0, batch.offset + batch.positions, batch.samples)
        return order

    def end_epoch(self, metrics: dict[str, Any]) -> None:
        """Go on to the next epoch."""
        self.history.append(metrics)
        self.epoch, self.step, self.loss = self.epoch + 1, 0, Mean()
