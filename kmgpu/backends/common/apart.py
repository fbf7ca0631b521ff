"""How far two computations of one step are apart, in units of what rounding may make of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kmgpu.backends.adapter import StepResult
from kmgpu.backends.common.precision import epsilon

LOSS_TOLERANCE = 1e-5  # relative; float32 rounding gives 1e-7
TOLERANCE = 1e-4  # of a gradient, a state's change, a metric; float32 rounding gives 1e-6
# In a coarser type a number is off by up to half an epsilon wherever it is rounded; shares of a batch may be summed in
# another order, and then a few numbers are rounded the other way. A mean of means is off by the whole.
LOSS_EPSILONS = 2
EPSILONS = 16
SMALL = 1e-2  # of the gradient's norm: a variable's own that is smaller than this is compared on this scale
METRIC_SCALE = 1e-2  # a metric smaller than this is compared on this scale
ROUNDINGS = 8  # units in the last place that storing a state may cost
TINY = 1e-30


@dataclass(frozen=True)
class Apart:
    """The largest difference of two steps."""

    times: float  # the tolerance
    what: str  # in words, to stand before "on shares of it" and the like
    kind: str  # "loss", "gradient", "state", "metric" or "output"


def steps(
    model: Any, states: Sequence[np.ndarray], mine: StepResult, truth: StepResult, ways: tuple[str, str],
    kind: str | None = None,
) -> Apart:  # fmt: skip
    """Return where ``mine`` departs most from ``truth``, of one kind if it is given; both began with ``states``.

    ``ways`` are their names.
    """
    found = [*_loss(model, mine, truth, ways), *_gradients(model, mine, truth, ways)]
    found += [*_states(model, states, mine, truth, ways), *_metrics(model, mine, truth, ways)]
    return max((apart for apart in found if kind in (None, apart.kind)), key=lambda apart: apart.times)


def outputs(model: Any, mine: Sequence[np.ndarray], truth: Sequence[np.ndarray]) -> Apart:
    """The same of a model's outputs."""
    worst = max((_norm(a, b) / (float(np.linalg.norm(b)) + TINY) for a, b in zip(mine, truth, strict=True)), default=0)
    words = f"the outputs differ by {worst:.2g} between shares of it and the whole"
    return Apart(worst / max(TOLERANCE, EPSILONS * epsilon(model)), words, "output")


def _loss(model: Any, mine: StepResult, truth: StepResult, ways: tuple[str, str]) -> Iterator[Apart]:
    error = _distance(mine.loss, truth.loss) / max(abs(truth.loss), 1e-3)
    blame = [layer.name for layer in model._flatten_layers() if layer is not model and layer._losses]
    adding = f" (layers that add losses: {', '.join(blame)})" if blame else ""
    words = f"the loss is {mine.loss:.6g} {ways[0]} and {truth.loss:.6g} {ways[1]}{adding}"
    yield Apart(error / max(LOSS_TOLERANCE, LOSS_EPSILONS * epsilon(model)), words, "loss")


def _gradients(model: Any, mine: StepResult, truth: StepResult, ways: tuple[str, str]) -> Iterator[Apart]:
    if not truth.gradients:
        return
    scale = np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in truth.gradients))
    tolerance = max(TOLERANCE, EPSILONS * epsilon(model))
    for variable, a, b in zip(model.trainable_variables, mine.gradients, truth.gradients, strict=True):
        error = _norm(a, b) / (float(np.linalg.norm(b.astype(np.float64))) + SMALL * scale + TINY)
        words = f"the gradient of {variable.path} differs by {error:.2g} between {_between(ways)}"
        yield Apart(error / tolerance, words, "gradient")


def _states(
    model: Any, states: Sequence[np.ndarray], mine: StepResult, truth: StepResult, ways: tuple[str, str]
) -> Iterator[Apart]:
    """Differences relative to what the step has changed: a moving average is moved by little."""
    tolerance = max(TOLERANCE, EPSILONS * epsilon(model))
    names = [variable.path for variable in model.non_trainable_variables]
    for name, before, a, b in zip(names, states, mine.states, truth.states, strict=False):
        rounding = ROUNDINGS * float(np.finfo(b.dtype).eps) * _norm(b, np.zeros_like(b)) if b.dtype.kind == "f" else 0.0
        error = max(0.0, _norm(a, b) - rounding) / (_norm(b, before) + TINY)
        words = f"what the forward pass makes of {name} differs by {error:.2g} of its change between {_between(ways)}"
        yield Apart(error / tolerance, words, "state")


def _metrics(model: Any, mine: StepResult, truth: StepResult, ways: tuple[str, str]) -> Iterator[Apart]:
    tolerance = max(TOLERANCE, EPSILONS * epsilon(model))
    for name, b in truth.metrics.items():
        a = mine.metrics.get(name, float("nan"))
        error = float(np.max(_distance(a, b) / (np.abs(np.nan_to_num(b)) + METRIC_SCALE), initial=0.0))
        words = f"the metric {name} is {_short(a)} {ways[0]} and {_short(b)} {ways[1]}"
        yield Apart(error / tolerance, words, "metric")


def _between(ways: tuple[str, str]) -> str:
    return " and ".join(way.removeprefix("on ").removeprefix("in ") for way in ways)


def _short(value: Any) -> str:
    return f"{value:.6g}" if np.ndim(value) == 0 else str(np.round(value, 6).tolist())


def _distance(a: Any, b: Any) -> Any:
    """Return |a - b| of each number; 0 where both are the same non-finite one, infinite where one is finite alone."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape:
        return np.array(np.inf)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    return np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.where(np.isfinite(apart), apart, np.inf))


def _norm(a: np.ndarray, b: np.ndarray) -> float:
    """Return the norm of the difference."""
    return float(np.linalg.norm(_distance(a, b)))
