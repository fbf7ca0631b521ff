"""What the data must be for a model, said before training: targets for its loss, labels that it has classes for."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np

from kmgpu.backends.common.model import as_keras, core, overrides, spec
from kmgpu.data import trees
from kmgpu.data.loader import Batch
from kmgpu.errors import UsageError


def check_targets(model: Any, batch: Batch, what: str) -> None:
    """Raise UsageError if the loss needs a y and the data have none; the model need not be built."""
    import keras

    own = overrides(model, "compute_loss") if isinstance(model, keras.Model) else True
    if batch.y is None and not own and model._compile_loss is not None:
        raise UsageError(f"{what} is x alone, and the model's loss compares its output with a y; give {what} as (x, y)")


def check_validation(model: Any, train: Batch, validation: Batch) -> None:
    """Raise UsageError if a built model cannot compute its loss for the validation data."""
    import keras

    forms = [trees.transform(lambda array: array.shape[1:], (batch.x, batch.y)) for batch in (train, validation)]
    if forms[0] == forms[1]:
        return
    x, y, sample_weight = trees.transform(
        lambda array: spec(as_keras(array)), (validation.x, validation.y, validation.sample_weight)
    )
    try:
        outputs = keras.backend.compute_output_spec(model, x, training=False)
        keras.backend.compute_output_spec(
            model._compute_loss, x, y, outputs, sample_weight=sample_weight, training=False
        )
    except Exception as error:  # whatever Keras or a layer of the user's raises for data of another form
        traceback.print_exception(error)
        told = f"rows of train are {forms[0]} and those of validation {forms[1]}"
        raise UsageError(f"validation does not fit the model: {core(str(error))} ({told})") from error


def check_labels(model: Any, y: Any, what: str) -> None:
    """Raise UsageError if a label has no class, of a model with one output and a loss of integer labels."""
    outputs: list[Any] = getattr(model, "outputs", None) or []
    losses: Any = (model._compile_loss._flat_losses or ()) if model._compile_loss is not None else ()
    if not isinstance(y, np.ndarray) or y.size == 0 or len(outputs) != 1 or len(losses) != 1:
        return
    (_, loss, _, _), classes = losses[0], outputs[0].shape[-1]
    function = getattr(loss, "fn", loss)
    if getattr(function, "__name__", "") != "sparse_categorical_crossentropy" or classes is None:
        return
    ignored = getattr(loss, "_fn_kwargs", {}).get("ignore_class")
    bad = (y < 0) | (y >= classes) if y.min() < 0 or y.max() >= classes else np.zeros(0, bool)
    if ignored is not None and bad.size:
        bad &= y != ignored
    if bad.any():
        raise UsageError(
            f"{what} has the label {y[bad][0]}, and the model's {classes} classes are numbered 0 to {classes - 1}; "
            "number the labels from 0, or give the last layer a unit for each class"
        )
