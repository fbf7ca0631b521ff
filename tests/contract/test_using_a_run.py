"""A trained run is evaluated and predicts on every backend and number of devices, whoever has trained it."""

from __future__ import annotations

import cells
import numpy as np
import pytest

from kmgpu import using
from kmgpu.backends import BACKENDS
from kmgpu.report import runs
from kmgpu.rundir import RunDir, read_json

pytestmark = [
    pytest.mark.workers,
    pytest.mark.parametrize("devices", cells.DEVICES),
    pytest.mark.parametrize("backend", BACKENDS),
]

TRAINED = "trained-to-be-used"
cells.add(TRAINED, "conv", devices=(2,), settings={"rows": 24, "epochs": 2}, seed=5)
cells.add("two-inputs-to-be-used", "two_inputs", devices=(1,), backends=("jax",))

ROWS = 7  # no number of devices divides it, nor the batch of 4 it


@pytest.fixture(scope="module")
def used(ran, tmp_path_factory):
    """Run directories of all evaluations and predictions, one launch for each backend that makes them."""
    folder = tmp_path_factory.mktemp("used")
    random = np.random.default_rng(0)
    np.save(folder / "images.npy", random.normal(size=(ROWS, 8, 8, 1)))
    np.savez(folder / "two.npz", b=np.full((ROWS, 1), 2.0), a=np.arange(ROWS)[:, None])
    two = runs.load(ran("jax", "two-inputs-to-be-used", 1).rundir.path)

    def run(backend: str) -> dict:
        made = {}
        for devices in cells.DEVICES:
            for trainer in BACKENDS:
                trained = runs.load(ran(trainer, TRAINED, 2).rundir.path)
                made["evaluate", trainer, devices] = trained, {"data": "validation"}
            options = {"input": str(folder / "images.npy"), "output": str(folder / f"{backend}-{devices}.npy")}
            made["predict", "images", devices] = runs.load(ran("jax", TRAINED, 2).rundir.path), options
            options = {"input": str(folder / "two.npz"), "output": str(folder / f"{backend}-{devices}.npz")}
            made["predict", "two", devices] = two, options
        rundirs = {}
        for key, (trained, options) in made.items():
            job = using._job(trained, key[0], options, backend, key[2], "cpu", 4, None)
            rundirs[key] = RunDir.create(folder / f"{backend}-{'-'.join(map(str, key))}", job)
        error, _ = cells.launch(list(rundirs.values()))
        assert error is None, error
        return rundirs

    return folder, {backend: run(backend) for backend in BACKENDS}


@pytest.mark.parametrize("trainer", BACKENDS)
def test_an_evaluation_gives_the_runs_own_scores(ran, used, backend, devices, trainer):
    run = ran(trainer, TRAINED, 2)
    record = read_json(used[1][backend]["evaluate", trainer, devices].path / "evaluation.json")
    own = {name.removeprefix("val_"): value for name, value in run.history[-1].items() if name.startswith("val_")}
    assert record["rows"] == 11 and record["metrics"] == pytest.approx(own, rel=1e-6)
    assert record["weights"] == run.outcome["hashes"]["final_weights"][0]


def test_predictions_are_one_row_for_each_row_in_order(used, backend, devices):
    folder, _ = used
    outputs, reference = np.load(folder / f"{backend}-{devices}.npy"), np.load(folder / "jax-1.npy")
    assert outputs.shape == (ROWS, 3) and outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, reference, rtol=1e-5, atol=1e-6)
    assert len({row.tobytes() for row in outputs}) == ROWS


def test_inputs_come_and_outputs_go_by_their_names(ran, used, backend, devices):
    folder, _ = used
    weight = ran("jax", "two-inputs-to-be-used", 1).weight
    with np.load(folder / f"{backend}-{devices}.npz") as outputs:
        assert outputs.files == ["output"]
        np.testing.assert_allclose(outputs["output"][:, 0], weight * (np.arange(ROWS) + 2) / 2, rtol=1e-6)


def test_nothing_half_written_is_left(used, backend, devices):
    folder, rundirs = used
    assert not [path for path in folder.rglob(".*") if path.is_file()]
    assert all(rundir.outcome()["status"] == "ok" for rundir in rundirs[backend].values())
