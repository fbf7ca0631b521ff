"""TensorFlow: MirroredStrategy in one process, with a step of our own (NCCL on GPU).

Gradients are summed before the optimizer sees them, so clipping, accumulation and loss scaling act on the gradient of
the global batch; Keras's fit under MirroredStrategy applies them on each replica first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmgpu.backends import common, tf_random
from kmgpu.backends import tf_programs as programs
from kmgpu.backends.adapter import Place, State, StepResult
from kmgpu.backends.tf_devices import devices as all_devices
from kmgpu.backends.tf_devices import lost_peer, start, tf
from kmgpu.data.loader import Batch, split
from kmgpu.recipe import Recipe

keras = common.import_keras("tensorflow")

__all__ = ["Adapter", "lost_peer", "start"]


class Adapter:
    """MirroredStrategy on the first ``devices`` devices of this process."""

    tools = common
    words = tf_random
    one_process_per_device = False
    process, processes = 0, 1
    not_in_callbacks: tuple[str, ...] = ()

    def __init__(self, place: Place, devices: int):
        self.devices, self.device_kind = devices, place.device_kind
        # Collectives of several strategies in one process mix up their keys on CPU (TensorFlow 2.21).
        across = tf.distribute.NcclAllReduce() if place.device_kind == "gpu" else tf.distribute.ReductionToOneDevice()
        self.strategy = tf.distribute.MirroredStrategy(all_devices[:devices], cross_device_ops=across)
        self._place = place
        if devices > 1:  # the states of metrics lie apart on the devices, and Keras cannot add to them from outside
            self.not_in_callbacks = ("evaluate", "test_on_batch")

    def facts(self) -> dict[str, Any]:
        tf32 = tf.config.experimental.tensor_float_32_execution_enabled()
        return (
            common.model_facts(self.model)
            | common.precision_facts(self.model, tf32)
            | {
                "framework": f"tensorflow {tf.__version__}",
                "devices": [name.removeprefix("/device:") for name in all_devices[: self.devices]],
                "deterministic": self._place.deterministic,
                "compiled": "tf.function" if not tf.config.functions_run_eagerly() else False,
                "threads": tf.config.threading.get_intra_op_parallelism_threads(),
            }
        )

    def reset(self, seed: int, precision: str) -> None:
        keras.backend.clear_session()
        tf.config.experimental.enable_tensor_float_32_execution(precision == "tf32")
        common.set_precision(precision)
        keras.utils.set_random_seed(seed)

    def scope(self) -> Any:
        return self.strategy.scope()

    def prepare(self, recipe: Recipe, sample: Sequence[Batch], options: dict[str, Any]) -> list[str]:
        self.model = recipe.model
        self.policy = common.Policy(self.devices, recipe.batch_norm, recipe.gradient_reduction)
        with self.scope():
            self._copies = common.build(self.model, sample[0], scored="predicted" not in options)
        self.plan = common.make_plan(
            self.model, sample[0].x, options["loss_gather"], recipe.accumulate, sample[0]
        )
        self.track = options["track"]
        self._functions: dict[Any, Any] = {}
        if self.track == "as-shipped":
            self.plan = common.Plan((), ())
        else:
            self._assign_alike()
            pieces = common.check_pieces(self, sample) if len(sample) > 1 else []
            common.check(
                self, sample, options["sizes"], options["evaluated"], options.get("predicted", ()),
                options.get("validation"),
            )  # fmt: skip
            return [*pieces, *self.plan.notes(self.devices)]
        return self.plan.notes(self.devices)

    def _assign_alike(self) -> None:
        """Let a state keep what a layer assigns, where TensorFlow would assign the sum over the replicas.

        On one device it keeps that, too. What is right on shares of a batch only as a sum is found by the check.
        """
        for variable in self.model.non_trainable_variables:
            mirrored = variable.value
            if getattr(mirrored, "_aggregation", None) == tf.VariableAggregation.SUM:
                mirrored._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA

    def shares(self, update: Sequence[Any]) -> bool:
        return any(shared for _, (_, _, shared, *_) in update)

    def _first(self, variable: Any) -> Any:
        return self.strategy.experimental_local_results(variable.value)[0]

    def put(self, batch: Batch) -> Any:
        arrays = keras.tree.map_structure(
            lambda array: None if array is None else common.as_keras(array), (batch.x, batch.y, batch.sample_weight)
        )
        self.layout = keras.tree.map_structure(lambda array: array is not None, arrays)
        leaves = [array for array in keras.tree.flatten(arrays) if array is not None]
        shares = split(batch.size, self.devices) if self.devices > 1 else None
        parts = shares or [slice(0, batch.size)] * self.devices
        values = self.strategy.experimental_distribute_values_from_function(
            lambda context: tuple(tf.constant(leaf[parts[context.replica_id_in_sync_group]]) for leaf in leaves)
        )
        return values, (batch.size, batch.update_size, shares is not None, self.policy.devices, batch.offset)

    def _function(self, program: Any) -> Any:
        return tf.function(functools.partial(program, self), autograph=False)

    def _run(self, program: Any, update: Sequence[Any]) -> Any:
        """Run a program as a graph; new batch sizes are traced once."""
        if program.__name__ not in self._functions:
            self._functions[program.__name__] = self._function(program)
        return self._functions[program.__name__](*_split(update))

    def train_step(self, update: Sequence[Any]) -> Any:
        return self._run(programs.train_as_shipped if self.track == "as-shipped" else programs.train, update)

    def fresh_result(self, update: Sequence[Any], training: bool) -> StepResult:
        if not training:
            with self._restored():
                loss = float(programs.evaluate(self, *_split(update)))
            return StepResult(loss, [], [], self.metrics())
        return self._step_result(functools.partial(programs.gradients, self), update)

    def fresh_outputs(self, batch: Any) -> Any:
        with self._restored():
            return self._outputs(programs.predict(self, *_split([batch])), batch)

    def step_result(self, update: Sequence[Any]) -> StepResult:
        function = self._functions.setdefault("gradients", self._function(programs.gradients))
        return self._step_result(function, update)

    def _step_result(self, function: Any, update: Sequence[Any]) -> StepResult:
        with self._restored():
            loss, gradients = function(*_split(update))
            after = [common.to_numpy(self._first(variable)) for variable in self.model.non_trainable_variables]
        arrays = [self.strategy.experimental_local_results(gradient)[0].numpy() for gradient in gradients]
        return StepResult(float(loss), arrays, after, self.metrics())

    @contextlib.contextmanager
    def _restored(self) -> Any:
        """After this context what a forward pass may assign is what it was before."""
        changed = [*common.assigned_weights(self.model), *self.model.non_trainable_variables]
        before = [common.to_numpy(self._first(variable)) for variable in changed]
        yield
        for variable, value in zip(changed, before, strict=True):
            variable.assign(value)

    def operations(self, update: Sequence[Any]) -> int | None:
        return None  # TensorFlow's profiler counts graphs of version 1 alone

    def layer_outputs(self, batch: Any) -> dict[str, np.ndarray]:
        values, spec = batch
        names: list[str] = []

        def replica(leaves: Any) -> Any:
            with common.use(programs.sharding(self, spec)), common.restored(common.assigned(self.model)):
                return common.layer_outputs(self.model, programs.trees(self, leaves)[0], names)

        with common.watched_layers():
            outputs = tf.function(lambda: self.strategy.run(replica, args=(values,)), autograph=False)()
        first = [self.strategy.experimental_local_results(value)[0].numpy() for value in outputs]
        return dict(zip(names, first, strict=True))

    def apply(self, gradients: Sequence[np.ndarray]) -> None:
        function = self._functions.setdefault("apply", self._function(programs.apply))
        function([tf.constant(gradient) for gradient in gradients])

    def state(self) -> State:
        model = self.model
        groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
        return State(*([common.to_numpy(self._first(variable)) for variable in group] for group in groups))

    def states(self) -> list[np.ndarray]:
        return [common.to_numpy(self._first(variable)) for variable in self.model.non_trainable_variables]

    def load_state(self, state: State) -> None:
        common.load_state(self.model, state)

    def metric_parts(self) -> list[np.ndarray]:
        each = self.strategy.experimental_local_results
        variables = self.model.metrics_variables
        states = [np.stack([value.numpy() for value in each(variable.value)]) for variable in variables]
        return common.parts(states, self.plan.of_all_rows)

    def load_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        for index in range(self.devices):
            values = common.of_device(parts, self.plan.of_all_rows, self.devices, index)
            for variable, value in zip(self.model.metrics_variables, values, strict=True):
                self.strategy.experimental_local_results(variable.value)[index].assign(value)

    def random_state(self) -> dict[str, np.ndarray]:
        return common.random_state()

    def load_random_state(self, state: dict[str, np.ndarray]) -> None:
        common.load_random_state(state)

    def evaluate_step(self, batch: Any) -> Any:
        return self._run(programs.evaluate, [batch])

    def losses(self, handles: Sequence[Any]) -> list[float]:
        return [float(handle) for handle in handles]

    def metrics(self, reset: bool = True) -> dict[str, float]:
        results = common.metric_results(self.model, [part.sum(axis=0) for part in self.metric_parts()])
        if reset:
            self.model.reset_metrics()
        return results

    def predict(self, batch: Any) -> Any:
        return self._outputs(self._run(programs.predict, [batch]), batch)

    def _outputs(self, outputs: Any, batch: Any) -> Any:
        def join(output: Any) -> np.ndarray:
            parts = [part.numpy() for part in self.strategy.experimental_local_results(output)]
            return np.concatenate(parts) if batch[1][2] else parts[0]

        return keras.tree.map_structure(join, outputs)

    def gather(self, values: np.ndarray) -> np.ndarray:
        return values[None]

    def broadcast(self, data: bytes) -> bytes:
        return data

    def lend(self) -> None:
        # Keras's variables are those that the steps use. On several devices, Keras's predict divides the rows it is
        # given in ways of its own, and fails where they do not divide (TensorFlow 2.21); on one it does not.
        self.model._distribute_strategy = None

    def changed(self) -> list[int]:
        return []

    def share(self, changed: Sequence[int]) -> None:
        pass  # MirroredStrategy assigns to all devices

    def rebuild(self) -> None:
        self._functions = {}

    def variables(self) -> list[tuple[str, list[np.ndarray]]]:
        def each(variable: Any) -> list[np.ndarray]:
            return [value.numpy() for value in self.strategy.experimental_local_results(variable.value)]

        return [(variable.path, each(variable)) for variable in self.model.weights]

    def assign(self, values: Sequence[np.ndarray]) -> None:
        common.assign(self.model, values, self._copies)

    def peak_bytes(self) -> int | None:
        if self._place.device_kind == "cpu":
            return None
        return max(tf.config.experimental.get_memory_info(name)["peak"] for name in all_devices[: self.devices])

    def close(self) -> None:
        pass


def _split(update: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the values of an update's batches, and what is static about them."""
    return tuple(values for values, _ in update), tuple(spec for _, spec in update)
