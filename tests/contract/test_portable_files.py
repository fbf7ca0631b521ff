"""The files of a run are plain Keras: any backend loads them, evaluates the same and trains on."""

from __future__ import annotations

import json

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS
from kmgpu.training import TrainResult

pytestmark = pytest.mark.workers

SMOOTH, ADAM = "smooth-saved", "adam"
STEPS = 4

cells.add(SMOOTH, "conv", devices=(2,), settings={"rows": 24, "epochs": 2}, seed=3)
cells.add(ADAM, "r0", devices=(4,), settings={"optimizer": "Adam", "learning_rate": 0.1, "epochs": 2})

LOAD = """
import json, sys, keras, numpy as np
data = np.load("data.npz")
told = {}

def numbers(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable)).ravel().tolist()

for key, path in json.loads(open("models.json").read()).items():
    model = keras.models.load_model(path)
    told[key] = {
        "weights": [[variable.path, numbers(variable)] for variable in model.weights],
        "optimizer": [numbers(variable) for variable in model.optimizer.variables],
    }
    x, y = (data["x"], data["y"]) if "smooth" in key else (np.ones((8, 1), "float32"), np.arange(8.0)[:, None])
    told[key]["scores"] = np.ravel(model.evaluate(x, y, batch_size=4, verbose=0)).tolist()
    told[key]["next"] = float(np.ravel(model.train_on_batch(x[:4], y[:4]))[0])
json.dump({"backend": keras.backend.backend(), "models": told}, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def loaded(ran, tmp_path_factory):
    """What plain Keras on each backend says of the models that each backend has saved."""
    folder = tmp_path_factory.mktemp("loaded")
    models = {
        f"{name}/{backend}": str(ran(backend, name, devices).rundir.model_file)
        for backend in BACKENDS
        for name, devices in ((SMOOTH, 2), (ADAM, 4))
    }
    (folder / "models.json").write_text(json.dumps(models))
    x, y = images()
    np.savez(folder / "data.npz", x=x, y=y)
    told = {}
    for backend in BACKENDS:
        answer = cells.python("-c", LOAD, f"{backend}.json", folder=folder, KERAS_BACKEND=backend)
        assert answer.code == 0, answer.err[-3000:]
        told[backend] = json.loads((folder / f"{backend}.json").read_text())
        assert told[backend]["backend"] == backend
    return {backend: answer["models"] for backend, answer in told.items()}


def images() -> tuple[np.ndarray, np.ndarray]:
    """The validation rows of the recipe conv."""
    random = np.random.default_rng(2)
    return random.normal(size=(11, 8, 8, 1)).astype(np.float32), random.integers(0, 3, 11).astype(np.int32)


pairs = pytest.mark.parametrize(("saved", "loader"), [(saved, loader) for saved in BACKENDS for loader in BACKENDS])


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_weights_of_a_result_are_in_the_models_order(ran, backend):
    run = ran(backend, SMOOTH, 2)
    names = list(TrainResult(run.rundir.path, run.outcome).weights)
    layers = ("conv2d", "conv2d_1", "dense")
    assert names == [f"sequential/{layer}/{weight}" for layer in layers for weight in ("kernel", "bias")]


@pairs
def test_a_model_file_evaluates_the_same_in_plain_keras_on_any_backend(ran, loaded, saved, loader):
    run, told = ran(saved, SMOOTH, 2), loaded[loader][f"{SMOOTH}/{saved}"]
    last = run.history[-1]
    assert told["scores"] == pytest.approx([last["val_loss"], last["val_accuracy"]], rel=1e-5)


@pairs
@pytest.mark.parametrize(("name", "devices"), [(SMOOTH, 2), (ADAM, 4)])
def test_a_model_file_holds_the_trained_weights_bit_for_bit_under_plain_names(
    ran, loaded, saved, loader, name, devices
):
    run, told = ran(saved, name, devices), loaded[loader][f"{name}/{saved}"]
    assert len(told["weights"]) == len(run.weights)
    for path, values in told["weights"]:  # Keras leaves out the name of the model in a model that it has loaded
        np.testing.assert_array_equal(np.array(values, np.float32), run.weights[f"sequential/{path}"].ravel())


@pairs
def test_a_model_file_holds_the_optimizers_state_of_a_run_on_several_devices(ran, loaded, saved, loader):
    weight, momentum, velocity = adam()
    assert ran(saved, ADAM, 4).weight == pytest.approx(weight, rel=1e-5)
    told = loaded[loader][f"{ADAM}/{saved}"]
    # Read before the one step that the loader makes: iterations, learning rate, momentum, velocity.
    iterations, rate, *slots = told["optimizer"]
    assert iterations == [STEPS] and rate == pytest.approx([0.1])
    assert slots == [pytest.approx([momentum], rel=1e-4), pytest.approx([velocity], rel=1e-4)]


@pytest.mark.parametrize("loader", BACKENDS)
def test_the_optimizers_state_is_the_same_bits_wherever_it_is_loaded(loaded, loader):
    for saved in BACKENDS:
        key = f"{ADAM}/{saved}"
        for mine, other in zip(loaded[loader][key]["optimizer"], loaded[saved][key]["optimizer"], strict=True):
            np.testing.assert_array_equal(mine, other)


@pairs
def test_training_goes_on_in_plain_keras(loaded, saved, loader):
    for name in (SMOOTH, ADAM):
        key = f"{name}/{saved}"
        assert loaded[loader][key]["next"] == pytest.approx(loaded["jax"][key]["next"], rel=1e-5)


def adam() -> tuple[float, float, float]:
    """Weight, momentum and velocity after the steps of R0 with Adam as Keras has it (keras/src/optimizers/adam.py)."""
    weight = momentum = velocity = 0.0
    for step, mean in enumerate([1.5, 5.5, 1.5, 5.5], 1):
        gradient = 2 * (weight - mean)
        momentum += (gradient - momentum) * 0.1
        velocity += (gradient**2 - velocity) * 0.001
        weight -= momentum * 0.1 * (1 - 0.999**step) ** 0.5 / (1 - 0.9**step) / (velocity**0.5 + 1e-7)
    return weight, momentum, velocity
