"""Does a step on shares of a batch compute what a step on the whole batch computes?"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.backends.adapter import StepResult
from kmgpu.backends.common.model import to_numpy
from kmgpu.backends.common.randomness import without_randomness
from kmgpu.data.loader import Batch, split

LOSS_TOLERANCE = 1e-5  # relative; float32 rounding gives 1e-7


GRADIENT_TOLERANCE = 1e-2  # of a variable's norm; ReLU and max-pool kinks that rounding flips give up to 1e-3


def check(adapter: Any, update: Sequence[Any]) -> None:
    """Let each replica compute whole batches from now on where a step on shares is not the step on the whole."""
    if adapter.devices == 1 or adapter.plan.whole or not adapter.shares(update):
        return
    plan = adapter.plan
    results = []
    with without_randomness(), perturbed(adapter.model):
        for whole in ((), ("to compare",)):
            adapter.plan = dataclasses.replace(plan, whole=whole)
            results.append(adapter.fresh_result(update))
    apart = difference(adapter.model, *results)
    adapter.plan = plan if apart is None else dataclasses.replace(plan, whole=(apart,))


@contextlib.contextmanager
def perturbed(model: Any) -> Iterator[None]:
    """Within this context the trainable weights are a little off, since zeros hide what depends on them."""
    generator = np.random.default_rng(0)
    before = [to_numpy(variable.value) for variable in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign((value + 0.05 * generator.standard_normal(value.shape)).astype(value.dtype))
    try:
        yield
    finally:
        for variable, value in zip(model.trainable_variables, before, strict=True):
            variable.assign(value)


def few_rows(batch: Batch, devices: int, process: int | None = None) -> Batch:
    """Return a batch of two rows for each device and one more, so that shares are uneven; no more than there are.

    A step on the whole of it then fits where a step on a share of the real batch does. ``process`` is that whose rows
    the batch holds, or None where it holds all.
    """
    import keras

    size = 2 * devices + 1
    if batch.size <= size:
        return batch
    parts = split(size, devices)
    assert parts is not None
    own = slice(0, size) if process is None else parts[process]
    trees = (batch.x, batch.y, batch.sample_weight)
    x, y, sample_weight = keras.tree.map_structure(
        lambda array: None if array is None else array[: own.stop - own.start], trees
    )
    return Batch(batch.step, batch.indices[:size], own.start, x, y, sample_weight)


def difference(model: Any, shares: StepResult, whole: StepResult) -> str | None:
    """Return where a step on shares departs from the step on the whole batch, or None."""
    if not np.isfinite(whole.loss):
        return None
    if not abs(shares.loss - whole.loss) <= LOSS_TOLERANCE * max(abs(whole.loss), 1e-3):  # NaN is no agreement
        blame = [layer.name for layer in model._flatten_layers() if layer is not model and layer._losses]
        adding = f" (layers that add losses: {', '.join(blame)})" if blame else ""
        return f"the loss is {shares.loss:.6g} on shares of it and {whole.loss:.6g} on the whole{adding}"
    scale = np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in whole.gradients))
    pairs = [
        *zip(model.trainable_variables, shares.gradients, whole.gradients, strict=True),
        *zip(model.non_trainable_variables, shares.states, whole.states, strict=True),
    ]
    for position, (variable, mine, truth) in enumerate(pairs):
        gradient = position < len(shares.gradients)
        mine, truth = mine.astype(np.float64), truth.astype(np.float64)
        floor = 1e-3 * scale if gradient else 1e-6
        apart = np.linalg.norm(mine - truth) / (np.linalg.norm(truth) + floor)
        if not apart <= GRADIENT_TOLERANCE:
            what = "the gradient of " if gradient else "what the forward pass makes of "
            return f"{what}{variable.path} differs by {apart:.2g} between shares of it and the whole"
    return None
