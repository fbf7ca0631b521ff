"""Each precision is what a run says it is, on every backend, and devices do not change what is computed in it."""

from __future__ import annotations

import io
import zipfile

import cells
import h5py
import numpy as np
import pytest

from kmgpu import training
from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers

START = cells.initial_weights({
    "conv2d/kernel": (3, 3, 1, 4), "conv2d/bias": (4,), "conv2d_1/kernel": (3, 3, 4, 6), "conv2d_1/bias": (6,),
    "dense/kernel": (24, 3), "dense/bias": (3,),
})  # fmt: skip
# Of each precision: dtype policy, types of layers and weights, bits of a product, tolerance of a loss after 4 steps.
EXPECTED = {
    "float64": ("float64", "float64", "float64", 52, 1e-12),
    "float32": ("float32", "float32", "float32", 23, 1e-5),
    "float16": ("mixed_float16", "float16", "float32", 10, 2 * 2.0**-10),
    "bfloat16": ("mixed_bfloat16", "bfloat16", "float32", 7, 2 * 2.0**-7),
}
DEVICES = (1, 2)

for precision in EXPECTED:
    cells.add(
        f"in-{precision}", "conv", devices=DEVICES, settings={"rows": 45, "epochs": 1}, initial_weights=START, seed=3,
        precision=precision,
    )  # fmt: skip
cells.add("overflow", "overflow", precision="float16")

everywhere = pytest.mark.parametrize("backend", BACKENDS)


@everywhere
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("precision", EXPECTED)
def test_a_run_says_and_has_measured_in_what_it_computes(ran, precision, backend, devices):
    start = ran(backend, f"in-{precision}", devices).outcome["start"]
    policy, layers, weights, bits, _ = EXPECTED[precision]
    assert start["precision"] == {"dtype": policy, "tf32": False}
    assert start["numerics"] == {
        "layers": layers, "weights": weights, "loss_scaling": precision == "float16", "product_bits": bits,
        "convolution_bits": bits,
    }  # fmt: skip


@everywhere
@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("precision", EXPECTED)
def test_devices_share_a_batch_and_agree_to_what_the_precision_keeps(ran, precision, backend, devices):
    reference, run = ran("jax", f"in-{precision}", 1), ran(backend, f"in-{precision}", devices)
    assert not run.outcome["notes"], "the check of shares against the whole batch must not mistake rounding for a fault"
    np.testing.assert_allclose(run.losses, reference.losses, rtol=EXPECTED[precision][-1])
    assert {array.dtype.name for array in run.weights.values()} == {EXPECTED[precision][2]}


@everywhere
@pytest.mark.parametrize("devices", cells.DEVICES)
def test_an_overflow_on_one_device_skips_the_step_on_all_and_halves_the_scale_once(ran, backend, devices):
    run = ran(backend, "overflow", devices)
    assert run.weight == 1.125  # 0, 0.75, 1.125: the second and third of three steps; all is exact in float16
    hashes = run.outcome["hashes"]["final_weights"]
    assert len(hashes) == devices and len(set(hashes)) == 1
    with zipfile.ZipFile(run.rundir.model_file) as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content) as file:
        scalars: list[float] = []
        file["optimizer"].visititems(
            lambda name, item: scalars.append(float(item[()])) if getattr(item, "shape", None) == () else None
        )
    assert 2.0**14 in scalars and 2.0**15 not in scalars


@everywhere
def test_two_deterministic_runs_end_with_the_same_bits(backend, tmp_path):
    ended = []
    for number in range(2):
        with cells.time_limit(120):
            result = training.train(
                cells.RECIPES / "conv.py", backend=backend, devices=2, device_kind="cpu", deterministic=True, seed=1,
                settings={"smooth": False, "epochs": 2}, out=tmp_path / str(number),
            )  # fmt: skip
        assert result is not None and result.outcome["start"]["deterministic"] is True
        ended.append((result.outcome["hashes"], result.history))
    assert ended[0] == ended[1]
