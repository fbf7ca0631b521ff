"""Does a step on shares of a batch compute what a step on the whole batch computes?"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.backends.adapter import StepResult
from kmgpu.backends.common.model import perturbed, to_numpy
from kmgpu.backends.common.precision import epsilon
from kmgpu.backends.common.randomness import portable, without_randomness
from kmgpu.backends.common.step import gathered_bytes
from kmgpu.data.loader import Batch, split

LOSS_TOLERANCE = 1e-5  # relative; float32 rounding gives 1e-7
GRADIENT_TOLERANCE = 1e-2  # of a variable's norm; ReLU and max-pool kinks that rounding flips give up to 1e-3
# In a coarser type a number is off by up to half an epsilon wherever it is rounded; shares of a batch may be summed in
# another order, and then a few numbers are rounded the other way. A mean of means is off by the whole.
LOSS_EPSILONS = 2
GRADIENT_EPSILONS = 16
TINY = 1e-30
LOWER = 16  # loss scale of a float16 run; each attempt costs a compilation on some backends


def check(
    adapter: Any, sample: Sequence[Batch], sizes: Sequence[int], evaluated: Sequence[int], predicted: Sequence[int]
) -> None:
    """Let each replica compute whole batches from now on where a step on shares is not the step on the whole.

    Asked for every size of an update (``sizes``) and of a batch that is evaluated or predicted, with rows of
    ``sample``: a layer may do something else when it does not train, or with an odd number of rows.
    """
    for size in dict.fromkeys(predicted):
        update = [adapter.put(batch) for batch in _rows_of(sample[:1], size, adapter)]
        if update and adapter.shares(update) and not adapter.plan.whole:
            _check_outputs(adapter, update[0])
    for training, wanted in ((True, sizes), (False, evaluated)):
        for size in dict.fromkeys(wanted):
            parts = _rows_of(sample if training else sample[:1], size, adapter)
            update = [adapter.put(batch) for batch in parts]
            if update and adapter.shares(update) and not adapter.plan.whole:
                gathered_bytes.update(shares=0, whole=0)
                _check(adapter, update, training)
                if training and not adapter.plan.gathered_bytes:
                    gathered = gathered_bytes["whole" if adapter.plan.whole else "shares"] * len(update)
                    adapter.plan = dataclasses.replace(adapter.plan, gathered_bytes=gathered)


def _check(adapter: Any, update: Sequence[Any], training: bool) -> None:
    plan, apart = adapter.plan, None
    drawing = contextlib.nullcontext() if portable() else without_randomness()
    with drawing, _loss_scale_restored(adapter.model.optimizer):
        for weights in (perturbed(adapter.model), contextlib.nullcontext()):  # as they are if perturbed ones give NaN
            with weights:
                shares, whole = _results(adapter, plan, update, training)
            if np.isfinite(whole.loss):
                apart = difference(adapter.model, shares, whole) or _of_metrics(
                    plan.kept, shares, whole, max(1e-3, GRADIENT_EPSILONS * epsilon(adapter.model))
                )
                break
    adapter.plan = plan if apart is None else dataclasses.replace(plan, whole=(apart,))


def _results(adapter: Any, plan: Any, update: Sequence[Any], training: bool) -> list[StepResult]:
    """Return a step on shares and on the whole batch, at a loss scale at which gradients are finite."""
    while True:
        results = []
        for whole in ((), ("to compare",)):
            adapter.plan = dataclasses.replace(plan, whole=whole)
            results.append(adapter.fresh_result(update, training))
        finite = all(np.isfinite(gradient).all() for result in results for gradient in result.gradients)
        if finite or not _scaled_down(adapter.model.optimizer):
            return results


def _scaled_down(optimizer: Any) -> bool:
    """Whether there was a loss scale to lower; it is lower then, as training lowers it until gradients are finite."""
    scale = getattr(optimizer, "dynamic_scale", None)
    if scale is None or float(to_numpy(scale.value)) <= 1:
        return False
    scale.assign(to_numpy(scale.value) / LOWER)
    return True


@contextlib.contextmanager
def _loss_scale_restored(optimizer: Any) -> Iterator[None]:
    scale = getattr(optimizer, "dynamic_scale", None)
    before = None if scale is None else to_numpy(scale.value)
    yield
    if scale is not None:
        scale.assign(before)


def _check_outputs(adapter: Any, batch: Any) -> None:
    import keras

    plan = adapter.plan
    results = []
    with without_randomness():
        for whole in ((), ("to compare",)):
            adapter.plan = dataclasses.replace(plan, whole=whole)
            results.append([np.asarray(a, np.float64) for a in keras.tree.flatten(adapter.fresh_outputs(batch))])
    apart = max(
        np.linalg.norm(mine - truth) / (np.linalg.norm(truth) + TINY) for mine, truth in zip(*results, strict=True)
    )
    worst = float(adapter.gather(np.array(apart)).max())  # each process has seen its own rows
    if worst > max(GRADIENT_TOLERANCE, GRADIENT_EPSILONS * epsilon(adapter.model)):
        plan = dataclasses.replace(
            plan, whole=(f"the outputs differ by {worst:.2g} between shares of it and the whole",)
        )
    adapter.plan = plan


def _rows_of(sample: Sequence[Batch], size: int, adapter: Any) -> list[Batch]:
    """Return an update of ``size`` rows out of the first rows of the sample's batches; empty if these have too few."""
    import keras

    shares = split(size, min(len(sample), size)) or []
    found = []
    for batch, share in zip(sample, shares, strict=False):
        rows = share.stop - share.start
        parts = split(rows, adapter.devices)
        if rows > batch.size or parts is None:
            return []
        own = parts[adapter.process] if adapter.one_process_per_device else slice(0, rows)
        trees = (batch.x, batch.y, batch.sample_weight)
        x, y, sample_weight = keras.tree.map_structure(
            lambda array, count=own.stop - own.start: None if array is None else array[:count], trees
        )
        found.append(Batch(batch.step, batch.indices[:rows], own.start, x, y, sample_weight, share.start, size))
    return found


def difference(model: Any, shares: StepResult, whole: StepResult) -> str | None:
    """Return where a step on shares departs from the step on the whole batch, or None."""
    off = epsilon(model)
    if not abs(shares.loss - whole.loss) <= max(LOSS_TOLERANCE, LOSS_EPSILONS * off) * max(
        abs(whole.loss), 1e-3
    ):  # NaN is no agreement
        blame = [layer.name for layer in model._flatten_layers() if layer is not model and layer._losses]
        adding = f" (layers that add losses: {', '.join(blame)})" if blame else ""
        return f"the loss is {shares.loss:.6g} on shares of it and {whole.loss:.6g} on the whole{adding}"
    if not whole.gradients:
        return None
    scale = np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in whole.gradients))
    pairs = [
        *zip(model.trainable_variables, shares.gradients, whole.gradients, strict=True),
        *zip(model.non_trainable_variables, shares.states, whole.states, strict=True),
    ]
    for position, (variable, mine, truth) in enumerate(pairs):
        gradient = position < len(shares.gradients)
        mine, truth = mine.astype(np.float64), truth.astype(np.float64)
        floor = max(5e-5, off) * scale if gradient else max(1e-6, off)
        apart = np.linalg.norm(mine - truth) / (np.linalg.norm(truth) + floor)
        if not apart <= max(GRADIENT_TOLERANCE, GRADIENT_EPSILONS * off):
            what = "the gradient of " if gradient else "what the forward pass makes of "
            return f"{what}{variable.path} differs by {apart:.2g} between shares of it and the whole"
    return None


def _of_metrics(names: Sequence[str], shares: StepResult, whole: StepResult, tolerance: float) -> str | None:
    """Return the first of the metrics that departs; the names of those that the forward pass updates."""
    for name in names:
        mine, truth = shares.metrics.get(name, 0.0), whole.metrics.get(name, 0.0)
        if not np.allclose(mine, truth, rtol=tolerance, atol=1e-6, equal_nan=True):
            return f"the metric {name} is {mine:.6g} on shares of it and {truth:.6g} on the whole"
    return None
