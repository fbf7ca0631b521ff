"""The loss, the metrics and the outputs of a share of a batch."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.backends.common.batch_norm import merge_moving_statistics
from kmgpu.backends.common.model import overrides
from kmgpu.backends.common.plan import Plan
from kmgpu.backends.common.randomness import seeds_of_update
from kmgpu.backends.common.sharding import Sharding, sharding, size_of, unshared, use
from kmgpu.errors import UsageError

# Bytes that the last loss to be run or traced has gathered on each replica, for the loss and metrics of rows that are
# shared, and where every replica computes the whole batch.
gathered_bytes = {"shares": 0, "whole": 0}


def local_loss(model: Any, plan: Plan, batch: Any, training: bool) -> Any:
    """Return this replica's part of the loss of the global batch (x, y, sample_weight); updates the metrics.

    The parts of all replicas add up to the loss; so do their gradients. Where the outputs are gathered, every replica
    computes the whole loss L: its part is L / replicas, and gradients flow back to the rows of every replica. Where the
    batch is not shared, each replica returns L itself: it and its gradient count for a part of ``same`` (below). They
    are divided afterwards, since what is not linear in a backward pass, such as a clip, must see them as they are.
    """
    from keras import ops

    here = sharding()
    if here.count > 1 and plan.whole:
        groups = here.count if here.batch_norm == "replica" else 1
        whole = unshared(here.size, here.update, here.count, here.index, here.offset)
        with use(dataclasses.replace(whole, groups=groups, denominators=here.denominators)):
            rows = gather_in(here, tuple(batch))
            gathered_bytes["whole"] = _bytes(rows)
            return local_loss(model, plan, rows, training)
    with contextlib.nullcontext() if here.counts else restored(model.metrics_variables):
        loss = _loss_of_rows(model, plan, here, batch, training)
    return ops.zeros(()) if loss is None else loss


def same(plan: Plan, here: Sharding) -> int:
    """Return how many replicas compute the same whole loss of a batch; 1 where each computes a part."""
    if here.count > 1:
        return here.count if plan.whole else 1
    return here.replicas


def _loss_of_rows(model: Any, plan: Plan, here: Sharding, batch: Any, training: bool) -> Any:
    x, y, sample_weight = batch
    shared = here.count > 1
    seeds_of_update(model)
    outputs = call(model, x, training)
    if shared and training and here.batch_norm == "replica":
        merge_moving_statistics(model)
    rows = (x, y, outputs, sample_weight)
    gathered = rows
    if shared and (plan.gather_loss or plan.gather_metrics):
        gathered = gather_in(here, rows)
        gathered_bytes["shares"] = _bytes(gathered)
    if shared and plan.gather_loss:
        gx, gy, gp, gw = gathered
        # What layers add counts by the share of rows; it is in each replica's L, and L is divided by the replicas.
        scale = here.share * here.count
        with use(Sharding(index=here.index, rows=here.size, size=here.size, update=here.size, loss_scale=scale)):
            loss = model._compute_loss(x=gx, y=gy, y_pred=gp, sample_weight=gw, training=training) / here.count
    else:
        loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=training)
    update_metrics(model, *(gathered if plan.gather_metrics else rows))
    return loss


@contextlib.contextmanager
def restored(variables: Sequence[Any]) -> Iterator[None]:
    """After this context the variables have the values from before it."""
    from keras import ops

    before = [ops.copy(variable.value) for variable in variables]
    yield
    for variable, value in zip(variables, before, strict=True):
        variable.assign(value)


def call(model: Any, x: Any, training: bool) -> Any:
    return model(x, training=training) if model._call_has_training_arg else model(x)


def update_metrics(model: Any, x: Any, y: Any, outputs: Any, sample_weight: Any) -> None:
    if overrides(model, "compute_metrics"):
        model.compute_metrics(x, y, outputs, sample_weight)
    elif model._compile_metrics is not None:
        model._compile_metrics.update_state(y, outputs, sample_weight)


def predict(model: Any, plan: Plan, x: Any) -> Any:
    """Return the model's outputs for this replica's rows."""
    import keras

    here = sharding()
    if here.count == 1 or not plan.whole:
        return call(model, x, training=False)
    with use(unshared(here.size, here.update, here.count, here.index)):
        outputs = call(model, gather_in(here, x), training=False)
    return keras.tree.map_structure(lambda output: output[here.first : here.first + here.rows], outputs)


def _bytes(tree: Any) -> int:
    import keras
    from keras.src import backend

    tensors = [tensor for tensor in keras.tree.flatten(tree) if tensor is not None]
    return sum(size_of(tensor) * np.dtype(backend.standardize_dtype(tensor.dtype)).itemsize for tensor in tensors)


def gather_in(here: Sharding, tree: Any) -> Any:
    """Return a tree of tensors with the rows of all replicas; the tensors' masks are gathered with them."""
    import keras
    from keras import ops
    from keras.src import backend

    def one(tensor: Any) -> Any:
        if tensor is None:
            return None
        if len(tensor.shape) == 0:
            raise UsageError("an output without a batch axis cannot be gathered; give it one row per sample")
        rows = tensor.shape[0]
        before, whole = rows * here.first // here.rows, rows * here.size // here.rows
        pad = [[before, whole - before - rows]] + [[0, 0]] * (len(tensor.shape) - 1)
        dtype = backend.standardize_dtype(tensor.dtype)
        wire = ops.cast(tensor, "int32") if dtype == "bool" else tensor
        result = ops.cast(here.all_sum(ops.pad(wire, pad)), dtype)
        mask = backend.get_keras_mask(tensor)
        if mask is not None:
            backend.set_keras_mask(result, one(mask))
        return result

    return keras.tree.map_structure(one, tree)
