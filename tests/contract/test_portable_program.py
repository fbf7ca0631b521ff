"""kmgpu.random.portable() in a plain Keras program: the same numbers on three backends, compiled and not."""

from __future__ import annotations

from pathlib import Path

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers

PROGRAM = Path(__file__).parents[1] / "portable_program.py"


def run(folder, backend, *ways):
    answer = cells.python(str(PROGRAM), backend, "out.npz", *ways, folder=folder, limit=300)
    assert answer.code == 0, answer.err[-3000:]
    with np.load(folder / "out.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What the program finds on each backend, step compiled as Keras compiles it, and run operator by operator."""
    return {backend: run(tmp_path_factory.mktemp(backend), backend, "compiled", "eager") for backend in BACKENDS}


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_mask_is_the_same_everywhere(found, backend):
    for name in ("mask", "uniform"):
        assert np.array_equal(found[backend][name], found["jax"][name]), name
    assert 0 < np.mean(found[backend]["mask"] == 0) < 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", ("compiled", "eager"))
def test_fit_gives_the_same_model_everywhere(found, backend, way):
    same_training(found[backend], way, found["jax"])


def same_training(mine, way, truth):
    np.testing.assert_allclose(mine[f"{way}/losses"], truth["compiled/losses"], rtol=1e-5)
    names = [name.partition("/")[2] for name in truth if name.startswith("compiled/") and not name.endswith("losses")]
    assert len(names) >= 4
    for name in names:
        np.testing.assert_allclose(mine[f"{way}/{name}"], truth[f"compiled/{name}"], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_it_the_framework_draws_as_before(found, backend):
    assert np.array_equal(found[backend]["again"], found[backend]["native"])


@pytest.mark.parametrize("backend", ("torch", "tensorflow"))
def test_native_numbers_differ(found, backend):
    """So the tests above can fail."""
    assert not np.allclose(found[backend]["native"], found["jax"]["native"])


def test_torch_compile_takes_the_whole_model_as_one_graph(found):
    np.testing.assert_allclose(found["torch"]["outputs of one graph"], found["torch"]["outputs"], rtol=1e-5, atol=1e-6)
    assert found["torch"]["native graph breaks"] > 0


@pytest.mark.long
@pytest.mark.parametrize("backend", ("torch", "tensorflow"))  # JAX compiles with XLA always
def test_fit_with_jit_compile_draws_the_same(found, backend, tmp_path):
    """XLA on TensorFlow, Inductor on torch."""
    same_training(run(tmp_path, backend, "xla"), "xla", found["jax"])


def test_keras_must_have_been_imported(tmp_path):
    answer = cells.python("-c", "import kmgpu; kmgpu.random.portable()", folder=tmp_path)
    assert answer.code == 1 and "import keras first" in answer.err
