"""``kmgpu parity`` of models that draw: with portable numbers it holds the tolerance, with native ones it does not."""

from __future__ import annotations

import cells
import pytest

from kmgpu import proving
from kmgpu.backends import BACKENDS
from kmgpu.report.verdicts import TOLERANCE

pytestmark = pytest.mark.workers

RECIPE = cells.RECIPES / "random_models.py"
MODELS = ("dropout_mlp", "noise_and_depth", "augmented_cnn", "vae", "vae_in_loss")
MIXED = "mixed_cnn"  # mixes the rows of a batch, so every device computes the whole of it


def checked(folder, devices, models):
    """Return the result of a check for each model, all of a backend in one launch; and of one with native numbers."""
    asked = {model: {"settings": {"model": model}, "randomness": "portable"} for model in models}
    asked["native"] = {"settings": {"model": models[0]}, "randomness": "native"}
    checks = {
        name: proving.prepare(
            RECIPE, backends=BACKENDS, devices=devices, steps=4, dtype="float32", device_kind="cpu",
            keep_random=True, out=folder / name, **fields,
        )
        for name, fields in asked.items()
    }  # fmt: skip
    proving.launch(list(checks.values()), BACKENDS)
    return {name: proving.conclude(check.path) for name, check in checks.items()}


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    return checked(tmp_path_factory.mktemp("few"), (1, 2), (*MODELS, MIXED))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return checked(tmp_path_factory.mktemp("many"), (3, 4), (*MODELS, MIXED))


def holds(result, cells_expected):
    assert result.ok, result.markdown()
    assert len(result.cells) == cells_expected
    for cell in result.cells:
        assert cell.verdict.largest_of_a_step <= TOLERANCE["float32"], (cell, result.markdown())


def notes(result, backend, devices):
    (cell,) = [cell for cell in result.cells if (cell.backend, cell.devices) == (backend, devices)]
    return [note for note in cell.notes if "whole batch" in note]


@pytest.mark.parametrize("model", (*MODELS, MIXED))
def test_models_that_draw_hold_the_tolerance_on_three_backends_and_two_devices(few, model):
    holds(few[model], 5)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_device_computes_its_own_rows(few, model, backend):
    assert not notes(few[model], backend, 2)


@pytest.mark.parametrize("backend", ("torch", "tensorflow"))  # JAX computes on the whole batch anyway
def test_where_rows_are_mixed_each_device_computes_all_of_them(few, backend):
    assert notes(few[MIXED], backend, 2)


def test_native_numbers_do_not_hold_it(few):
    """So the checks above can fail: the models do draw."""
    words = {(cell.backend, cell.devices): cell.verdict.word for cell in few["native"].cells}
    assert words[("jax", 1)] == words[("tensorflow", 1)] == words[("torch", 2)] == "parts", words


@pytest.mark.long
@pytest.mark.parametrize("model", (*MODELS, MIXED))
def test_they_hold_it_on_three_and_four_devices(many, model):
    holds(many[model], 6)
