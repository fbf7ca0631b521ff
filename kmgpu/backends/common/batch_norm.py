"""BatchNormalization over the rows of all replicas, or of each group of rows by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmgpu.backends.common.sharding import sharding, size_of
from kmgpu.data.loader import split


def moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Batch statistics over the rows of all replicas, in two passes as JAX computes them; shape (channels,)."""
    from keras import backend, ops

    here = sharding()
    if here.shipped:
        return self._moments_as_shipped(inputs, mask)
    all_sum = here.all_sum if here.batch_norm == "global" else (lambda tensor: tensor)
    axes = list(self._reduction_axes)
    if mask is None:
        weights: Any = None
        local = size_of(inputs) // inputs.shape[self.axis]
        rows = here.size / here.rows if here.batch_norm == "global" else 1
        count: Any = ops.cast(local * rows, inputs.dtype)
    else:
        weights = ops.cast(ops.broadcast_to(ops.expand_dims(mask, axis=-1), ops.shape(inputs)), inputs.dtype)
        count = all_sum(ops.sum(weights, axis=axes)) + backend.epsilon()
    shape = [1] * len(inputs.shape)
    shape[self.axis] = inputs.shape[self.axis]
    masked = inputs if weights is None else ops.where(ops.cast(weights, "bool"), inputs, 0)
    mean = all_sum(ops.sum(masked, axis=axes)) / count
    square = ops.square(inputs - ops.reshape(mean, shape))
    square = square if weights is None else ops.where(ops.cast(weights, "bool"), square, 0)
    return mean, all_sum(ops.sum(square, axis=axes)) / count


def batch_norm_in_groups(original: Callable[..., Any]) -> Callable[..., Any]:
    """Normalise each group of rows by its own statistics; moving statistics become the mean over the groups."""

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        from keras import ops

        here = sharding()
        if here.batch_norm == "moving":
            return original(self, inputs, training=False, mask=mask)
        parts = split(inputs.shape[0] or 0, here.groups) if here.groups > 1 else None
        if not (training and self.trainable and parts):
            return original(self, inputs, training=training, mask=mask)
        before = [ops.copy(variable.value) for variable in self.non_trainable_variables]
        sums = [ops.zeros_like(value) for value in before]
        outputs = []
        for part in parts:
            for variable, value in zip(self.non_trainable_variables, before, strict=True):
                variable.assign(value)
            rows = None if mask is None else mask[part]
            outputs.append(original(self, inputs[part], training=training, mask=rows))
            sums = [total + variable for total, variable in zip(sums, self.non_trainable_variables, strict=True)]
        for variable, total in zip(self.non_trainable_variables, sums, strict=True):
            variable.assign(total / len(parts))
        return ops.concatenate(outputs, axis=0)

    return call


def merge_moving_statistics(model: Any) -> None:
    """Give every replica the mean over the replicas of BatchNorm's moving statistics."""
    import keras

    here = sharding()
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            for variable in layer.non_trainable_variables:
                variable.assign(here.all_sum(variable.value + 0) / here.count)
