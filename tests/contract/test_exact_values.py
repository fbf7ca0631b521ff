"""Runs whose result is known by hand: one weight, plain SGD, batches that no number of devices divides."""

from __future__ import annotations

import cells
import pytest

from kmgpu.backends import BACKENDS

pytestmark = [
    pytest.mark.workers,
    pytest.mark.parametrize("devices", cells.DEVICES),
    pytest.mark.parametrize("backend", BACKENDS),
]

cells.add("r0", "r0")
cells.add("r0-10", "r0", settings={"rows": 10, "validation_rows": 7})
cells.add("r0-9-by-3", "r0", settings={"rows": 9, "batch_size": 3})
cells.add("r0-one-row", "r0", settings={"rows": 1, "first": 2})
cells.add("scalar-loss", "scalar_loss")
cells.add("two-inputs", "two_inputs")


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-5)


def test_the_batch_size_is_global_and_the_learning_rate_is_not_scaled(ran, backend, devices):
    run = ran(backend, "r0", devices)
    assert run.weight == close(3.125)
    start = run.outcome["start"]
    assert start["batch_size"] == 4 and start["per_device_batch"] == [4 // devices] * devices
    assert start["steps_per_epoch"] == 2 and start["learning_rate"] == 0.25


def test_a_user_sees_global_batch_batch_per_device_steps_and_learning_rate(ran, backend, devices):
    shown = "\n".join(ran(backend, "r0", devices).shown)
    assert f"global batch 4, {4 // devices} per device, 2 steps per epoch, 1 epoch, 8 samples" in shown
    assert "learning rate 0.25, " in shown


def test_an_epochs_loss_is_the_mean_over_its_rows_when_the_last_batch_is_short(ran, backend, devices):
    run = ran(backend, "r0-10", devices)
    assert run.weight == close(5.8125)
    assert run.history[0]["loss"] == close(16.753125)
    assert run.history[0]["val_loss"] == close(4 + (5.8125 - 3) ** 2)


def test_a_batch_that_the_devices_do_not_divide_trains_exactly(ran, backend, devices):
    assert ran(backend, "r0-9-by-3", devices).weight == close(4.625)


def test_one_row_for_several_devices_trains_exactly_and_a_note_names_the_idle_devices(ran, backend, devices):
    run = ran(backend, "r0-one-row", devices)
    assert run.weight == close(1.0)
    assert run.history[0]["loss"] == close(4.0)
    idle = {1: [], 2: ["device 1 has no rows of its own"], 4: ["devices 1, 2, 3 have"]}[devices]
    notes = [note for note in run.outcome["notes"] if "no rows of" in note]
    assert len(notes) == len(idle) and all(words in note for words, note in zip(idle, notes, strict=True))


def test_a_loss_that_returns_one_number_is_not_scaled_by_the_devices(ran, backend, devices):
    run = ran(backend, "scalar-loss", devices)
    assert run.weight == close(5.8125)
    assert run.history[0]["loss"] == close(16.753125)


def test_a_dict_of_inputs_has_as_many_rows_as_its_arrays(ran, backend, devices):
    run = ran(backend, "two-inputs", devices)
    assert run.weight == close(5.8125)
    assert run.history[0]["loss"] == close(16.753125)


def test_all_devices_end_with_the_same_weights(ran, backend, devices):
    for name, count in ran.names(backend):
        if count == devices:
            run = ran(backend, name, devices)
            if run.rundir.job().mode == "train":
                hashes = run.outcome["hashes"]["final_weights"]
                assert len(hashes) == devices and len(set(hashes)) == 1, name
