"""What paces or ends a run, on every backend: limits, validation, learning rates, a loss that is not a number."""

from __future__ import annotations

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers
on_two = pytest.mark.parametrize(("backend", "devices"), [(backend, 2) for backend in BACKENDS])

for name, fields in {
    "whole": {"epochs": 4},
    "limited": {"max_steps": 3, "epochs": 4, "validate_every": 2, "checkpoints": {"on_stop": True}},
    "after the limit": {"epochs": 4, "checkpoints": {}, "resume": "pace: limited-2/checkpoints/step-00000003"},
    "short epochs": {"steps_per_epoch": 1, "epochs": 3, "validate_every": 2},
    "no time": {"max_seconds": 1e-6, "epochs": 4},
    "scaled": {"batch_size": 8, "scale_lr": "linear", "warmup_epochs": 2, "epochs": 4},
    "rooted": {"batch_size": 8, "scale_lr": "sqrt", "epochs": 2, "settings": {"steps_per_execution": 2}},
    "goes on": {"settings": {"validation_rows": 4, "bad_row": 3}, "on_nan": "continue", "epochs": 2},
}.items():
    given = {"settings": {"validation_rows": 4}} | fields
    cells.add(f"pace: {name}", "r0", (2,), **given)


def by_hand(rates: list[float], batches: list[float]) -> float:
    """The weight of R0 after updates with these rates, on batches with these mean targets."""
    weight = 0.0
    for rate, mean in zip(rates, batches, strict=True):
        weight += 2 * rate * (mean - weight)
    return weight


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-5)


@on_two
def test_max_steps_ends_a_run_in_the_middle_of_an_epoch_which_is_validated(ran, backend, devices):
    run = ran(backend, "pace: limited", devices)
    assert run.weight == close(by_hand([0.25] * 3, [1.5, 5.5, 1.5]))
    assert [sorted(epoch) for epoch in run.history] == [["loss"], ["loss", "val_loss"]]
    assert run.outcome["status"] == "ok"
    assert "--max-steps 3 ended the training after 3 steps, in epoch 2 of 4" in run.outcome["notes"]


@on_two
def test_a_run_that_a_limit_has_ended_goes_on_from_the_very_step(ran, backend, devices):
    run, whole = ran(backend, "pace: after the limit", devices), ran(backend, "pace: whole", devices)
    assert run.losses == whole.losses[3:] and run.outcome["hashes"] == whole.outcome["hashes"]
    assert [epoch["loss"] for epoch in run.history] == [epoch["loss"] for epoch in whole.history]


@on_two
def test_short_epochs_begin_anew_and_every_other_is_validated_and_the_last(ran, backend, devices):
    run = ran(backend, "pace: short epochs", devices)
    assert run.weight == close(by_hand([0.25] * 3, [1.5] * 3))
    assert ["val_loss" in epoch for epoch in run.history] == [False, True, True]


@on_two
def test_max_time_ends_a_run_at_the_next_look(ran, backend, devices):
    run = ran(backend, "pace: no time", devices)
    assert len(run.losses) == 1 and len(run.history) == 1
    assert any("--max-time" in note for note in run.outcome["notes"])


@on_two
def test_a_scaled_rate_is_warmed_up_at_each_step_and_stated(ran, backend, devices):
    run = ran(backend, "pace: scaled", devices)
    assert run.weight == close(by_hand([0.375, 0.5, 0.5, 0.5], [3.5] * 4))
    shown = "0.5 by --scale-lr linear for a batch of 8 instead of 4, warm-up over 2 steps"
    assert run.outcome["start"]["rate_rule"] == shown and f"learning rate {shown}" in run.shown
    run = ran(backend, "pace: rooted", devices)
    assert run.weight == close(by_hand([0.25 * np.sqrt(2)] * 2, [3.5] * 2))


@on_two
def test_a_run_that_is_told_to_goes_on_without_a_number(ran, backend, devices):
    run = ran(backend, "pace: goes on", devices)
    assert len(run.losses) == 4 and not np.isfinite(run.losses).any() and not np.isfinite(run.weight)
    assert [note for note in run.outcome["notes"] if "the loss is nan in step 0" in note]


@on_two
def test_what_compile_says_of_the_way_to_run_is_said_to_have_no_effect(ran, backend, devices):
    run = ran(backend, "pace: rooted", devices)
    assert [note for note in run.outcome["notes"] if note.startswith("steps_per_execution=2 of model.compile has no")]
    assert not any("of model.compile" in note for note in ran(backend, "pace: scaled", devices).outcome["notes"])
