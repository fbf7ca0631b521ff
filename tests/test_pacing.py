"""Wishes that pace a run, and the learning rates that follow from them."""

from __future__ import annotations

import pytest

from kmgpu import pacing
from kmgpu.errors import UsageError
from kmgpu.worker.rates import Rate, factor


@pytest.mark.parametrize(
    ("duration", "seconds"), [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), (12, 12)]
)
def test_a_duration_is_read_in_its_units(duration, seconds):
    assert pacing.seconds(duration) == seconds


@pytest.mark.parametrize("duration", ["", "30", "m", "2 h", "-1h", "1h+", "0s", 0, -5, True, float("inf")])
def test_what_is_no_duration_is_refused_with_examples(duration):
    with pytest.raises(UsageError, match="such as 90s, 30m, 2h"):
        pacing.seconds(duration)


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"max_steps": 0}, "--max-steps is 0"),
        ({"steps_per_epoch": 1.5}, "--steps-per-epoch is 1.5"),
        ({"validate_every": True}, "--validate-every is True"),
        ({"warmup_epochs": -1}, "--warmup-epochs is -1"),
        ({"scale_lr": "linaer"}, "did you mean 'linear'"),
        ({"on_nan": "ignore"}, "it is stop or continue"),
    ],
)
def test_a_wish_that_cannot_be_is_refused_in_words(wish, sentence):
    with pytest.raises(UsageError) as error:
        pacing.pace(**wish)
    assert sentence in str(error.value)


def test_without_a_wish_a_run_is_as_the_recipe_says():
    assert set(pacing.pace().values()) == {None}


def test_the_rate_grows_with_the_batch_by_the_rule():
    assert [factor(rule, 256, 64) for rule in ("none", "linear", "sqrt")] == [1, 4, 2]
    assert factor("linear", 32, 64) == 0.5


def test_a_scaled_rate_is_warmed_up_from_the_recipes_in_equal_strides():
    rate = Rate(0.1, factor=4.0, warmup=3)
    assert [rate.at(update) for update in range(5)] == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4])
    assert [Rate(0.1, factor=4.0).at(update) for update in range(2)] == pytest.approx([0.4, 0.4])


def test_an_unscaled_rate_is_warmed_up_from_zero():
    assert [Rate(0.3, warmup=3).at(update) for update in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.3])
