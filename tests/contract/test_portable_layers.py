"""Every layer of Keras that draws is routed to portable numbers and gives the same everywhere, or is refused."""

from __future__ import annotations

from pathlib import Path

import cells
import numpy as np
import pytest
from portable_layers import CELLS, COUPLED, LAYERS, NOT_ALIKE, OTHERS, SAME_NAME

from kmgpu.backends import BACKENDS
from kmgpu.backends.common.randomness import REFUSED

pytestmark = pytest.mark.workers

PAGE = Path(__file__).parents[2] / "docs" / "portable-randomness.md"
INTERPOLATION = 2e-5  # of values in 0..1: coordinates and sums are rounded differently


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    script = Path(__file__).parents[1] / "portable_layers.py"
    results = {}
    for backend in BACKENDS:
        folder = tmp_path_factory.mktemp(backend)
        answer = cells.python(str(script), backend, "out.npz", folder=folder, limit=900)
        assert answer.code == 0, answer.err[-3000:]
        with np.load(folder / "out.npz") as arrays:
            results[backend] = dict(arrays)
    return results


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_layer_that_takes_a_seed_is_forgotten(found, backend):
    assert not list(found[backend]["failed"])
    known = {*LAYERS, *SAME_NAME, *CELLS, *OTHERS, *REFUSED}
    assert set(found[backend]["layers"]) <= known, "route and test it, or refuse it"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in LAYERS if name not in NOT_ALIKE])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_gives_the_same_on_every_backend(found, backend, name):
    np.testing.assert_allclose(found[backend][name], found["jax"][name], rtol=0, atol=INTERPOLATION)


@pytest.mark.long
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_layer_gives_each_sample_its_own_numbers_on_any_device(found, backend, name):
    whole, shares = found[backend][name], found[backend][f"{name}/shares"]
    if name in COUPLED:
        assert not np.allclose(shares, whole, atol=1e-3), f"{name} does not mix rows: each device could compute its own"
    else:
        np.testing.assert_allclose(shares, whole, rtol=0, atol=INTERPOLATION)


def test_the_page_names_every_layer():
    text = PAGE.read_text(encoding="utf-8")
    assert not [name for name in (*LAYERS, *REFUSED) if f"`{name}`" not in text]
