"""JAX: keras.distribution.DataParallel in one process, with a jitted step over Keras's stateless API.

The step is a program over the global batch; XLA splits it over the devices. So losses, batch statistics, metrics and
random masks are those of one device by construction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kmgpu.backends import keras_common as common
from kmgpu.backends.adapter import Place, State, StepResult
from kmgpu.data.loader import Batch
from kmgpu.errors import MissingEnvironment, UsageError
from kmgpu.recipe import Recipe

keras = common.import_keras("jax")

_devices: list[Any] = []


def start(place: Place) -> None:
    """Initialise the devices of this process."""
    jax.config.update("jax_default_matmul_precision", "highest")
    if place.device_kind == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", place.devices)
        _devices[:] = jax.devices()
        return
    try:
        found = jax.devices("gpu")
    except RuntimeError:
        found = []
    chosen = place.device_ids or tuple(range(place.devices))
    if len(found) <= max(chosen):
        raise MissingEnvironment(
            f"JAX sees {len(found)} GPUs, the run asks for device {max(chosen)}; "
            "install jax[cuda13] or use --device-kind cpu"
        )
    _devices[:] = [found[index] for index in chosen]


def lost_peer(error: BaseException) -> bool:
    """There is only one process."""
    return False


class Adapter:
    """DataParallel on the first ``devices`` devices of this process."""

    one_process_per_device = False
    process, processes = 0, 1

    def __init__(self, place: Place, devices: int):
        self.devices = devices
        self._used = _devices[:devices]
        mesh = Mesh(np.array(self._used), ("batch",))
        self._rows = NamedSharding(mesh, PartitionSpec("batch"))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._place = place

    def facts(self) -> dict[str, Any]:
        return common.model_facts(self.model) | {
            "framework": f"jax {jax.__version__}",
            "devices": [str(device) for device in self._used],
            "precision": {
                "dtype": keras.config.floatx(),
                "tf32": jax.config.values["jax_default_matmul_precision"] != "highest",
            },
            "compiled": "jit",
            "threads": self._place.threads,
        }

    def reset(self, seed: int, dtype: str) -> None:
        keras.backend.clear_session()
        jax.config.update("jax_enable_x64", dtype == "float64")
        common.set_float(dtype)
        keras.utils.set_random_seed(seed)

    def fixed_randomness(self, keep: bool) -> Any:
        return contextlib.nullcontext() if keep else common.without_randomness()

    def names(self) -> dict[str, list[str]]:
        return common.names(self.model)

    def dtypes(self) -> dict[str, str]:
        return common.dtypes(self.model)

    @contextlib.contextmanager
    def scope(self) -> Any:
        distribution = keras.distribution.DataParallel(devices=self._used, auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)
        yield

    def prepare(self, recipe: Recipe, sample: Sequence[Batch], options: dict[str, Any]) -> list[str]:
        self.model = recipe.model
        self.batch_norm = recipe.batch_norm
        common.build(self.model, sample[0])
        # The program sees all rows, so nothing is gathered; only accumulation needs a plan.
        self.track = options["track"]
        plan = common.make_plan(self.model, options["loss_gather"], recipe.accumulate)
        self.plan = common.Plan((), (), counts=plan.counts)
        self._train = jax.jit(self._train_program, static_argnames="sizes", donate_argnums=0)
        self._step = jax.jit(self._step_program, static_argnames="sizes")
        self._update = jax.jit(self._update_program)
        self._evaluate = jax.jit(self._evaluate_program, static_argnames="sizes", donate_argnums=0)
        self._predict = jax.jit(self._predict_program, static_argnames="sizes")
        self._pull()
        return []

    def _pull(self) -> None:
        """Take the state from Keras's variables; the steps carry it from then on."""
        model = self.model
        states = (model.trainable_variables, model.non_trainable_variables)
        self._variables = (*states, model.optimizer.variables, model.metrics_variables)
        self._state = [
            [jax.device_put(np.asarray(variable.value), self._everywhere) for variable in group]
            for group in self._variables
        ]

    def _push(self) -> None:
        """Give the state back to Keras's variables."""
        for group, values in zip(self._variables, self._state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable._value = value

    def put(self, batch: Batch) -> Any:
        """Rows are padded to a multiple of the devices; the programs drop the padding before anything else."""
        padding = -batch.size % self.devices
        if padding and self.track == "as-shipped":
            raise UsageError(
                f"as shipped, DataParallel on JAX takes no batch of {batch.size} rows on {self.devices} devices; "
                "use a batch size that divides both rows and devices, or --track same-math"
            )

        def place(array: np.ndarray | None) -> Any:
            if array is None:
                return None
            array = common.as_keras(array)
            if padding:
                array = np.concatenate([array, np.zeros((padding, *array.shape[1:]), array.dtype)])
            return jax.device_put(array, self._rows)

        trees = keras.tree.map_structure(place, (batch.x, batch.y, batch.sample_weight))
        return trees, (batch.size, batch.update_size)

    def _loss(self, trainable: Any, state: Any, update: Any, sizes: Any, training: bool) -> Any:
        """The loss to differentiate; beside it the loss itself, and all other state after the step."""
        groups = (trainable, *state[1:])
        pairs = [pair for group in zip(self._variables, groups, strict=True) for pair in zip(*group, strict=True)]
        totals = None
        if self.plan.counts and len(sizes) > 1:
            with keras.StatelessScope(state_mapping=pairs, collect_losses=True):
                recorded = [common.Denominators() for _ in sizes]
                self._losses(update, sizes, recorded, training)
            totals = [sum(counts) for counts in zip(*(each.recorded for each in recorded), strict=True)]
        with keras.StatelessScope(state_mapping=pairs, collect_losses=True) as scope:
            known = [None if totals is None else common.Denominators(totals) for _ in sizes]
            loss = self._losses(update, sizes, known, training)
            scaled = self.model.optimizer.scale_loss(loss) if training else loss
        after = [[scope.get_current_value(variable) for variable in group] for group in self._variables]
        return scaled, (loss, after)

    def _losses(self, update: Any, sizes: Any, denominators: Any, training: bool) -> Any:
        losses = []
        for trees, (size, whole), counts in zip(update, sizes, denominators, strict=True):
            rows = keras.tree.map_structure(lambda a, size=size: None if a is None else a[:size], trees)
            groups = self.devices if self.batch_norm == "replica" else 1
            here = common.Sharding(rows=size, size=size, update=whole, denominators=counts, groups=groups)
            with common.use(here):
                losses.append(common.local_loss(self.model, self.plan, rows, training))
        return sum(losses[1:], losses[0])

    def _gradients(self, state: Any, update: Any, sizes: Any) -> Any:
        compute = jax.value_and_grad(self._loss, has_aux=True)
        (_, (loss, after)), grads = compute(state[0], state, update, sizes, True)
        return loss, grads, after

    def _train_program(self, state: Any, update: Any, sizes: Any) -> Any:
        loss, grads, (_, other, _, metrics) = self._gradients(state, update, sizes)
        trainable, slots = self._update_program(state, grads)
        return self._replicated([trainable, other, slots, metrics]), loss

    def _step_program(self, state: Any, update: Any, sizes: Any) -> Any:
        loss, grads, after = self._gradients(state, update, sizes)
        return loss, self._replicated([grads, after])

    def _update_program(self, state: Any, grads: Any) -> Any:
        return self.model.optimizer.stateless_apply(state[2], grads, state[0])

    def _evaluate_program(self, state: Any, update: Any, sizes: Any) -> Any:
        _, (loss, after) = self._loss(state[0], state, update, sizes, False)
        return self._replicated([*state[:3], after[3]]), loss

    def _predict_program(self, state: Any, update: Any, sizes: Any) -> Any:
        x = keras.tree.map_structure(lambda a: None if a is None else a[: sizes[0][0]], update[0])[0]
        training = {"training": False} if self.model._call_has_training_arg else {}
        outputs, _ = self.model.stateless_call(state[0], state[1], x, **training)
        return jax.lax.with_sharding_constraint(outputs, self._everywhere)

    def _replicated(self, state: Any) -> Any:
        return jax.lax.with_sharding_constraint(state, self._everywhere)

    def train_step(self, update: Sequence[Any]) -> Any:
        self._state, loss = self._train(self._state, *_split(update))
        return loss

    def step_result(self, update: Sequence[Any]) -> StepResult:
        loss, (gradients, after) = self._step(self._state, *_split(update))
        self._state[3] = after[3]
        return StepResult(float(loss), _arrays(gradients), _arrays(after[1]), self.metrics())

    def layer_outputs(self, batch: Any) -> dict[str, np.ndarray]:
        trees, (size, update) = batch
        names: list[str] = []

        def program(state: Any, trees: Any) -> Any:
            pairs = [pair for group in zip(self._variables, state, strict=True) for pair in zip(*group, strict=True)]
            here = common.Sharding(rows=size, size=size, update=update)
            with keras.StatelessScope(state_mapping=pairs, collect_losses=True), common.use(here):
                rows = keras.tree.map_structure(lambda a: None if a is None else a[:size], trees)
                return self._replicated(common.layer_outputs(self.model, rows[0], names))

        with common.watched_layers():
            outputs = jax.jit(program)(self._state, trees)
        return dict(zip(names, map(np.asarray, outputs), strict=True))

    def apply(self, gradients: Sequence[np.ndarray]) -> None:
        placed = [jax.device_put(gradient, self._everywhere) for gradient in gradients]
        self._state[0], self._state[2] = self._update(self._state, placed)

    def state(self) -> State:
        return State(*(_arrays(group) for group in self._state[:3]))

    def load_state(self, state: State) -> None:
        common.load_state(self.model, state)
        self._pull()

    def evaluate_step(self, batch: Any) -> Any:
        self._state, loss = self._evaluate(self._state, *_split([batch]))
        return loss

    def losses(self, handles: Sequence[Any]) -> list[float]:
        return [float(value) for value in jax.device_get(list(handles))]

    def metrics(self) -> dict[str, float]:
        results = common.metric_results(self.model, [np.asarray(value) for value in self._state[3]])
        self._push()
        self.model.reset_metrics()
        self._pull()
        return results

    def predict(self, batch: Any) -> Any:
        return keras.tree.map_structure(np.asarray, self._predict(self._state, *_split([batch])))

    def gather(self, values: np.ndarray) -> np.ndarray:
        return values[None]

    def variables(self) -> list[tuple[str, list[np.ndarray]]]:
        self._push()

        def each(variable: Any) -> list[np.ndarray]:
            return [np.asarray(shard.data) for shard in variable.value.addressable_shards]

        return [(variable.path, each(variable)) for variable in self.model.weights]

    def assign(self, values: Sequence[np.ndarray]) -> None:
        self._push()
        for variable, value in zip(self.model.weights, values, strict=True):
            variable.assign(value)
        self._pull()

    def peak_bytes(self) -> int | None:
        if self._place.device_kind == "cpu":
            return None
        return max(device.memory_stats()["peak_bytes_in_use"] for device in self._used)

    def close(self) -> None:
        pass


def _arrays(values: Any) -> list[np.ndarray]:
    return [np.asarray(value) for value in values]


def _split(update: Sequence[Any]) -> tuple[list[Any], tuple[tuple[int, int], ...]]:
    """Return the arrays of an update's batches, and their sizes, which are static."""
    return [trees for trees, _ in update], tuple(sizes for _, sizes in update)
