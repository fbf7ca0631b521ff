"""Keras's own fit, which studies time beside the loop, is that of Keras, from the same weights over the same rows."""

from __future__ import annotations

import cells
import numpy as np
import pytest
from safetensors.numpy import save_file

from kmgpu import training
from kmgpu.backends import BACKENDS, find
from kmgpu.errors import UsageError
from kmgpu.report import runs

pytestmark = pytest.mark.workers
R0 = cells.RECIPES / "r0.py"


@pytest.fixture
def fit(tmp_path):
    """A run of Keras's fit on R0, from the weight 0."""

    def run(backend: str, devices: int, **wishes: object) -> runs.Run:
        save_file({"0000/sequential/dense/kernel": np.zeros((1, 1), np.float32)}, tmp_path / "zero.safetensors")
        out = tmp_path / f"{backend}-{devices}"
        training.fit(
            R0, backend=backend, devices=devices, device_kind="cpu", out=out,
            initial_weights=tmp_path / "zero.safetensors", **wishes,
        )  # fmt: skip
        return runs.load(out)

    return run


@pytest.mark.parametrize("backend", BACKENDS)
def test_fit_trains_from_the_weights_it_is_handed_on_the_devices_it_can_use_and_is_timed(fit, backend):
    devices = 2 if find(backend).fits_on_several else 1
    run = fit(backend, devices, settings={"rows": 16}, max_steps=13)
    assert run.ok and run.job.mode == "fit" and len(run.start["devices"]) == devices
    assert run.start["initial_weights"] == run.hashes["initial_weights"] != run.hashes["final_weights"][0]
    timings = run.outcome["timings"]
    assert (timings["steady_steps"], timings["steady_samples"]) == (2 * 4, 2 * 16), "the first epoch compiles"
    assert all(seconds > 0 for seconds in timings["step_seconds"])
    losses = [epoch["loss"] for epoch in run.history]
    assert losses == pytest.approx(by_hand(epochs=3), rel=1e-5)


def by_hand(epochs: int) -> list[float]:
    """The losses of R0 over 16 rows in batches of four, as fit reports them: means over the rows of an epoch."""
    weight, losses = 0.0, []
    for _ in range(epochs):
        total = 0.0
        for start in range(0, 16, 4):
            y = np.arange(start, start + 4)
            total += float(np.sum((weight - y) ** 2))
            weight += 0.5 * (float(y.mean()) - weight)
        losses.append(total / 16)
    return losses


def test_what_fit_cannot_do_is_said(fit, tmp_path):
    with pytest.raises(UsageError, match="Keras's fit on torch uses one device, and --devices is 2"):
        fit("torch", 2)
    assert not (tmp_path / "torch-2").exists()
    with pytest.raises(UsageError, match="accumulates 3 micro-batches, which Keras's fit does not"):
        training.fit(
            cells.RECIPES / "accumulated.py", backend="torch", devices=1, device_kind="cpu", out=tmp_path / "a"
        )
