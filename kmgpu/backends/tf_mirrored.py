"""TensorFlow: MirroredStrategy in one process, with a step of our own (NCCL on GPU).

Gradients are summed before the optimizer sees them, so clipping, accumulation and loss scaling act on the gradient of
the global batch; Keras's fit under MirroredStrategy applies them on each replica first.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmgpu.backends import keras_common as common
from kmgpu.backends.adapter import Place, State, StepResult
from kmgpu.data.loader import Batch, split
from kmgpu.errors import MissingEnvironment
from kmgpu.recipe import Recipe

keras = common.import_keras("tensorflow")
import tensorflow as tf  # noqa: E402  # after Keras, since tensorflow.lite would import JAX while nothing blocks it

_devices: list[str] = []


def start(place: Place) -> None:
    """Initialise the devices of this process."""
    tf.config.threading.set_intra_op_parallelism_threads(place.threads)
    tf.config.threading.set_inter_op_parallelism_threads(place.threads)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    if place.device_kind == "gpu":
        gpus = tf.config.list_physical_devices("GPU")
        chosen = place.device_ids or tuple(range(place.devices))
        if len(gpus) <= max(chosen):
            raise MissingEnvironment(
                f"TensorFlow sees {len(gpus)} GPUs, the run asks for device {max(chosen)}; "
                "install tensorflow[and-cuda] or use --device-kind cpu"
            )
        gpus = [gpus[index] for index in chosen]
        tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
    else:
        tf.config.set_visible_devices([], "GPU")
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration() for _ in range(place.devices)]
        tf.config.set_logical_device_configuration(cpu, logical)
    _devices[:] = [device.name for device in tf.config.list_logical_devices(place.device_kind.upper())]


def lost_peer(error: BaseException) -> bool:
    """There is only one process."""
    return False


class Adapter:
    """MirroredStrategy on the first ``devices`` devices of this process."""

    one_process_per_device = False
    process, processes = 0, 1

    def __init__(self, place: Place, devices: int):
        self.devices = devices
        # Collectives of several strategies in one process mix up their keys on CPU (TensorFlow 2.21).
        across = tf.distribute.NcclAllReduce() if place.device_kind == "gpu" else tf.distribute.ReductionToOneDevice()
        self._strategy = tf.distribute.MirroredStrategy(_devices[:devices], cross_device_ops=across)
        self._place = place

    def facts(self) -> dict[str, Any]:
        return common.model_facts(self.model) | {
            "framework": f"tensorflow {tf.__version__}",
            "devices": [name.removeprefix("/device:") for name in _devices[: self.devices]],
            "precision": {
                "dtype": keras.config.floatx(),
                "tf32": tf.config.experimental.tensor_float_32_execution_enabled(),
            },
            "compiled": "tf.function",
            "threads": tf.config.threading.get_intra_op_parallelism_threads(),
        }

    def reset(self, seed: int, dtype: str) -> None:
        keras.backend.clear_session()
        common.set_float(dtype)
        keras.utils.set_random_seed(seed)

    def fixed_randomness(self, keep: bool) -> Any:
        return contextlib.nullcontext() if keep else common.without_randomness()

    def names(self) -> dict[str, list[str]]:
        return common.names(self.model)

    def dtypes(self) -> dict[str, str]:
        return common.dtypes(self.model)

    def scope(self) -> Any:
        return self._strategy.scope()

    def prepare(self, recipe: Recipe, sample: Sequence[Batch], options: dict[str, Any]) -> list[str]:
        self.model = recipe.model
        self.batch_norm = recipe.batch_norm
        with self.scope():
            common.build(self.model, sample[0])
        self.plan = common.make_plan(self.model, options["loss_gather"], recipe.accumulate)
        self.track = options["track"]
        self._functions: dict[Any, Any] = {}
        if self.track == "as-shipped":
            self.plan = common.Plan((), ())
        else:
            self._check([self.put(common.few_rows(batch, self.devices)) for batch in sample])
        return self.plan.notes(self.devices)

    def _check(self, update: Sequence[Any]) -> None:
        """Let each replica compute whole batches from now on where a step on shares is not the step on the whole."""
        if self.devices == 1 or self.plan.whole or not any(shared for _, (_, _, shared) in update):
            return
        results = []
        with common.without_randomness(), common.perturbed(self.model):
            for whole in ((), ("to compare",)):
                self.plan = dataclasses.replace(self.plan, whole=whole)
                results.append(self._step_result(tf.function(self._gradients, autograph=False), update))
        apart = common.difference(self.model, *results)
        self.plan = dataclasses.replace(self.plan, whole=() if apart is None else (apart,))

    def _first(self, variable: Any) -> Any:
        return self._strategy.experimental_local_results(variable.value)[0]

    def put(self, batch: Batch) -> Any:
        arrays = keras.tree.map_structure(
            lambda array: None if array is None else common.as_keras(array), (batch.x, batch.y, batch.sample_weight)
        )
        self._layout = keras.tree.map_structure(lambda array: array is not None, arrays)
        leaves = [array for array in keras.tree.flatten(arrays) if array is not None]
        shares = split(batch.size, self.devices) if self.devices > 1 else None
        parts = shares or [slice(0, batch.size)] * self.devices
        values = self._strategy.experimental_distribute_values_from_function(
            lambda context: tuple(tf.constant(leaf[parts[context.replica_id_in_sync_group]]) for leaf in leaves)
        )
        return values, (batch.size, batch.update_size, shares is not None)

    def _trees(self, leaves: Any) -> Any:
        remaining = iter(leaves)
        return keras.tree.map_structure(lambda present: next(remaining) if present else None, self._layout)

    def _sharding(self, spec: tuple[int, int, bool]) -> common.Sharding:
        """How the rows lie on the replica that calls; its index is known when its function is traced."""
        size, update, shared = spec
        replica = tf.distribute.get_replica_context()
        index = int(tf.get_static_value(replica.replica_id_in_sync_group))
        if not shared:
            return common.unshared(size, update, self.devices, index)
        part = split(size, self.devices)[index]  # type: ignore[index]

        if self.track == "as-shipped":
            return common.as_shipped(part.stop - part.start, self.devices)

        def all_sum(tensor: Any) -> Any:
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, tensor)

        return common.Sharding(
            self.devices, index, part.start, part.stop - part.start, size, update,
            all_sum=all_sum, batch_norm=self.batch_norm,
        )  # fmt: skip

    def _run(self, body: Any, update: Sequence[Any]) -> Any:
        """Run one of the bodies below as a graph; new batch sizes are traced once."""
        if body.__name__ not in self._functions:
            self._functions[body.__name__] = tf.function(body, autograph=False)
        return self._functions[body.__name__](*_split(update))

    def _gradients(self, values: Any, specs: Any) -> tuple[Any, list[Any]]:
        """The loss and the gradient of an update, on every device; replicas meet once for it."""
        variables = [variable.value for variable in self.model.trainable_variables]

        def replica(*batches: Any) -> Any:
            totals = self._denominators(batches, specs) if self.plan.counts and len(specs) > 1 else None
            losses: list[Any] = []
            sums: list[Any] = []
            for leaves, spec in zip(batches, specs, strict=True):
                known = None if totals is None else common.Denominators(totals)
                with common.use(dataclasses.replace(self._sharding(spec), denominators=known)):
                    with tf.GradientTape() as tape:
                        loss = common.local_loss(self.model, self.plan, self._trees(leaves), training=True)
                        scaled = self.model.optimizer.scale_loss(loss)
                    grads = tape.gradient(scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
                # Keras's optimizers do not add up repeated rows of an embedding's sparse gradient.
                dense = [tf.convert_to_tensor(grad) for grad in grads]
                sums = [total + grad for total, grad in zip(sums, dense, strict=True)] if sums else dense
                losses.append(loss)
            return tf.add_n(losses), sums

        loss, grads = self._strategy.run(replica, args=values)
        if self.devices > 1:
            pairs = list(zip(grads, variables, strict=True))
            grads = self._strategy.extended.batch_reduce_to("SUM", pairs)
        return self._strategy.reduce("SUM", loss, axis=None), grads

    def _denominators(self, batches: Any, specs: Any) -> list[Any]:
        """Count what the losses of all batches of an update divide by, in a forward pass over each."""
        recorded = []
        with common.restored([*self.model.non_trainable_variables, *self.model.metrics_variables]):
            for leaves, spec in zip(batches, specs, strict=True):
                counts = common.Denominators()
                with common.use(dataclasses.replace(self._sharding(spec), denominators=counts)):
                    common.local_loss(self.model, self.plan, self._trees(leaves), training=True)
                recorded.append(counts.recorded)
        return [tf.add_n(counts) for counts in zip(*recorded, strict=True)]

    def _train_as_shipped(self, values: Any, specs: Any) -> Any:
        """As Keras's fit: the optimizer runs on each replica, clips there, and adds up what is left."""

        def replica(leaves: Any) -> Any:
            with common.use(self._sharding(specs[0])):
                with tf.GradientTape() as tape:
                    loss = common.local_loss(self.model, self.plan, self._trees(leaves), training=True)
                grads = tape.gradient(loss, [variable.value for variable in self.model.trainable_variables])
            self.model.optimizer.apply(grads, self.model.trainable_variables)
            return loss

        return self._strategy.reduce("SUM", self._strategy.run(replica, args=values), axis=None)

    def _train(self, values: Any, specs: Any) -> Any:
        loss, grads = self._gradients(values, specs)
        self._apply(grads)
        return loss

    def _apply(self, grads: Any) -> None:
        optimizer = self.model.optimizer
        # In cross-replica context; LossScaleOptimizer.apply refuses that, what it does then does not.
        apply = getattr(optimizer, "_common_apply", optimizer.apply) if self.devices > 1 else optimizer.apply
        apply(grads, self.model.trainable_variables)

    def _evaluate(self, values: Any, specs: Any) -> Any:
        def replica(leaves: Any) -> Any:
            with common.use(self._sharding(specs[0])):
                return common.local_loss(self.model, self.plan, self._trees(leaves), training=False)

        return self._strategy.reduce("SUM", self._strategy.run(replica, args=values), axis=None)

    def _predict(self, values: Any, specs: Any) -> Any:
        def replica(leaves: Any) -> Any:
            with common.use(self._sharding(specs[0])):
                return common.predict(self.model, self.plan, self._trees(leaves)[0])

        return self._strategy.run(replica, args=values)

    def train_step(self, update: Sequence[Any]) -> Any:
        return self._run(self._train_as_shipped if self.track == "as-shipped" else self._train, update)

    def step_result(self, update: Sequence[Any]) -> StepResult:
        function = self._functions.setdefault("gradients", tf.function(self._gradients, autograph=False))
        return self._step_result(function, update)

    def _step_result(self, function: Any, update: Sequence[Any]) -> StepResult:
        states = self.model.non_trainable_variables
        before = [common.to_numpy(self._first(variable)) for variable in states]
        loss, gradients = function(*_split(update))
        after = [common.to_numpy(self._first(variable)) for variable in states]
        for variable, value in zip(states, before, strict=True):
            variable.assign(value)
        arrays = [self._strategy.experimental_local_results(gradient)[0].numpy() for gradient in gradients]
        return StepResult(float(loss), arrays, after, self.metrics())

    def layer_outputs(self, batch: Any) -> dict[str, np.ndarray]:
        values, spec = batch
        names: list[str] = []

        def replica(leaves: Any) -> Any:
            with common.use(self._sharding(spec)), common.restored(self.model.non_trainable_variables):
                return common.layer_outputs(self.model, self._trees(leaves)[0], names)

        with common.watched_layers():
            outputs = tf.function(lambda: self._strategy.run(replica, args=(values,)), autograph=False)()
        first = [self._strategy.experimental_local_results(value)[0].numpy() for value in outputs]
        return dict(zip(names, first, strict=True))

    def apply(self, gradients: Sequence[np.ndarray]) -> None:
        function = self._functions.setdefault("apply", tf.function(self._apply, autograph=False))
        function([tf.constant(gradient) for gradient in gradients])

    def state(self) -> State:
        model = self.model
        groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        return State(*([common.to_numpy(self._first(variable)) for variable in group] for group in groups))

    def load_state(self, state: State) -> None:
        common.load_state(self.model, state)

    def evaluate_step(self, batch: Any) -> Any:
        return self._run(self._evaluate, [batch])

    def losses(self, handles: Sequence[Any]) -> list[float]:
        return [float(handle) for handle in handles]

    def metrics(self) -> dict[str, float]:
        states = []
        for variable in self.model.metrics_variables:
            values = [value.numpy() for value in self._strategy.experimental_local_results(variable.value)]
            states.append(values[0] if self.plan.gather_metrics else sum(values))
        results = common.metric_results(self.model, states)
        self.model.reset_metrics()
        return results

    def predict(self, batch: Any) -> Any:
        outputs = self._run(self._predict, [batch])
        shared = batch[1][2]

        def join(output: Any) -> np.ndarray:
            parts = [part.numpy() for part in self._strategy.experimental_local_results(output)]
            return np.concatenate(parts) if shared else parts[0]

        return keras.tree.map_structure(join, outputs)

    def gather(self, values: np.ndarray) -> np.ndarray:
        return values[None]

    def variables(self) -> list[tuple[str, list[np.ndarray]]]:
        def each(variable: Any) -> list[np.ndarray]:
            return [value.numpy() for value in self._strategy.experimental_local_results(variable.value)]

        return [(variable.path, each(variable)) for variable in self.model.weights]

    def assign(self, values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(self.model.weights, values, strict=True):
            variable.assign(value)

    def peak_bytes(self) -> int | None:
        if self._place.device_kind == "cpu":
            return None
        return max(tf.config.experimental.get_memory_info(name)["peak"] for name in _devices[: self.devices])

    def close(self) -> None:
        pass


def _split(update: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the values of an update's batches, and what is static about them."""
    return tuple(values for values, _ in update), tuple(spec for _, spec in update)
