"""Real layers: all backends on 1, 2 and 4 devices compute the same steps from the same initial weights."""

from __future__ import annotations

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers

START = cells.initial_weights({
    "conv2d/kernel": (3, 3, 1, 4), "conv2d/bias": (4,), "conv2d_1/kernel": (3, 3, 4, 6), "conv2d_1/bias": (6,),
    "dense/kernel": (24, 3), "dense/bias": (3,),
})  # fmt: skip
UNEVEN, FEWER = "smooth-uneven-last-batch", "smooth-fewer-rows-than-devices"

# 20 steps each. The last batch of an epoch has 9 rows, or 1, of 12.
cells.add(UNEVEN, "conv", settings={"rows": 45}, initial_weights=START, seed=3)
cells.add(FEWER, "conv", settings={"rows": 37}, initial_weights=START, seed=3)
cells.add("remat", "conv", devices=(1, 2), settings={"remat": True}, initial_weights=START, seed=3)
cells.add("kinks", "conv", settings={"smooth": False, "steps": 1, "epochs": 1}, initial_weights=START, seed=3)

everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)


def apart(run: cells.Ran, other: cells.Ran) -> float:
    """The largest difference of two runs' weights, relative to the largest weight of the same variable."""
    ones, twos = run.weights, other.weights
    assert ones.keys() == twos.keys()
    return max(float(np.abs(ones[name] - twos[name]).max() / np.abs(twos[name]).max()) for name in twos)


@everywhere
@pytest.mark.parametrize("name", [UNEVEN, FEWER])
def test_twenty_steps_of_a_smooth_model_agree(ran, name, backend, devices):
    reference, run = ran("jax", name, 1), ran(backend, name, devices)
    assert len(run.losses) == 20 and run.losses[-1] < run.losses[0]
    np.testing.assert_allclose(run.losses, reference.losses, rtol=1e-5)
    assert apart(run, reference) < 1e-5


@everywhere
@pytest.mark.parametrize("name", [UNEVEN, FEWER])
def test_evaluation_and_metrics_agree(ran, name, backend, devices):
    reference, run = ran("jax", name, 1), ran(backend, name, devices)
    assert len(run.history) == 5
    for epoch, expected in zip(run.history, reference.history, strict=True):
        assert epoch.keys() == expected.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
        for metric in expected:
            assert epoch[metric] == pytest.approx(expected[metric], rel=1e-5), metric
        # A count of rows, divided by all of them: each row was counted once.
        assert epoch["val_accuracy"] * 11 == pytest.approx(round(epoch["val_accuracy"] * 11), abs=1e-4)


@everywhere
def test_one_step_of_a_model_with_kinks_agrees(ran, backend, devices):
    reference, run = ran("jax", "kinks", 1), ran(backend, "kinks", devices)
    assert len(run.losses) == 1
    np.testing.assert_allclose(run.losses, reference.losses, rtol=1e-5)
    assert apart(run, reference) < 1e-5


@everywhere
@pytest.mark.parametrize("name", [UNEVEN, FEWER, "kinks"])
def test_all_start_from_the_same_weights_and_see_the_same_samples(ran, name, backend, devices):
    reference, run = ran("jax", name, 1), ran(backend, name, devices)
    for kind in ("initial_weights", "sample_order"):
        assert run.outcome["hashes"][kind] == reference.outcome["hashes"][kind] != None, kind  # noqa: E711


@pytest.mark.parametrize("devices", (1, 2))
@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_that_are_computed_again_for_the_gradient_give_the_same(ran, backend, devices):
    kept, run = ran(backend, UNEVEN, devices), ran(backend, "remat", devices)
    np.testing.assert_allclose(run.losses, kept.losses, rtol=1e-6)
    assert apart(run, kept) < 1e-6
