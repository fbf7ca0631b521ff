"""JAX: the loss of an update and its gradient, as programs over the global batch.

``state`` is a list of lists of arrays: trainable and other variables, the optimizer's, the metrics'. ``update`` is a
list of batches padded to a multiple of the devices; ``sizes`` are the real rows of each, and of the update.
"""

from __future__ import annotations

import functools
from typing import Any

import jax

from kmgpu.backends import common

keras = common.import_keras("jax")


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


def loss(adapter: Any, trainable: Any, state: Any, update: Any, sizes: Any, training: bool) -> Any:
    """The loss to differentiate; beside it the loss itself, and all other state after the step."""
    groups = (trainable, *state[1:])
    pairs = [pair for group in zip(adapter.state_variables, groups, strict=True) for pair in zip(*group, strict=True)]
    totals = None
    if adapter.plan.counts and len(sizes) > 1:
        with Scope(pairs):
            recorded = [common.Denominators() for _ in sizes]
            losses(adapter, update, sizes, recorded, training)
        totals = [sum(counts) for counts in zip(*(each.recorded for each in recorded), strict=True)]
    with Scope(pairs) as scope:
        known = [None if totals is None else common.Denominators(totals) for _ in sizes]
        total = losses(adapter, update, sizes, known, training)
        scaled = adapter.model.optimizer.scale_loss(total) if training else total
    after = [[scope.get_current_value(variable) for variable in group] for group in adapter.state_variables]
    return scaled, (total, after)


def losses(adapter: Any, update: Any, sizes: Any, denominators: Any, training: bool) -> Any:
    parts = []
    for trees, (size, whole), counts in zip(update, sizes, denominators, strict=True):
        rows = keras.tree.map_structure(lambda a, size=size: None if a is None else a[:size], trees)
        groups = adapter.devices if adapter.batch_norm == "replica" else 1
        here = common.Sharding(rows=size, size=size, update=whole, denominators=counts, groups=groups)
        with common.use(here):
            parts.append(common.local_loss(adapter.model, adapter.plan, rows, training))
    return sum(parts[1:], parts[0])


def gradients(adapter: Any, state: Any, update: Any, sizes: Any) -> Any:
    compute = jax.value_and_grad(functools.partial(loss, adapter), has_aux=True)
    (_, (total, after)), grads = compute(state[0], state, update, sizes, True)
    return total, grads, after
