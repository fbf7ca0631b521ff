"""Small cases that other tools have got wrong on several devices, with results worked out by hand."""

from __future__ import annotations

import json
import math

import cells
import measured
import numpy as np
import pytest
from safetensors.numpy import load_file

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers
each_backend = pytest.mark.parametrize("backend", BACKENDS)
everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)
ONES = {"x": np.ones((8, 64), np.float32)}


def mixed_inputs() -> dict[str, np.ndarray]:
    """Eight images, and eight sequences of words of which the last ones may be padding."""
    random = np.random.default_rng(2)
    words = np.sort(random.integers(0, 9, (8, 6)), axis=1)[:, ::-1].astype(np.int32)
    return {"image": random.normal(size=(8, 7, 7, 2)).astype(np.float32), "words": words}


cells.add("field-cases", "field_cases")
cells.add("accumulating-optimizer", "r0_accumulated")
cells.add("unused-weights", "unused_weights")
cells.add("clipped", "clipped")
cells.add("added-sum", "added_sum")
cells.add("labels", "labels")
cells.add("classes-weighted", "classes_weighted")
cells.add("loss-scale", "loss_scale")
cells.add("norm-uneven", "conv_norm", settings={"rows": 9, "batch_size": 4})
cells.add("norm-saved", "conv_norm", devices=(2,))
cells.add("always-drops", "random_rows", inputs=ONES, **cells.PREDICTS)
cells.add("always-drops-again", "random_rows", devices=(2,), inputs=ONES, **cells.PREDICTS)
cells.add("dropped", "dropped", seed=7)
cells.add("dropped-again", "dropped", devices=(2,), seed=7)
cells.add("dropped-otherwise", "dropped", devices=(2,), seed=8)
cells.add("mixed-layers", "mixed_layers", inputs=mixed_inputs(), **cells.PREDICTS)
cells.add(
    "slots-of-weights", "r0", settings={"optimizer": "ScheduleFreeAdamW", "learning_rate": 0.1, "epochs": 2},
    initial_weights=cells.initial_weights({"sequential/dense/kernel": (1, 1)}),
)  # fmt: skip


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-5)


def weight(run: cells.Ran, layer: str) -> float:
    """The one weight of a layer."""
    (kernel,) = [value for name, value in run.weights.items() if name.split("/")[-2] == layer]
    return float(kernel.reshape(()))


def predictions(run: cells.Ran) -> dict[str, np.ndarray]:
    with np.load(run.rundir.path / "predictions.npz") as outputs:
        return dict(outputs)


@everywhere
def test_an_optimizer_that_accumulates_two_batches_updates_as_with_one_of_twice_the_rows(ran, backend, devices):
    assert ran(backend, "accumulating-optimizer", devices).weight == close(3.125)


@everywhere
def test_weights_that_the_model_does_not_use_stay_and_the_user_is_told_nothing_of_it(ran, backend, devices):
    run = ran(backend, "unused-weights", devices)
    found = {layer: weight(run, layer) for layer in ("used", "unused", "frozen")}
    assert found == {"used": close(0.36), "unused": 1.0, "frozen": 1.0}
    assert run.outcome["notes"] == []


@everywhere
def test_a_device_without_a_valid_step_neither_dilutes_nor_breaks_the_loss(ran, backend, devices):
    run = ran(backend, "field-cases", devices)
    assert weight(run, "masked") == close(0.2)
    assert run.history[0]["masked_loss"] == close(1.0)


@everywhere
def test_a_penalty_of_weights_counts_once(ran, backend, devices):
    run = ran(backend, "field-cases", devices)
    assert weight(run, "penalised") == close(0.98)
    parts = {"masked": 1.0, "penalised": 0.0, "a": 0.5, "b": 2 * 1.0}
    assert run.history[0]["loss"] == close(sum(parts.values()) + 0.1)


@everywhere
def test_two_outputs_have_losses_weights_and_samples_of_their_own(ran, backend, devices):
    run = ran(backend, "field-cases", devices)
    assert (weight(run, "a"), weight(run, "b")) == (close(0.1), close(0.1))
    assert (run.history[0]["a_loss"], run.history[0]["b_loss"]) == (close(0.5), close(1.0))


@everywhere
def test_the_gradient_of_all_rows_is_clipped_and_not_that_of_each_device(ran, backend, devices):
    (kernel,) = ran(backend, "clipped", devices).weights.values()
    np.testing.assert_allclose(kernel.ravel(), [0.6, 0.8], rtol=1e-5)


@everywhere
def test_a_sum_that_a_layer_adds_as_a_loss_is_that_of_all_rows_and_a_note_says_what_it_takes(ran, backend, devices):
    run = ran(backend, "added-sum", devices)
    assert run.weight == close(0.92)
    assert run.history[0]["loss"] == close(0.4)
    shared = backend != "jax" and devices > 1
    assert measured.how(run) == (measured.WHOLE if shared else measured.EXACT)


@everywhere
def test_the_shape_of_targets_and_the_form_of_labels_do_not_matter(ran, backend, devices):
    run = ran(backend, "labels", devices)
    scores = run.history[0]
    assert weight(run, "flat") == weight(run, "column") == close(5.8125)
    assert scores["flat_loss"] == scores["column_loss"] == close(16.753125)
    kernels = {name.split("/")[-2]: value for name, value in run.weights.items()}
    np.testing.assert_allclose(kernels["number"], kernels["one_hot"], rtol=1e-6)
    assert scores["number_accuracy"] == scores["one_hot_accuracy"]


@everywhere
def test_scores_are_means_over_rows_and_never_sums_over_devices(ran, backend, devices):
    scores = ran(backend, "labels", devices).history[0]
    assert 0 <= scores["number_accuracy"] <= 1
    # w is 0, 0.75 and 3.125 in the three batches 0..3, 4..7 and 8, 9.
    errors = [abs(y - w) for w, rows in ((0, range(4)), (0.75, range(4, 8)), (3.125, (8, 9))) for y in rows]
    assert scores["column_mae"] == close(sum(errors) / 10)


@everywhere
def test_more_steps_per_execution_than_an_epoch_has_change_nothing(ran, backend, devices):
    run = ran(backend, "labels", devices)  # compiled with steps_per_execution=4, and an epoch has three steps
    assert len(run.losses) == 3 and weight(run, "column") == close(5.8125)


@everywhere
def test_a_rare_class_weighs_what_the_recipe_says(ran, backend, devices):
    run = ran(backend, "classes-weighted", devices)
    assert run.history[0]["loss"] == close(1.5 * math.log(2))
    (kernel,) = run.weights.values()
    np.testing.assert_allclose(kernel, 0, atol=1e-7)


@everywhere
def test_an_update_with_an_infinite_gradient_on_one_device_is_left_out_on_all(ran, backend, devices):
    assert ran(backend, "loss-scale", devices).weight == close(0.1)


@everywhere
def test_batch_statistics_of_batches_with_a_row_too_few_are_finite_and_those_of_one_device(ran, backend, devices):
    run = ran(backend, "norm-uneven", devices)
    found = measured.errors(run, ran("jax", "norm-uneven", 1))
    assert max(found.values()) < 1e-5, found
    assert any(name.endswith("moving_variance") and np.isfinite(value).all() for name, value in run.weights.items())


@pytest.fixture(scope="module")
def evaluated(ran, tmp_path_factory):
    """What plain Keras on one device makes of the models that two devices have saved."""
    folder = tmp_path_factory.mktemp("evaluated")
    todo = []
    for backend in BACKENDS:
        run = ran(backend, "norm-saved", 2)
        todo.append({"name": backend, "recipe": run.rundir.job().recipe, "model": str(run.rundir.model_file)})
    (folder / "todo.json").write_text(json.dumps(todo))
    answer = cells.python(str(cells.STOCK), "todo.json", "out.npz", folder=folder, KERAS_BACKEND="torch")
    assert answer.code == 0, answer.err[-3000:]
    with np.load(folder / "out.npz") as found:
        return dict(found)


@each_backend
def test_a_saved_model_scores_in_plain_keras_what_the_run_has_told(ran, evaluated, backend):
    last = ran(backend, "norm-saved", 2).history[-1]
    assert evaluated[f"{backend}/scores"] == pytest.approx([last["val_loss"], last["val_accuracy"]], rel=1e-6)


@everywhere
def test_the_same_weights_predict_the_same_on_every_backend(ran, backend, devices):
    found, truth = predictions(ran(backend, "mixed-layers", devices)), predictions(ran("jax", "mixed-layers", 1))
    assert found.keys() == truth.keys() == {"last", "read"}
    for name, values in truth.items():
        assert values.shape[0] == 8
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@everywhere
def test_no_two_rows_have_the_same_dropout_mask(ran, backend, devices):
    (outputs,) = predictions(ran(backend, "always-drops", devices)).values()
    kept = outputs != 0
    assert len({row.tobytes() for row in kept}) == 8
    assert 0.4 < kept.mean() < 0.6


@each_backend
def test_the_same_seed_draws_the_same_masks_again(ran, backend):
    first, again = (predictions(ran(backend, name, 2)) for name in ("always-drops", "always-drops-again"))
    np.testing.assert_equal(first, again)
    masks = [masks_of(ran(backend, name, 2)) for name in ("dropped", "dropped-again", "dropped-otherwise")]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).mean() > 0.3


@everywhere
def test_the_masks_of_training_differ_between_rows_devices_and_steps(ran, backend, devices):
    masks = masks_of(ran(backend, "dropped", devices))  # the first 8 rows were one batch, the others the next
    assert len({row.tobytes() for row in masks}) == 16
    assert 0.4 < masks.mean() < 0.6


def masks_of(run: cells.Ran) -> np.ndarray:
    """(rows, 64): where dropout has kept a value, and its weight was moved."""
    (table,) = run.weights.values()
    return table != 0


@everywhere
def test_slots_that_start_as_copies_of_weights_are_copies_of_the_weights_handed_to_the_run(ran, backend, devices):
    run = ran(backend, "slots-of-weights", devices)
    (start,) = load_file(run.rundir.initial_weights_file).values()
    assert abs(start.item()) > 0.01
    assert run.weight == close(schedule_free(start.item()))


def schedule_free(weight: float) -> float:
    """The weight after the steps of R0 with ScheduleFreeAdamW as it is defined (Defazio et al., 2024, with Keras's
    bias correction): z takes Adam's steps, x is their mean, gradients are taken at y, between the two."""
    y = x = z = weight
    velocity = 0.0
    for step, mean in enumerate([1.5, 5.5, 1.5, 5.5], 1):
        gradient = 2 * (y - mean)
        velocity += (gradient**2 - velocity) * 0.001
        z -= 0.1 * gradient / ((velocity / (1 - 0.999**step)) ** 0.5 + 1e-8)
        x += (z - x) / step
        y = 0.1 * z + 0.9 * x
    return y
