"""TensorFlow: the graphs that MirroredStrategy runs, as functions of the adapter.

``values`` are the batches of an update, each a tuple of values per replica; ``specs`` say of each batch its rows, the
rows of the update, whether its rows are shared, for how many devices it is computed, and the position in the update of
its first row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kmgpu.backends import common
from kmgpu.backends.tf_devices import keras, tf
from kmgpu.data.loader import split


def trees(adapter: Any, leaves: Any) -> Any:
    remaining = iter(leaves)
    return keras.tree.map_structure(lambda present: next(remaining) if present else None, adapter.layout)


def sharding(adapter: Any, spec: tuple[int, int, bool, int, int]) -> common.Sharding:
    """How the rows lie on the replica that calls; its index is known when its function is traced."""
    policy = dataclasses.replace(adapter.policy, devices=spec[3])
    return policy.on(_sharding(adapter, *spec[:3], spec[4]))


def _sharding(adapter: Any, size: int, update: int, shared: bool, offset: int) -> common.Sharding:
    replica = tf.distribute.get_replica_context()
    index = int(tf.get_static_value(replica.replica_id_in_sync_group))
    if not shared:
        return common.unshared(size, update, adapter.devices, index, offset)
    part = split(size, adapter.devices)[index]  # type: ignore[index]

    if adapter.track == "as-shipped":
        return common.as_shipped(part.stop - part.start, adapter.devices)

    def all_sum(tensor: Any) -> Any:
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

    return common.Sharding(
        adapter.devices, index, part.start, part.stop - part.start, size, update, offset=offset, all_sum=all_sum
    )


def gradients(adapter: Any, values: Any, specs: Any) -> tuple[Any, list[Any]]:
    """The loss and the gradient of an update, on every device; replicas meet once for it."""
    variables = [variable.value for variable in adapter.model.trainable_variables]

    def replica(*batches: Any) -> Any:
        totals = denominators(adapter, batches, specs) if adapter.plan.counts and len(specs) > 1 else None
        losses: list[Any] = []
        sums: list[Any] = []
        for leaves, spec in zip(batches, specs, strict=True):
            known = None if totals is None else common.Denominators(totals)
            here = dataclasses.replace(sharding(adapter, spec), denominators=known)
            with common.use(here):
                with tf.GradientTape() as tape:
                    loss = common.local_loss(adapter.model, adapter.plan, trees(adapter, leaves), training=True)
                    scaled = adapter.model.optimizer.scale_loss(loss)
                grads = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            # Keras's optimizers do not add up repeated rows of an embedding's sparse gradient.
            alike = common.same(adapter.plan, here)
            dense = [_times(tf.convert_to_tensor(grad), here.gradient_scale, alike) for grad in grads]
            sums = [total + grad for total, grad in zip(sums, dense, strict=True)] if sums else dense
            losses.append(loss / alike)
        return tf.add_n(losses), sums

    loss, grads = adapter.strategy.run(replica, args=values)
    if adapter.devices > 1:
        pairs = list(zip(grads, variables, strict=True))
        grads = adapter.strategy.extended.batch_reduce_to("SUM", pairs)
    return adapter.strategy.reduce("SUM", loss, axis=None), grads


def _times(gradient: Any, factor: int, divisor: int) -> Any:
    """Return a gradient times factor / divisor."""
    return gradient if factor == divisor else gradient * tf.cast(factor / divisor, gradient.dtype)


def denominators(adapter: Any, batches: Any, specs: Any) -> list[Any]:
    """Count what the losses of all batches of an update divide by, in a forward pass over each."""
    recorded = []
    with common.restored(common.assigned(adapter.model)):
        for leaves, spec in zip(batches, specs, strict=True):
            counts = common.Denominators()
            with common.use(dataclasses.replace(sharding(adapter, spec), denominators=counts)):
                common.local_loss(adapter.model, adapter.plan, trees(adapter, leaves), training=True)
            recorded.append(counts.recorded)
    return [tf.add_n(counts) for counts in zip(*recorded, strict=True)]


def train_as_shipped(adapter: Any, values: Any, specs: Any) -> Any:
    """As Keras's fit: the optimizer runs on each replica, clips there, and adds up what is left."""

    def replica(leaves: Any) -> Any:
        here = sharding(adapter, specs[0])
        with common.use(here):
            with tf.GradientTape() as tape:
                loss = common.local_loss(adapter.model, adapter.plan, trees(adapter, leaves), training=True)
                loss = loss / here.replicas  # as Keras divides it
                scaled = adapter.model.optimizer.scale_loss(loss) * here.gradient_scale
            grads = tape.gradient(scaled, [variable.value for variable in adapter.model.trainable_variables])
        adapter.model.optimizer.apply(grads, adapter.model.trainable_variables)
        return loss

    return adapter.strategy.reduce("SUM", adapter.strategy.run(replica, args=values), axis=None)


def train(adapter: Any, values: Any, specs: Any) -> Any:
    loss, grads = gradients(adapter, values, specs)
    apply(adapter, grads)
    return loss


def apply(adapter: Any, grads: Any) -> None:
    optimizer = adapter.model.optimizer
    if adapter.devices == 1:
        with tf.control_dependencies(grads):  # a layer that is computed again must not read weights that are updated
            grads = [tf.identity(grad) for grad in grads]
    # In cross-replica context; LossScaleOptimizer.apply refuses that, what it does then does not.
    update = getattr(optimizer, "_common_apply", optimizer.apply) if adapter.devices > 1 else optimizer.apply
    update(grads, adapter.model.trainable_variables)


def evaluate(adapter: Any, values: Any, specs: Any) -> Any:
    def replica(leaves: Any) -> Any:
        here = sharding(adapter, specs[0])
        with common.use(here):
            loss = common.local_loss(adapter.model, adapter.plan, trees(adapter, leaves), training=False)
        return loss / common.same(adapter.plan, here)

    return adapter.strategy.reduce("SUM", adapter.strategy.run(replica, args=values), axis=None)


def predict(adapter: Any, values: Any, specs: Any) -> Any:
    def replica(leaves: Any) -> Any:
        with common.use(sharding(adapter, specs[0])):
            return common.predict(adapter.model, adapter.plan, trees(adapter, leaves)[0])

    return adapter.strategy.run(replica, args=values)
