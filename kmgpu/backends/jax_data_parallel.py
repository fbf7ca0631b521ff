"""JAX: keras.distribution.DataParallel in one process, with a jitted step over Keras's stateless API.

The step is a program over the global batch; XLA splits it over the devices. So losses, batch statistics, metrics and
random masks are those of one device by construction.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kmgpu.backends import common, jax_random
from kmgpu.backends import jax_programs as programs
from kmgpu.backends.adapter import Place, State, StepResult
from kmgpu.backends.jax_devices import devices as all_devices
from kmgpu.backends.jax_devices import lost_peer, start
from kmgpu.data.loader import Batch
from kmgpu.errors import UsageError
from kmgpu.recipe import Recipe

keras = common.import_keras("jax")

__all__ = ["Adapter", "lost_peer", "start"]

PRECISION = "jax_default_matmul_precision"  # of products of float32 and float64, and of convolutions


class Adapter:
    """DataParallel on the first ``devices`` devices of this process."""

    tools = common
    words = jax_random
    one_process_per_device = False
    not_in_callbacks: tuple[str, ...] = ()
    process, processes = 0, 1

    def __init__(self, place: Place, devices: int):
        self.devices, self.device_kind = devices, place.device_kind
        self._used = all_devices[:devices]
        self.mesh = Mesh(np.array(self._used), (programs.AXIS,))
        self._rows = NamedSharding(self.mesh, PartitionSpec(programs.AXIS))
        self._everywhere = NamedSharding(self.mesh, PartitionSpec())
        self._place = place

    def facts(self) -> dict[str, Any]:
        precision = common.precision_facts(self.model, jax.config.values[PRECISION] != "highest")
        return (
            common.model_facts(self.model)
            | precision
            | {
                "framework": f"jax {jax.__version__}",
                "devices": [str(device) for device in self._used],
                "deterministic": self._place.deterministic,
                "compiled": "jit" if not jax.config.jax_disable_jit else False,
                "threads": self._place.threads,
            }
        )

    def reset(self, seed: int, precision: str) -> None:
        keras.backend.clear_session()
        jax.config.update("jax_enable_x64", precision == "float64")
        jax.config.update(PRECISION, "tensorfloat32" if precision == "tf32" else "highest")
        common.set_precision(precision)
        keras.utils.set_random_seed(seed)

    @contextlib.contextmanager
    def scope(self) -> Any:
        distribution = keras.distribution.DataParallel(devices=self._used, auto_shard_dataset=False)
        keras.distribution.set_distribution(distribution)
        yield

    def prepare(self, recipe: Recipe, sample: Sequence[Batch], options: dict[str, Any]) -> list[str]:
        self.model = recipe.model
        self.policy = common.Policy(self.devices, recipe.batch_norm, recipe.gradient_reduction)
        self._copies = common.build(self.model, sample[0], scored="predicted" not in options)
        self.track = options["track"]
        plan = common.make_plan(
            self.model, sample[0].x, options["loss_gather"], recipe.accumulate, sample[0]
        )
        # The program sees all rows, so nothing is gathered; accumulation on shares needs metrics that add up.
        self.plan = common.Plan((), (), counts=plan.counts)
        self._accumulates_on_shares = self.track == "same-math" and not (plan.gather_metrics or plan.whole)
        self._compile()
        self._pull()
        pieces = common.check_pieces(self, sample) if self.track == "same-math" and len(sample) > 1 else []
        if self._accumulates_on_shares and len(sample) > 1:
            common.check(self, sample, options["sizes"], (), (), None, gathers=False)
        self._pull()
        return [*pieces, *self._notes(sample)]

    def _notes(self, sample: Sequence[Batch]) -> list[str]:
        if len(sample) == 1 or self.devices == 1:
            return []
        why = "; ".join(self.plan.whole)
        if not self._accumulates_on_shares:
            why = "a metric needs the outputs of all devices" if self.track == "same-math" else "as shipped"
        elif not why and not self.shares([self.put(batch) for batch in sample]):
            why = "a batch of it does not divide over the devices"
        return [f"gradients travel {len(sample)} times for each update, not once: {why}"] if why else []

    def shares(self, update: Sequence[Any]) -> bool:
        """Whether each device adds up the gradients of its own rows over the batches of an update."""
        divide = all(size % self.devices == 0 for _, (size, *_) in update)
        return self._accumulates_on_shares and len(update) > 1 and self.devices > 1 and divide

    def _compile(self) -> None:
        """Make the programs; what they hold of an earlier recipe, or of layers trainable then, is forgotten."""

        def compiled(program: Any, **options: Any) -> Any:
            return jax.jit(functools.partial(program), **options)  # jit finds equal functions' traces again

        self._fresh: dict[Any, Any] = {}
        self._train = compiled(self._train_program, static_argnames="sizes", donate_argnums=0)
        self._step = compiled(self._step_program, static_argnames="sizes")
        self._update = compiled(self._update_program)
        self._evaluate = compiled(self._evaluate_program, static_argnames="sizes", donate_argnums=0)
        self._predict = compiled(self._predict_program, static_argnames="sizes")

    def _pull(self) -> None:
        """Take the state from Keras's variables; the steps carry it from then on."""
        model = self.model
        states = (model.trainable_variables, model.non_trainable_variables)
        self.state_variables = (*states, model.optimizer.variables, model.metrics_variables)
        self._state = [
            [jax.device_put(np.asarray(variable.value), self._everywhere) for variable in group]
            for group in self.state_variables
        ]

    def _push(self) -> None:
        """Give the state back to Keras's variables."""
        for group, values in zip(self.state_variables, self._state, strict=True):
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
            array = _in_32_bits(common.as_keras(array))
            if padding:
                array = np.concatenate([array, np.zeros((padding, *array.shape[1:]), array.dtype)])
            return jax.device_put(array, self._rows)

        trees = keras.tree.map_structure(place, (batch.x, batch.y, batch.sample_weight))
        return trees, (batch.size, batch.update_size, self.policy.devices, batch.offset)

    def _train_program(self, state: Any, update: Any, sizes: Any) -> Any:
        loss, grads, (assigned, other, _, metrics) = programs.gradients(self, state, update, sizes)
        trainable, slots = self._update_program([assigned, other, state[2]], grads)
        return self._replicated([trainable, other, slots, metrics]), loss

    def _step_program(self, state: Any, update: Any, sizes: Any) -> Any:
        loss, grads, after = programs.gradients(self, state, update, sizes)
        return loss, self._replicated([grads, after])

    def _update_program(self, state: Any, grads: Any) -> Any:
        """The optimizer takes all variables that it was built for; those that are frozen now have no gradient."""
        known = self.model.optimizer._trainable_variables
        here, others = self.state_variables[0], self.state_variables[1]
        values = {id(variable): value for variable, value in zip([*here, *others], [*state[0], *state[1]], strict=True)}
        gradients = {id(variable): gradient for variable, gradient in zip(here, grads, strict=True)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Gradients do not exist")
            updated, slots = self.model.optimizer.stateless_apply(
                state[2], [gradients.get(id(variable)) for variable in known], [values[id(v)] for v in known]
            )
        after = {id(variable): value for variable, value in zip(known, updated, strict=True)}
        return [after[id(variable)] for variable in here], slots

    def _evaluate_program(self, state: Any, update: Any, sizes: Any) -> Any:
        _, (loss, after) = programs.loss(self, state[0], state, update, sizes, False)
        return self._replicated([state[0], after[1], state[2], after[3]]), loss

    def _predict_program(self, state: Any, update: Any, sizes: Any) -> Any:
        x = keras.tree.map_structure(lambda a: None if a is None else a[: sizes[0][0]], update[0])[0]
        training = {"training": False} if self.model._call_has_training_arg else {}
        outputs, other = self.model.stateless_call(state[0], state[1], x, **training)
        return self._replicated((outputs, other))

    def _replicated(self, state: Any) -> Any:
        return jax.lax.with_sharding_constraint(state, self._everywhere)

    def train_step(self, update: Sequence[Any]) -> Any:
        self._state, loss = self._train(self._state, *_split(update))
        return loss

    def step_result(self, update: Sequence[Any]) -> StepResult:
        return self._step_result(self._step, update)

    def fresh_result(self, update: Sequence[Any], training: bool) -> StepResult:
        self._pull()  # the weights were changed from outside
        key = self.plan, self.policy
        if key not in self._fresh:
            program = functools.partial(self._step_program)  # jit finds equal functions' traces again
            self._fresh[key] = jax.jit(program, static_argnames="sizes")
        return self._step_result(self._fresh[key], update)

    def _step_result(self, program: Any, update: Sequence[Any]) -> StepResult:
        loss, (gradients, after) = program(self._state, *_split(update))
        self._state[3] = after[3]
        return StepResult(float(loss), _arrays(gradients), _arrays(after[1]), self.metrics())

    def operations(self, update: Sequence[Any]) -> int | None:
        return None  # XLA counts every operation of its program, which is another number than the model's

    def layer_outputs(self, batch: Any) -> dict[str, np.ndarray]:
        trees, spec = batch
        names: list[str] = []

        def program(state: Any, trees: Any) -> Any:
            groups = zip(self.state_variables, state, strict=True)
            pairs = [pair for group in groups for pair in zip(*group, strict=True)]
            here = programs.sharding(self, spec)
            with keras.StatelessScope(state_mapping=pairs, collect_losses=True), common.use(here):
                rows = keras.tree.map_structure(lambda a: None if a is None else a[: spec[0]], trees)
                return self._replicated(common.layer_outputs(self.model, rows[0], names))

        with common.watched_layers():
            outputs = jax.jit(program)(self._state, trees)
        return dict(zip(names, map(np.asarray, outputs), strict=True))

    def apply(self, gradients: Sequence[np.ndarray]) -> None:
        placed = [jax.device_put(gradient, self._everywhere) for gradient in gradients]
        self._state[0], self._state[2] = self._update(self._state, placed)

    def state(self) -> State:
        return State(*(_arrays(group) for group in self._state[:3]))

    def states(self) -> list[np.ndarray]:
        return [common.to_numpy(variable.value) for variable in self.model.non_trainable_variables]

    def load_state(self, state: State) -> None:
        common.load_state(self.model, state)
        self._pull()

    def metric_parts(self) -> list[np.ndarray]:
        return [value[None] for value in _arrays(self._state[3])]

    def load_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        self._push()
        for variable, part in zip(self.model.metrics_variables, parts, strict=True):
            variable.assign(part.sum(axis=0, dtype=part.dtype))
        self._pull()

    def random_state(self) -> dict[str, np.ndarray]:
        return common.random_state()

    def load_random_state(self, state: dict[str, np.ndarray]) -> None:
        common.load_random_state(state)

    def evaluate_step(self, batch: Any) -> Any:
        self._state, loss = self._evaluate(self._state, *_split([batch]))
        return loss

    def losses(self, handles: Sequence[Any]) -> list[float]:
        return [float(value) for value in jax.device_get(list(handles))]

    def metrics(self, reset: bool = True) -> dict[str, float]:
        results = common.metric_results(self.model, [np.asarray(value) for value in self._state[3]])
        if reset:
            self._push()
            self.model.reset_metrics()
            self._pull()
        return results

    def predict(self, batch: Any) -> Any:
        outputs, self._state[1] = self._predict(self._state, *_split([batch]))
        return keras.tree.map_structure(np.asarray, outputs)

    def gather(self, values: np.ndarray) -> np.ndarray:
        return values[None]

    def broadcast(self, data: bytes) -> bytes:
        return data

    def lend(self) -> None:
        # All variables have their places, and model.predict would refuse rows that the devices do not divide.
        keras.distribution.set_distribution(None)
        self._push()

    def changed(self) -> list[int]:
        return [
            number for number, (variable, value) in enumerate(self._pairs()) if variable._value is not value
        ]

    def share(self, changed: Sequence[int]) -> None:
        pairs = list(self._pairs())
        flat = [value for _, value in pairs]
        for number in changed:
            flat[number] = jax.device_put(np.asarray(pairs[number][0].value), self._everywhere)
        values = iter(flat)
        self._state = [[next(values) for _ in group] for group in self._state[:3]] + [self._state[3]]

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        """The variables and their values, without the metrics'."""
        for group, values in zip(self.state_variables[:3], self._state[:3], strict=True):
            yield from zip(group, values, strict=True)

    def rebuild(self) -> None:
        self._push()
        self._compile()
        self._pull()

    def variables(self) -> list[tuple[str, list[np.ndarray]]]:
        self._push()

        def each(variable: Any) -> list[np.ndarray]:
            return [np.asarray(shard.data) for shard in variable.value.addressable_shards]

        return [(variable.path, each(variable)) for variable in self.model.weights]

    def assign(self, values: Sequence[np.ndarray]) -> None:
        self._push()
        common.assign(self.model, values, self._copies)
        self._pull()

    def peak_bytes(self) -> int | None:
        if self._place.device_kind == "cpu":
            return None
        return max(device.memory_stats()["peak_bytes_in_use"] for device in self._used)

    def close(self) -> None:
        pass


def _in_32_bits(array: np.ndarray) -> np.ndarray:
    """Return an array; refuses integers that JAX would cut to 32 bits without a word."""
    if array.dtype in (np.int64, np.uint64) and array.size and not jax.config.jax_enable_x64:
        kept = np.iinfo(np.int32 if array.dtype == np.int64 else np.uint32)
        for value in (array.min(), array.max()):
            if not kept.min <= value <= kept.max:
                raise UsageError(
                    f"the data hold the {array.dtype} {value}, and JAX cuts integers to 32 bits; bring them into that "
                    "range in the data, or use --precision float64, with which JAX keeps 64 bits"
                )
    return array


def _arrays(values: Any) -> list[np.ndarray]:
    return [np.array(value) for value in values]  # copies: on CPU an array of JAX's may share its memory


def _split(update: Sequence[Any]) -> tuple[list[Any], tuple[tuple[int, int, int, int], ...]]:
    """Return the arrays of an update's batches, and what is static about them."""
    return [trees for trees, _ in update], tuple(sizes for _, sizes in update)
