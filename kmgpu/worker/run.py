"""A run as one process sees it: the job, the recipe and its data, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kmgpu.backends.adapter import Adapter
from kmgpu.data.loader import Batch, updates
from kmgpu.data.source import Source
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir
from kmgpu.worker.progress import Progress

Update = tuple[Batch, ...]


@dataclass(frozen=True)
class Run:
    """What the loop trains, with what, and where it is recorded."""

    job: Job
    rundir: RunDir
    adapter: Adapter
    recipe: Recipe
    rows: Source  # to train on
    validation: Source | None
    record: Callable  # record(event, **fields) writes an event; it does nothing but in process 0

    @property
    def batch_size(self) -> int:
        return self.job.batch_size or self.recipe.batch_size

    @property
    def epochs(self) -> int:
        return self.job.epochs or self.recipe.epochs

    @property
    def steps_per_epoch(self) -> int:
        steps = -(-len(self.rows) // self.batch_size)
        return steps if self.recipe.steps_per_epoch is None else min(steps, self.recipe.steps_per_epoch)

    @property
    def part(self) -> tuple[int, int]:
        """Which part of each batch is this process's: (process, processes)."""
        return self.adapter.process, self.adapter.processes

    def updates(self, progress: Progress) -> Iterator[Update]:
        """Yield what is left of the current epoch, with this process's rows."""
        return updates(
            self.rows, batch_size=self.batch_size, seed=self.job.seed, epoch=progress.epoch,
            shuffle=self.recipe.shuffle, part=self.part, steps=self.steps_per_epoch,
            chosen=range(progress.step, self.steps_per_epoch), class_weight=self.recipe.class_weight,
            accumulate=self.recipe.accumulate,
        )  # fmt: skip
