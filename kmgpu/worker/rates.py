"""The learning rate for another batch than the recipe's, and the warm-up to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kmgpu.errors import UsageError
from kmgpu.worker.run import Run


@dataclass(frozen=True)
class Rate:
    """From ``base`` to ``base * factor``: at once, or in equal strides over the first ``warmup`` updates."""

    base: float
    factor: float = 1.0
    warmup: int = 0

    def at(self, update: int) -> float:
        """Return the learning rate of an update, counted from 0; past the warm-up it is the full one."""
        done = min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0
        return self.base * (1 + (self.factor - 1) * done) if self.factor != 1 else self.base * done

    def described(self, run: Run) -> str:
        """Return the rule in words, for the first lines of a run."""
        words = []
        if run.job.scale_lr != "none":
            batches = f"a batch of {run.train.batch_size} instead of {run.recipe.batch_size}"
            words.append(f"{self.base * self.factor:.6g} by --scale-lr {run.job.scale_lr} for {batches}")
        if self.warmup:
            words.append(f"warm-up over {self.warmup} steps")
        return ", ".join(words)


def factor(rule: str, batch_size: int, base_batch: int) -> float:
    """Return what the rate is multiplied by: k (linear), its root (sqrt) or 1 (none), for k times the batch."""
    ratio = batch_size / base_batch
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


def scale(run: Run) -> Rate | None:
    """Set the first learning rate as the job wants it; returns the rule, None if the recipe's rate is left alone."""
    job = run.job
    if job.scale_lr == "none" and not job.warmup_epochs:
        return None
    base = run.adapter.facts()["learning_rate"]
    if not isinstance(base, float):
        raise UsageError(
            f"--scale-lr and --warmup-epochs need a learning rate that is a number, and the recipe's is {base}; "
            "let the schedule do it"
        )
    if job.warmup_epochs and run.train.steps is None:
        raise UsageError("--warmup-epochs needs to know the steps of an epoch; give --steps-per-epoch")
    ratio = factor(job.scale_lr, job.batch_size or run.recipe.batch_size, run.recipe.batch_size)
    rate = Rate(base, ratio, job.warmup_epochs * (run.train.steps or 0))
    assign(run.adapter, rate.at(0))
    return rate


def assign(adapter: Any, rate: float) -> None:
    """Set the learning rate of the next update. All processes."""
    adapter.lend()
    adapter.model.optimizer.learning_rate = rate
    adapter.share(adapter.changed())
