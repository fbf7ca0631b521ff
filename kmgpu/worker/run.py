"""A run as one process sees it: the job, the recipe and its data, and what follows from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kmgpu.backends.adapter import Adapter
from kmgpu.data.ahead import Ahead
from kmgpu.data.feed import Feed, Update
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir
from kmgpu.worker.progress import Progress


@dataclass(frozen=True)
class Run:
    """What the loop trains, with what, and where it is recorded."""

    job: Job
    rundir: RunDir
    adapter: Adapter
    recipe: Recipe
    train: Feed
    validation: Feed | None
    record: Callable  # record(event, **fields) writes an event; it does nothing but in process 0
    began: float = field(default_factory=time.monotonic)

    @property
    def epochs(self) -> int:
        return self.job.epochs or self.recipe.epochs

    def updates(self, progress: Progress) -> Ahead[Update]:
        """Begin what is left of the current epoch, with this process's rows."""
        return self.train.epoch(progress.epoch, progress.step)
