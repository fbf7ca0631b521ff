"""What a recipe may choose of an update: how its gradient is reduced, and in how many batches it is computed."""

from __future__ import annotations

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers

START = cells.initial_weights({
    "conv2d/kernel": (3, 3, 1, 4), "conv2d/bias": (4,), "dense/kernel": (144, 3), "dense/bias": (3,),
})  # fmt: skip
PLAIN = {"normalise": False, "rows": 36, "batch_size": 16}  # batches of 16, 16 and 4 rows
RATE = 0.1

cells.add("mean", "policies", settings={**PLAIN, "learning_rate": RATE}, initial_weights=START)
for count in cells.DEVICES:
    settings = {**PLAIN, "learning_rate": RATE / count, "gradient_reduction": "sum"}
    cells.add("sum", "policies", (count,), settings=settings, initial_weights=START)
cells.add("policies-accumulated", "policies", settings={**PLAIN, "accumulate": 4}, initial_weights=START)
coupled = {**PLAIN, "accumulate": 2, "coupled": True}
cells.add("accumulated-coupled", "policies", settings=coupled, initial_weights=START)
cells.add("counted", "counted", (2, 4), settings={"path": "FOLDER/exchanged.txt"}, order=2)

PARAMETERS = 20 * 50 + 50 + 50 + 1  # of the recipe "counted"
SMALL = 64  # bytes: a loss, and the states of metrics

everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)


def assert_alike(run: cells.Ran, other: cells.Ran) -> None:
    np.testing.assert_allclose(run.losses, other.losses, rtol=1e-5)
    assert run.weights.keys() == other.weights.keys()
    for name, weight in other.weights.items():
        assert np.abs(run.weights[name] - weight).max() < 1e-5 * np.abs(weight).max(), name


@everywhere
def test_the_sum_of_gradients_with_the_rate_divided_is_their_mean(ran, backend, devices):
    assert_alike(ran(backend, "sum", devices), ran("jax", "mean", 1))
    assert_alike(ran(backend, "mean", devices), ran("jax", "mean", 1))


@everywhere
def test_a_run_says_in_its_first_lines_that_gradients_are_summed(ran, backend, devices):
    said = f"gradients are summed over the devices, not averaged: {devices} times that of the global batch"
    assert said in ran(backend, "sum", devices).shown
    assert ran(backend, "sum", devices).outcome["start"]["gradient_reduction"] == "sum"
    assert ran(backend, "mean", devices).outcome["start"]["gradient_reduction"] == "mean"


@everywhere
def test_an_accumulated_update_is_that_of_the_whole_batch(ran, backend, devices):
    assert_alike(ran(backend, "policies-accumulated", devices), ran("jax", "mean", 1))


@everywhere
def test_a_layer_that_couples_the_rows_of_a_batch_is_seen_and_computed_on_whole_batches(ran, backend, devices):
    run = ran(backend, "accumulated-coupled", devices)
    assert_alike(run, ran("jax", "accumulated-coupled", 1))
    notes = run.outcome["notes"]
    assert notes[0].startswith("an update in 2 pieces is not the update in one")
    assert (len(notes) > 1) == (devices > 1)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_travel_once_for_an_update_of_several_batches(ran, backend, devices):
    updates: list[list[int]] = []
    run = ran(backend, "counted", devices)
    for line in run.lines("exchanged.txt"):
        if line == "update":
            updates.append([])
        elif updates:  # before the first, steps were traced to compare shares with the whole
            updates[-1].append(int(line))
    updates = updates[: run.outcome["steps"]]  # the counting goes on in the cells that follow in these processes
    updates = [exchanges for exchanges in updates if exchanges]  # TensorFlow's is counted where it is traced, once
    assert updates
    for exchanges in updates[1:] or updates:  # with the first, DDP may take a step that is dropped
        (gradient,) = [size for size in exchanges if size > SMALL]
        assert 4 * PARAMETERS <= gradient <= 4 * PARAMETERS + SMALL
