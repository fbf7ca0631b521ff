"""JAX: the loss of an update and its gradient, as programs over the global batch.

``state`` is a list of lists of arrays: trainable and other variables, the optimizer's, the metrics'. ``update`` is a
list of batches padded to a multiple of the devices; ``sizes`` are the real rows of each and of the update, for how many
devices it is computed, and the position in the update of its first row.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax.sharding import PartitionSpec

from kmgpu.backends import common

keras = common.import_keras("jax")

AXIS = "batch"  # of the mesh


class Scope(keras.StatelessScope):  # type: ignore[name-defined,misc]
    """Weights that the forward pass assigns, as SpectralNormalization does, are what the rest of the step starts from.

    So it is on torch and TensorFlow: the gradient is that of the value assigned, and so is the update. Keras's own
    trainer on JAX derives through the assignment, and then forgets it.
    """

    def __init__(self, pairs: Any):
        super().__init__(state_mapping=pairs, collect_losses=True)

    def add_update(self, update: Any) -> None:
        variable, value = update
        before = self.get_current_value(variable)
        if variable.trainable and before is not None:
            value = jax.lax.stop_gradient(value) + (before - jax.lax.stop_gradient(before))
        super().add_update((variable, value))


def sharding(adapter: Any, spec: tuple[int, int, int, int]) -> common.Sharding:
    """How the rows of a program over the global batch lie: all of them in one place."""
    size, update, devices, offset = spec
    policy = dataclasses.replace(adapter.policy, devices=devices)
    return policy.on(common.Sharding(rows=size, size=size, update=update, offset=offset))


def share(adapter: Any, spec: tuple[int, int, int, int]) -> common.Sharding:
    """How the rows lie in a program over the rows of one device, which all devices run."""
    size, update, devices, offset = spec
    index, rows = jax.lax.axis_index(AXIS), size // adapter.devices
    policy = dataclasses.replace(adapter.policy, devices=devices)
    return policy.on(
        common.Sharding(
            adapter.devices, index, index * rows, rows, size, update, offset=offset,
            all_sum=functools.partial(jax.lax.psum, axis_name=AXIS),
        )  # fmt: skip
    )


def gradients(adapter: Any, state: Any, update: Any, sizes: Any) -> Any:
    """Return the loss of an update, its gradient, and all other state after the step."""
    if not adapter.plan.whole and adapter.shares(list(zip(update, sizes, strict=True))):
        return gradients_on_shares(adapter, state, update, sizes)
    return _gradients(adapter, state, update, sizes, sharding)


def gradients_on_shares(adapter: Any, state: Any, update: Any, sizes: Any) -> Any:
    """The same: each device adds up its gradients over the batches, and then the devices meet once.

    XLA's partitioner would sum the gradient of every batch over the devices before it adds up the batches.
    """

    def replica(state: Any, update: Any) -> Any:
        fresh = [*state[:3], [jax.numpy.zeros_like(value) for value in state[3]]]
        total, grads, after = _gradients(adapter, fresh, update, sizes, share)
        total, grads, metrics = jax.lax.psum((total, grads, after[3]), AXIS)
        return total, grads, [*after[:3], [old + new for old, new in zip(state[3], metrics, strict=True)]]

    everywhere = PartitionSpec()
    run = jax.shard_map(
        replica, mesh=adapter.mesh, in_specs=(everywhere, PartitionSpec(AXIS)), out_specs=everywhere, check_vma=False
    )
    return run(state, update)


def _gradients(adapter: Any, state: Any, update: Any, sizes: Any, lie: Any) -> Any:
    compute = jax.value_and_grad(functools.partial(loss, adapter, lie=lie), has_aux=True)
    (_, (total, after)), grads = compute(state[0], state, update, sizes, True)
    factor = lie(adapter, sizes[0]).gradient_scale
    return total, [grad * factor for grad in grads] if factor != 1 else grads, after


def loss(
    adapter: Any, trainable: Any, state: Any, update: Any, sizes: Any, training: bool, lie: Any = sharding
) -> Any:
    """The loss to differentiate; beside it the loss itself, and all other state after the step."""
    groups = (trainable, *state[1:])
    pairs = [pair for group in zip(adapter.state_variables, groups, strict=True) for pair in zip(*group, strict=True)]
    here = [lie(adapter, spec) for spec in sizes]
    totals = None
    if adapter.plan.counts and len(sizes) > 1:
        with Scope(pairs):
            recorded = [common.Denominators() for _ in sizes]
            losses(adapter, update, here, recorded, training)
        totals = [sum(counts) for counts in zip(*(each.recorded for each in recorded), strict=True)]
    with Scope(pairs) as scope:
        known = [None if totals is None else common.Denominators(totals) for _ in sizes]
        total = losses(adapter, update, here, known, training)
        scaled = adapter.model.optimizer.scale_loss(total) if training else total
    after = [[scope.get_current_value(variable) for variable in group] for group in adapter.state_variables]
    return scaled, (total, after)


def losses(adapter: Any, update: Any, places: Any, denominators: Any, training: bool) -> Any:
    parts = []
    for trees, here, counts in zip(update, places, denominators, strict=True):
        rows = keras.tree.map_structure(lambda a, count=here.rows: None if a is None else a[:count], trees)
        with common.use(dataclasses.replace(here, denominators=counts)):
            parts.append(common.local_loss(adapter.model, adapter.plan, rows, training))
    return sum(parts[1:], parts[0])
