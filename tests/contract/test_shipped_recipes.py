"""The shipped recipes: their tiny presets take steps on every backend.

That three frameworks do the same with them, and what they reach after all of their epochs, is for `make test-all`.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import cells
import numpy as np
import pytest

from kmgpu import proving, recipe_card, training
from kmgpu.backends import BACKENDS
from kmgpu.data import datasets

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("benchmarks_recipes", ROOT / "benchmarks" / "recipes.py")
assert spec is not None and spec.loader is not None
benchmark = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)

NAMES = [card.name for card in recipe_card.shipped()]
STEPS = 3
DEVICES = {"torch": 2, "tensorflow": 1, "jax": 1}  # parity, below, looks at all combinations
for name in NAMES:
    steps = {"settings": benchmark.tiny(name), "max_steps": STEPS, "epochs": 1}
    cells.add(f"shipped-{name}", name, devices=(2,), backends=("torch",), **steps)
    cells.add(f"shipped-{name}", name, devices=(1,), backends=("tensorflow", "jax"), **steps)


@pytest.mark.workers
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shipped_recipe_takes_steps_on_every_backend(ran, backend, name):
    losses = ran(backend, f"shipped-{name}", DEVICES[backend]).losses
    assert len(losses) == STEPS and np.isfinite(losses).all()


def test_every_shipped_recipe_has_a_goal_or_says_that_it_learns_nothing():
    assert sorted(NAMES) == sorted({*benchmark.GOALS, *benchmark.LEARNS_NOTHING})


@pytest.mark.long
@pytest.mark.workers
@pytest.mark.parametrize("backend", BACKENDS)
def test_tiny_presets_reach_their_goals_with_three_seeds(backend, tmp_path):
    runs = [(name, seed) for name in sorted(benchmark.GOALS) for seed in benchmark.SEEDS]
    trained = benchmark.train(backend, runs, tmp_path)
    assert set(trained) == set(runs)
    missed = {
        run: trained[run].outcome()["history"][-1]
        for run in runs
        if not benchmark.GOALS[run[0]].reached(trained[run].outcome()["history"])
    }
    assert not missed


@pytest.mark.long
@pytest.mark.workers
@pytest.mark.parametrize("name", NAMES)
def test_tiny_presets_pass_parity(name, tmp_path):
    result = proving.parity(name, devices=(1, 2), steps=3, settings=benchmark.tiny(name), out=tmp_path / "parity")
    assert result.ok, result.sentence


RESNETS = """
import keras, numpy as np
from kmgpu import recipe_card
import importlib.util
spec = importlib.util.spec_from_file_location("resnet50", recipe_card.find_recipe("resnet50"))
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
mine = module.recipe(size="full").model
theirs = keras.applications.ResNet50(weights=None)
assert [w.shape for w in mine.weights] == [w.shape for w in theirs.weights]
random = np.random.default_rng(0)
for weight in theirs.weights:
    if "moving_variance" in weight.path:
        weight.assign(random.uniform(0.5, 1.5, weight.shape))
    elif "moving_mean" in weight.path or "beta" in weight.path:
        weight.assign(random.normal(0, 0.1, weight.shape))
mine.set_weights(theirs.get_weights())
images = random.uniform(size=(1, 224, 224, 3)).astype("float32")
logits, expected = mine(images, training=False), theirs(images, training=False)
np.testing.assert_allclose(keras.ops.softmax(logits), expected, rtol=1e-3, atol=1e-6)
print("same", float(keras.ops.std(logits)) > 1e-3)
"""


@pytest.mark.long
@pytest.mark.workers
def test_resnet50_computes_what_that_of_keras_applications_computes(tmp_path):
    answer = cells.python("-c", RESNETS, folder=tmp_path, limit=300, KERAS_BACKEND="jax")
    assert answer.code == 0 and answer.out.split() == ["same", "True"], answer.err[-2000:]


@pytest.mark.long
@pytest.mark.workers
def test_resnet50_learns_from_folders_of_images(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    for split, folder in (("train", "train"), ("test", "validation")):
        x, y = datasets.digits(split)
        for number in np.flatnonzero(y < 3):
            path = tmp_path / folder / str(y[number]) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pillow.fromarray((255 * x[number, :, :, 0]).astype(np.uint8)).save(path)
    settings = {"size": "tiny", "images": str(tmp_path)}
    result = training.train(
        "resnet50", backend="jax", device_kind="cpu", epochs=10, workers=2, settings=settings, out=tmp_path / "run"
    )
    assert result is not None and result.metrics["val_accuracy"] > 0.9
