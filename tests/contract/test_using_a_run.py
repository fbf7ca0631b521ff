"""A trained run is evaluated and predicts on every backend and number of devices, whoever has trained it."""

from __future__ import annotations

import json
from importlib.util import find_spec

import cells
import numpy as np
import pytest

from kmgpu import exporting, using
from kmgpu.backends import BACKENDS
from kmgpu.report import runs
from kmgpu.rundir import RunDir, read_json

pytestmark = pytest.mark.workers
everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)

TRAINED = "trained-to-be-used"
SAVED = {"every": {"epochs": 1}, "best": {"metric": "val_loss", "mode": "min"}}  # which is that of the first epoch
cells.add(TRAINED, "conv", devices=(2,), settings={"rows": 24, "epochs": 2}, seed=5, checkpoints=SAVED)
cells.add("two-inputs-to-be-used", "two_inputs", devices=(1,), backends=("jax",))

HAS_ONNX = all(find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))  # for torch, in this interpreter
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
        own = runs.load(ran(backend, TRAINED, 2).rundir.path)
        for kind in ("weights", "savedmodel", *(["onnx"] if HAS_ONNX else [])):
            if exporting.FORMATS[kind].backend in (None, backend):
                output = folder / f"{backend}-{kind}{exporting.FORMATS[kind].suffix}"
                made["export", kind, 1] = own, {"format": kind, "output": str(output)}
        made["evaluate", "best", 2] = own, {"data": "validation"}
        for kind in ("weights", "keras"):
            output = folder / f"{backend}-best{exporting.FORMATS[kind].suffix}"
            made["export", f"best {kind}", 1] = own, {"format": kind, "output": str(output)}
        rundirs = {}
        for key, (trained, options) in made.items():
            job = using.make_job(
                trained, key[0], options, backend=backend, devices=key[2], device_kind="cpu", batch_size=4,
                checkpoint="best" if "best" in key[1] else None,
            )  # fmt: skip
            rundirs[key] = RunDir.create(folder / f"{backend}-{'-'.join(map(str, key))}", job)
        error, _ = cells.launch(list(rundirs.values()))
        assert error is None, error
        return rundirs

    return folder, {backend: run(backend) for backend in BACKENDS}


@everywhere
@pytest.mark.parametrize("trainer", BACKENDS)
def test_an_evaluation_gives_the_runs_own_scores(ran, used, backend, devices, trainer):
    run = ran(trainer, TRAINED, 2)
    record = read_json(used[1][backend]["evaluate", trainer, devices].path / "evaluation.json")
    own = {name.removeprefix("val_"): value for name, value in run.history[-1].items() if name.startswith("val_")}
    assert record["rows"] == 11 and record["metrics"] == pytest.approx(own, rel=1e-6)
    assert record["weights"] == run.outcome["hashes"]["final_weights"][0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_evaluation_of_a_checkpoint_gives_the_scores_of_its_epoch(ran, used, backend):
    first, last = ran(backend, TRAINED, 2).history
    assert first["val_loss"] < last["val_loss"]
    metrics = read_json(used[1][backend]["evaluate", "best", 2].path / "evaluation.json")["metrics"]
    assert metrics == pytest.approx({name: first[f"val_{name}"] for name in metrics}, rel=1e-6)


@everywhere
def test_predictions_are_one_row_for_each_row_in_order(used, backend, devices):
    folder, _ = used
    outputs, reference = np.load(folder / f"{backend}-{devices}.npy"), np.load(folder / "jax-1.npy")
    assert outputs.shape == (ROWS, 3) and outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, reference, rtol=1e-5, atol=1e-6)
    assert len({row.tobytes() for row in outputs}) == ROWS


@everywhere
def test_inputs_come_and_outputs_go_by_their_names(ran, used, backend, devices):
    folder, _ = used
    weight = ran("jax", "two-inputs-to-be-used", 1).weight
    with np.load(folder / f"{backend}-{devices}.npz") as outputs:
        assert outputs.files == ["output"]
        np.testing.assert_allclose(outputs["output"][:, 0], weight * (np.arange(ROWS) + 2) / 2, rtol=1e-6)


@everywhere
def test_nothing_half_written_is_left(used, backend, devices):
    folder, rundirs = used
    assert not [path for path in folder.rglob(".*") if path.is_file()]
    assert all(rundir.outcome()["status"] == "ok" for rundir in rundirs[backend].values())


LOAD = """
import json, keras, numpy as np, tensorflow as tf
paths = json.loads(open("paths.json").read())
x = np.load("images.npy").astype("float32")
apart = {}
for backend, (model, weights) in paths["weights"].items():
    truth = keras.models.load_model(model).predict(x, verbose=0)
    other = keras.models.clone_model(keras.models.load_model(model))
    other.load_weights(weights)
    apart[f"weights {backend}"] = float(np.abs(other.predict(x, verbose=0) - truth).max())
    assert np.abs(truth).max() > 0.01
for backend, (model, best, weights) in paths["best"].items():
    saved = keras.models.load_model(best)
    assert int(saved.optimizer.iterations) > 0
    end = keras.models.load_model(model)
    assert int(end.optimizer.iterations) == 2 * int(saved.optimizer.iterations)
    other = keras.models.clone_model(end)
    other.load_weights(weights)
    apart[f"best {backend}"] = float(np.abs(other.predict(x, verbose=0) - saved.predict(x, verbose=0)).max())
    assert np.abs(end.predict(x, verbose=0) - saved.predict(x, verbose=0)).max() > 0.001
truth = keras.models.load_model(paths["savedmodel"][0]).predict(x, verbose=0)
served = tf.saved_model.load(paths["savedmodel"][1])
apart["savedmodel"] = float(np.abs(served.serve(x).numpy() - truth).max())
apart["a batch of another size"] = float(np.abs(served.serve(x[:3]).numpy() - truth[:3]).max())
print(json.dumps(apart))
"""


def test_exports_are_loaded_by_plain_keras_and_tensorflow_and_give_the_same(ran, used, tmp_path):
    folder, _ = used
    models = {backend: str(ran(backend, TRAINED, 2).rundir.model_file) for backend in BACKENDS}
    paths = {
        "weights": {backend: (models[backend], str(folder / f"{backend}-weights.weights.h5")) for backend in BACKENDS},
        "best": {
            backend: (models[backend], *(str(folder / f"{backend}-best{end}") for end in (".keras", ".weights.h5")))
            for backend in BACKENDS
        },
        "savedmodel": (models["tensorflow"], str(folder / "tensorflow-savedmodel")),
    }
    (tmp_path / "paths.json").write_text(json.dumps(paths))
    (tmp_path / "images.npy").write_bytes((folder / "images.npy").read_bytes())
    answer = cells.python("-c", LOAD, folder=tmp_path, limit=120, KERAS_BACKEND="tensorflow")
    assert answer.code == 0, answer.err[-3000:]
    apart = json.loads(answer.out.splitlines()[-1])
    assert len(apart) == 8 and max(apart.values()) < 1e-6, apart


INFER = """
import keras, numpy as np, onnxruntime, sys
x = np.load("images.npy").astype("float32")
session = onnxruntime.InferenceSession(sys.argv[2])
(name,) = [each.name for each in session.get_inputs()]
truth = keras.models.load_model(sys.argv[1]).predict(x, verbose=0)
for rows in (len(x), 3):
    print(float(np.abs(session.run(None, {name: x[:rows]})[0] - truth[:rows]).max()))
"""


@pytest.mark.skipif(not HAS_ONNX, reason="an export to ONNX needs onnx and onnxscript, and this test onnxruntime")
def test_an_onnx_export_gives_the_same_in_onnx_runtime_for_batches_of_any_size(ran, used):
    folder, _ = used
    paths = str(ran("torch", TRAINED, 2).rundir.model_file), str(folder / "torch-onnx.onnx")
    answer = cells.python("-c", INFER, *paths, folder=folder, limit=120, KERAS_BACKEND="torch")
    assert answer.code == 0, answer.err[-3000:]
    apart = [float(line) for line in answer.out.split()]
    assert len(apart) == 2 and max(apart) < 1e-5


def test_a_keras_export_is_the_runs_model_with_its_optimizer(ran, tmp_path):
    rundir = ran("jax", TRAINED, 2).rundir
    path = exporting.export(rundir.path, "keras", output=tmp_path / "mine.keras")
    assert path.read_bytes() == rundir.model_file.read_bytes()
