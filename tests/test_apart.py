"""How far two computations of a step are apart: what rounding may make of it, and what it may not."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kmgpu.backends.adapter import StepResult
from kmgpu.backends.common import apart

WAYS = ("on shares of it", "on the whole")
LAYER = SimpleNamespace(name="adds", compute_dtype="float32", _losses=[])
MODEL = SimpleNamespace(
    trainable_variables=[SimpleNamespace(path="dense/kernel"), SimpleNamespace(path="dense/bias")],
    non_trainable_variables=[SimpleNamespace(path="norm/moving")],
    _flatten_layers=lambda: [LAYER],
)
BEFORE = [np.ones(3, np.float32)]


def result(loss: float = 2.0, gradient: float = 1.0, state: float = 1.01, score: float = 0.5) -> StepResult:
    gradients = [np.full(4, gradient, np.float32), np.full(2, 1e-9, np.float32)]
    return StepResult(loss, gradients, [np.full(3, state, np.float32)], {"score": score})


def found(mine: StepResult, truth: StepResult | None = None) -> apart.Apart:
    return apart.steps(MODEL, BEFORE, mine, truth or result(), WAYS)


def test_what_rounding_makes_of_a_step_is_no_difference():
    assert found(result(2.0 + 1e-6, 1 + 1e-6, 1.01 + 2e-7, 0.5 + 1e-6)).times < 1


@pytest.mark.parametrize(
    ("mine", "kind", "words"),
    [
        (result(loss=2.001), "loss", "the loss is 2.001 on shares of it and 2 on the whole"),
        (result(gradient=1.002), "gradient", "the gradient of dense/kernel differs by 0.002 between shares of it and"),
        (result(state=1.0101), "state", "what the forward pass makes of norm/moving differs by 0.0"),
        (result(score=0.501), "metric", "the metric score is 0.501 on shares of it and 0.5 on the whole"),
        (result(loss=float("nan")), "loss", "the loss is nan on shares of it"),
    ],
)
def test_the_largest_difference_is_named(mine, kind, words):
    largest = found(mine)
    assert largest.times > 1 and largest.kind == kind
    assert largest.what.startswith(words)


def test_a_gradient_that_is_zero_but_for_rounding_is_compared_on_the_scale_of_all():
    mine = result()
    mine.gradients[1][:] = 3e-8
    assert found(mine).times < 1


def test_steps_without_any_gradient_agree():
    nothing = [np.zeros(4, np.float32), np.zeros(2, np.float32)]
    still = StepResult(0.0, nothing, BEFORE, {"score": 0.0})
    assert found(still, still).times == 0


def test_scores_that_are_not_numbers_in_both_agree():
    score = {"score": [float("nan"), 1.0]}
    mine = StepResult(2.0, result().gradients, result().states, score)
    assert found(mine, mine).times == 0
