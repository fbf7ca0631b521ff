"""Where Keras reduces over rows, replaced by what knows of the whole batch.

Keras reduces a loss, a mask or batch statistics over the rows it is given. On a replica these are only its share of the
global batch, so a mean becomes a mean of means. Here the few places where Keras reduces over rows ask ``sharding()``
how the rows lie, and take numerators from the share and denominators from the whole batch.
"""

from __future__ import annotations

import functools
from typing import Any

from kmgpu.backends.common.batch_norm import batch_norm_in_groups, moments
from kmgpu.backends.common.randomness import route_draws
from kmgpu.backends.common.sharding import sharding, size_of, within_step


@functools.cache  # twice would be wrong: groups of rows in groups, a replica's stream moved on twice
def install() -> None:
    """Replace Keras 3.15's reductions over rows by ones that know of the whole batch (tests/contract)."""
    import keras
    from keras.src.losses import loss as loss_module
    from keras.src.trainers import trainer

    loss_module.reduce_weighted_values = _in_steps(_reduce_weighted_values, loss_module.reduce_weighted_values)
    loss_module.scale_loss_for_distribution = lambda value: value  # the adapters combine replicas themselves
    loss_module.unscale_loss_for_distribution = _whole_loss_for_tracker
    backend_trainer = keras.Model.__mro__  # TensorFlow's trainer overrides the hook to divide by its replicas
    for cls in backend_trainer:
        if cls.__module__.startswith("keras.src.backend.") and "_aggregate_additional_loss" in vars(cls):
            del cls._aggregate_additional_loss
    trainer.Trainer._aggregate_additional_loss = _aggregate_additional_loss
    shipped = keras.layers.BatchNormalization._moments
    keras.layers.BatchNormalization._moments = moments
    keras.layers.BatchNormalization.call = batch_norm_in_groups(keras.layers.BatchNormalization.call)
    keras.layers.BatchNormalization._moments_as_shipped = shipped
    get_metrics_result = trainer.Trainer.get_metrics_result

    def metrics_as_tensors(self: Any) -> Any:
        # A metric whose result is one of its variables is usual, and JAX 0.10 refuses variables as results.
        results = get_metrics_result(self)
        return {name: getattr(value, "value", value) for name, value in results.items()}

    trainer.Trainer.get_metrics_result = metrics_as_tensors
    route_draws()


def _in_steps(own: Any, shipped: Any) -> Any:
    """Return a function that is ours in the steps of training, and Keras's in a model.evaluate of a callback."""

    def chosen(*arguments: Any, **options: Any) -> Any:
        return (own if within_step() else shipped)(*arguments, **options)

    return chosen


def _reduce_weighted_values(
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    """Keras's reduction of per-sample losses (keras/src/losses/loss.py), the denominators over the whole batch.

    On a replica the result is its part of the loss: the parts of all replicas add up to the loss of the batch.
    Reduction "none" gives the sum, which is what the gradient of unreduced losses is.
    """
    from keras import ops
    from keras.src.losses import loss as loss_module

    here = sharding()
    reduction = loss_module.standardize_reduction(reduction)
    values = ops.convert_to_tensor(values, dtype=dtype)
    if sample_weight is not None:
        sample_weight = ops.convert_to_tensor(sample_weight, dtype=dtype)
    if mask is not None:
        weight = ops.cast(ops.convert_to_tensor(mask, dtype="bool"), values.dtype)
        if reduction in ("mean", "sum_over_batch_size"):
            valid = here.total(ops.sum(weight))
            weight = weight * ops.divide_no_nan(ops.cast(here.whole(size_of(mask)), values.dtype), valid)
        if sample_weight is not None:
            sample_weight = ops.cast(sample_weight, values.dtype)
            weight, sample_weight = loss_module.squeeze_or_expand_to_same_rank(weight, sample_weight)
            weight = sample_weight * weight
        sample_weight = weight
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, values.dtype)
        values, sample_weight = loss_module.squeeze_or_expand_to_same_rank(values, sample_weight)
        values = values * sample_weight
    if tuple(values.shape) == ():
        return values * here.share  # of outputs without an axis but the rows, of which Keras takes the mean itself
    total = ops.sum(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return ops.divide_no_nan(total, here.total(ops.cast(ops.sum(sample_weight), total.dtype)))
    if reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
        return ops.divide_no_nan(total, ops.cast(here.whole(size_of(values)), total.dtype))
    return total


def _whole_loss_for_tracker(value: Any) -> Any:
    """Scale a replica's part of an output's loss so that Keras's row-weighted means of the replicas add up to it."""
    return value / sharding().share


def _aggregate_additional_loss(self: Any, loss: Any) -> Any:
    """Return a loss that a layer adds, as this replica's part: penalties and means over rows count by their share."""
    from keras import backend, ops

    here = sharding()
    if not backend.is_float_dtype(loss.dtype):
        loss = ops.cast(loss, dtype=backend.floatx())
    return ops.sum(loss) * (here.share * here.loss_scale)
