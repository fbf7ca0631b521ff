"""What the adapters share about Keras: its import, the exact loss of a shared batch, metrics and variables.

Keras reduces a loss, a mask or batch statistics over the rows it is given. On a replica these are only its share of the
global batch, so a mean becomes a mean of means. Here the few places where Keras reduces over rows ask ``sharding()``
how the rows lie, and take numerators from the share and denominators from the whole batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kmgpu.backends import replacements
from kmgpu.backends.adapter import State, StepResult
from kmgpu.data.loader import Batch, split
from kmgpu.errors import UsageError

FRAMEWORKS = {"torch": ("torch",), "tensorflow": ("tensorflow",), "jax": ("jax", "jaxlib")}


def import_keras(backend: str) -> Any:
    """Import Keras on one backend, the other frameworks blocked meanwhile, with Keras's own defaults.

    Keras on torch and on TensorFlow imports JAX by itself; a user's keras.json could change dtype or image layout.
    """
    os.environ["KERAS_BACKEND"] = backend
    others = {name for key, names in FRAMEWORKS.items() if key != backend for name in names}
    with _blocked(others):
        import keras
        from keras.src.utils import module_utils
    for name in others & {"tensorflow", "jax"}:
        # Keras imports the others to ask whether an object is of their kind: they are there once a recipe has them.
        lazy = getattr(module_utils, name)
        imported = property(lambda self: self.name in sys.modules)
        lazy.__class__ = type("OnlyIfImported", (type(lazy),), {"available": imported})
    if keras.backend.backend() != backend:
        raise UsageError(f"Keras runs on {keras.backend.backend()!r} in this process, the run asked for {backend!r}")
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    _install()
    return keras


@contextlib.contextmanager
def _blocked(names: set[str]) -> Iterator[None]:
    """Within this context the packages seem not to be installed, unless they are imported already."""

    class Blocker(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] in names else None

        def create_module(self, spec: Any) -> Any:
            raise ModuleNotFoundError(f"{spec.name} is blocked while Keras is imported", name=spec.name)

    blocker = Blocker()
    sys.meta_path.insert(0, blocker)
    try:
        yield
    finally:
        sys.meta_path.remove(blocker)


# --- how the rows of a batch lie on the replicas ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sharding:
    """How the rows of one global batch lie on the replicas, while a step is run or traced."""

    count: int = 1  # replicas that share the batch; 1: this replica has all rows
    index: int = 0  # of this replica
    first: int = 0  # position in the batch of this replica's first row
    rows: int = 1  # of this replica
    size: int = 1  # of the batch
    update: int = 1  # rows of the update that the batch is part of; the same unless gradients are accumulated
    replicas: int = 1  # that compute the same where the batch is not shared
    all_sum: Callable[[Any], Any] = lambda tensor: tensor  # over the replicas; differentiable
    batch_norm: str = "global"
    groups: int = 1  # shares of which BatchNorm takes statistics apart, as so many replicas would
    shipped: bool = False  # whether a replica does what the framework does by itself, as if its rows were all
    counts: bool = True  # whether metrics count this replica's rows; not where several replicas have the same rows
    denominators: Denominators | None = None  # those of the whole update, where it has several batches
    loss_scale: float = 1.0  # what the losses that layers add are multiplied by, beside the share of rows

    @property
    def share(self) -> float:
        return self.rows / self.update

    def total(self, count: Any) -> Any:
        """Return the sum over the whole update of a count that depends on the rows: valid tokens, weights."""
        return self.all_sum(count) if self.denominators is None else self.denominators.total(count, self.all_sum)

    def whole(self, count: int) -> int | float:
        """Return the number over the whole update of what this replica has ``count`` of, row by row."""
        product = count * self.update
        return product // self.rows if product % self.rows == 0 else product / self.rows


class Denominators:
    """Counts over an update of several batches: recorded in a pass over each of them, then added up and given."""

    def __init__(self, given: Sequence[Any] | None = None):
        self.recorded: list[Any] = []
        self._given = None if given is None else list(given)
        self._asked = 0

    def total(self, count: Any, all_sum: Callable[[Any], Any]) -> Any:
        if self._given is None:
            self.recorded.append(all_sum(count))
            return self.recorded[-1]
        self._asked += 1
        return self._given[self._asked - 1]


_state = threading.local()  # MirroredStrategy runs its replicas in threads
_randomness = {"off": False}  # for all threads


def sharding() -> Sharding:
    return getattr(_state, "sharding", None) or Sharding()


@contextlib.contextmanager
def use(value: Sharding) -> Iterator[None]:
    """Within this context the calling thread is a replica with these rows."""
    before = getattr(_state, "sharding", None)
    _state.sharding = value
    try:
        yield
    finally:
        _state.sharding = before


# --- where Keras reduces over rows ------------------------------------------------------------------------------------


def _install() -> None:
    """Replace Keras 3.15's reductions over rows by ones that know of the whole batch (tests/test_keras_common.py)."""
    import keras
    from keras.src.losses import loss as loss_module
    from keras.src.trainers import trainer

    loss_module.reduce_weighted_values = _reduce_weighted_values
    loss_module.scale_loss_for_distribution = lambda value: value  # the adapters combine replicas themselves
    loss_module.unscale_loss_for_distribution = _whole_loss_for_tracker
    backend_trainer = keras.Model.__mro__  # TensorFlow's trainer overrides the hook to divide by its replicas
    for cls in backend_trainer:
        if cls.__module__.startswith("keras.src.backend.") and "_aggregate_additional_loss" in vars(cls):
            del cls._aggregate_additional_loss
    trainer.Trainer._aggregate_additional_loss = _aggregate_additional_loss
    moments = keras.layers.BatchNormalization._moments
    keras.layers.BatchNormalization._moments = _moments
    keras.layers.BatchNormalization.call = _batch_norm_in_groups(keras.layers.BatchNormalization.call)
    keras.layers.BatchNormalization._moments_as_shipped = moments
    get_metrics_result = trainer.Trainer.get_metrics_result

    def metrics_as_tensors(self: Any) -> Any:
        # A metric whose result is one of its variables is usual, and JAX 0.10 refuses variables as results.
        results = get_metrics_result(self)
        return {name: getattr(value, "value", value) for name, value in results.items()}

    trainer.Trainer.get_metrics_result = metrics_as_tensors
    _route_seeds()


@contextlib.contextmanager
def without_randomness() -> Iterator[None]:
    """Within this context dropout keeps everything and draws give the middle of their distribution.

    Holds for what is traced within it, too.
    """
    before = _randomness["off"]
    _randomness["off"] = True
    try:
        yield
    finally:
        _randomness["off"] = before


def _route_seeds() -> None:
    """Give each replica its own stream: the replica's index is folded into every seed that is drawn in a step."""
    import keras
    from keras.src import backend

    module = backend.random
    original = module.draw_seed

    def draw_seed(seed: Any) -> Any:
        drawn = original(seed)
        index = sharding().index
        if index == 0:
            return drawn
        offset = keras.ops.convert_to_tensor(np.array([index * 0x9E3779B % 2**31, 0]), dtype=drawn.dtype)
        return drawn + offset

    module.draw_seed = draw_seed
    dropout = module.dropout

    def seeded_dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        # Keras on torch draws from torch's global generator for an unseeded layer, which no seed state describes.
        if _randomness["off"]:
            return inputs
        if noise_shape is None and getattr(seed, "_initial_seed", 0) is None:
            noise_shape = tuple(inputs.shape)
        return dropout(inputs, rate, noise_shape=noise_shape, seed=seed)

    module.dropout = seeded_dropout
    for name in ("normal", "truncated_normal", "uniform"):
        setattr(module, name, _quiet(getattr(module, name)))


def _quiet(draw: Callable[..., Any]) -> Callable[..., Any]:
    """Return a draw of keras.random that gives its middle where randomness is off."""

    def quiet(shape: Any, *args: Any, **kwargs: Any) -> Any:
        from keras import backend, ops

        if not _randomness["off"]:
            return draw(shape, *args, **kwargs)
        first, second = "mean" if "normal" in draw.__name__ else "minval", "maxval"
        low = args[0] if args else kwargs.get(first, 0.0)
        high = (args[1] if len(args) > 1 else kwargs.get(second, 1.0)) if first == "minval" else low
        return ops.full(shape, (low + high) / 2, dtype=kwargs.get("dtype") or backend.floatx())

    return quiet


def _size(tensor: Any) -> int:
    return int(np.prod(tuple(tensor.shape), dtype=np.int64))


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
            weight = weight * ops.divide_no_nan(ops.cast(here.whole(_size(mask)), values.dtype), valid)
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
        return values  # a loss of the whole batch already; the adapters gather for those
    total = ops.sum(values)
    if reduction == "mean_with_sample_weight" and sample_weight is not None:
        return ops.divide_no_nan(total, here.total(ops.cast(ops.sum(sample_weight), total.dtype)))
    if reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
        return ops.divide_no_nan(total, ops.cast(here.whole(_size(values)), total.dtype))
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


def _moments(self: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Batch statistics over the rows of all replicas, in two passes as JAX computes them; shape (channels,)."""
    from keras import backend, ops

    here = sharding()
    if here.shipped:
        return self._moments_as_shipped(inputs, mask)
    all_sum = here.all_sum if here.batch_norm == "global" else (lambda tensor: tensor)
    axes = list(self._reduction_axes)
    if mask is None:
        weights: Any = None
        local = _size(inputs) // inputs.shape[self.axis]
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


def _batch_norm_in_groups(original: Callable[..., Any]) -> Callable[..., Any]:
    """Normalise each group of rows by its own statistics; moving statistics become the mean over the groups."""

    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        from keras import ops

        here = sharding()
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


def _merge_moving_statistics(model: Any) -> None:
    """Give every replica the mean over the replicas of BatchNorm's moving statistics."""
    import keras

    here = sharding()
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            for variable in layer.non_trainable_variables:
                variable.assign(here.all_sum(variable.value + 0) / here.count)


# --- the loss and the metrics of a share of a batch -------------------------------------------------------------------

_COUPLED_LOSSES = {"Circle", "circle"}
_COUPLED_WITHOUT_AXIS = {"Dice", "dice", "Tversky", "tversky"}  # axis=None reduces over the rows too


def own_rows_only(loss: Any) -> bool:
    """Whether a Keras loss gives each row a value that depends on this row alone, so that replicas need not meet."""
    function = getattr(loss, "fn", None)
    names = {type(loss).__name__, getattr(function, "__name__", "")}
    if not type(loss).__module__.startswith("keras.src.losses."):
        return False
    if function is not None and not getattr(function, "__module__", "").startswith("keras.src."):
        return False
    if names & _COUPLED_LOSSES:
        return False
    settings = getattr(loss, "_fn_kwargs", {})
    axis = getattr(loss, "axis", settings.get("axis", None if names & _COUPLED_WITHOUT_AXIS else -1))
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    return all(a == -1 or (a is not None and a > 0) for a in axes)


def adds_up(metric: Any) -> bool:
    """Whether a metric's states over the rows of several replicas add up to its state over all rows."""
    from keras.src.trainers import compile_utils

    if isinstance(metric, compile_utils.CompileMetrics):
        return all(adds_up(inner) for inner in metric.metrics)
    if isinstance(metric, compile_utils.MetricsList):
        return all(adds_up(inner) for inner in metric.metrics)
    if not type(metric).__module__.startswith("keras.src.metrics."):
        return False
    function = getattr(metric, "_fn", None)
    return function is None or getattr(function, "__module__", "").startswith("keras.src.")


@dataclass(frozen=True)
class Plan:
    """What a recipe needs in a step beyond its own rows."""

    gather_loss: tuple[str, ...]  # why the loss is computed over the whole batch on every replica; empty: it is not
    gather_metrics: tuple[str, ...]  # the same of the metrics
    whole: tuple[str, ...] = ()  # why every replica computes the whole batch; empty: each computes its share
    counts: bool = False  # whether a denominator of the loss depends on masks or weights

    def notes(self, devices: int) -> list[str]:
        if devices == 1:
            return []
        if self.whole:
            return [f"each device computes the whole batch, which is exact but no faster: {'; '.join(self.whole)}"]
        notes = []
        if self.gather_loss:
            notes.append(f"the outputs are gathered for the loss: {'; '.join(self.gather_loss)}")
        if self.gather_metrics:
            notes.append(f"the outputs are gathered for the metrics: {', '.join(self.gather_metrics)}")
        return notes


def make_plan(model: Any, loss_gather: str = "auto", accumulate: int = 1) -> Plan:
    """Look at a built model's loss and metrics and return what they need."""
    import keras

    reasons = []
    if type(model).compute_loss is not keras.Model.compute_loss:
        reasons.append(f"{type(model).__name__}.compute_loss may look at all rows")
    if model._compile_loss is not None and model._compile_loss.built:
        for _, loss, _, _ in model._compile_loss._flat_losses:
            if not own_rows_only(loss):
                name = getattr(getattr(loss, "fn", None), "__name__", type(loss).__name__)
                reasons.append(f"the loss {name} may look at all rows")
    if loss_gather == "on" and not reasons:
        reasons.append("asked for by loss_gather")
    if loss_gather == "off":
        reasons = []
    trackers = [m for m in model.metrics if m is not model._loss_tracker]
    own = [] if model._compile_loss is None else list(model._compile_loss.metrics)
    coupled = [m.name for m in trackers if m not in own and not adds_up(m)]
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        coupled.append(f"{type(model).__name__}.compute_metrics")
    if reasons and trackers:
        coupled = coupled or ["with the loss"]
    if reasons and accumulate > 1:
        raise UsageError(f"accumulate is {accumulate}, but {reasons[0]}; use accumulate=1, or a loss of single rows")
    masks = any(isinstance(layer, keras.layers.Masking) or _makes_mask(layer) for layer in model._flatten_layers())
    losses = [] if model._compile_loss is None else model._compile_loss._flat_losses or []
    counts = masks or any(loss.reduction == "mean_with_sample_weight" for _, loss, _, _ in losses)
    return Plan(tuple(dict.fromkeys(reasons)), tuple(coupled), counts=counts)


def _makes_mask(layer: Any) -> bool:
    """Whether a layer may make a mask, which later layers and losses count."""
    own = not type(layer).__module__.startswith("keras.src.")
    return bool(getattr(layer, "mask_zero", False)) or (own and hasattr(type(layer), "compute_mask"))


def local_loss(model: Any, plan: Plan, batch: Any, training: bool) -> Any:
    """Return this replica's part of the loss of the global batch (x, y, sample_weight); updates the metrics.

    The parts of all replicas add up to the loss; so do their gradients. Where the outputs are gathered, or the batch is
    not shared, every replica computes the whole loss L: its part is L / replicas, and gradients of a gathered loss flow
    back to the rows of every replica.
    """
    from keras import ops

    here = sharding()
    shared = here.count > 1
    if shared and plan.whole:
        groups = here.count if here.batch_norm == "replica" else 1
        with use(dataclasses.replace(unshared(here.size, here.update, here.count, here.index), groups=groups)):
            return local_loss(model, plan, _gather_in(here, tuple(batch)), training)
    x, y, sample_weight = batch
    outputs = call(model, x, training)
    if shared and training and here.batch_norm == "replica":
        _merge_moving_statistics(model)
    rows = (x, y, outputs, sample_weight)
    gathered = _gather_in(here, rows) if shared and (plan.gather_loss or plan.gather_metrics) else rows
    with contextlib.nullcontext() if here.counts else restored(model.metrics_variables):
        if shared and plan.gather_loss:
            gx, gy, gp, gw = gathered
            # What layers add counts by the share of rows; it is in each replica's L, and L is divided by the replicas.
            scale = here.share * here.count
            with use(Sharding(index=here.index, rows=here.size, size=here.size, update=here.size, loss_scale=scale)):
                loss = model._compute_loss(x=gx, y=gy, y_pred=gp, sample_weight=gw, training=training) / here.count
        else:
            loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=training)
        update_metrics(model, *(gathered if plan.gather_metrics else rows))
    if loss is None:
        loss = ops.zeros(())
    return loss / here.replicas if here.replicas > 1 and not shared else loss


def as_shipped(rows: int, replicas: int) -> Sharding:
    """Return the sharding of a replica that knows only its own rows: the loss becomes a mean of the replicas' means."""
    return Sharding(rows=rows, size=rows, update=rows, replicas=replicas, shipped=True)


@contextlib.contextmanager
def watched_layers() -> Iterator[None]:
    """Within this context ``layer_outputs`` can be called, by each replica's thread."""
    import keras

    original = keras.layers.Layer.__call__

    def call_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(self, *args, **kwargs)
        kept = getattr(_state, "kept", None)
        if kept is not None:
            kept(self, outputs)
        return outputs

    keras.layers.Layer.__call__ = call_and_keep
    try:
        yield
    finally:
        keras.layers.Layer.__call__ = original


def layer_outputs(model: Any, x: Any, names: list[str]) -> list[Any]:
    """Return what each layer gives for the whole batch in a training step, in the order of the calls; fills ``names``.

    A layer that is called several times has several entries; what is not one tensor with a row per sample has none.
    """
    here = sharding()
    layers = {id(layer): layer.path or layer.name for layer in model._flatten_layers(include_self=False)}
    found: dict[str, Any] = {}

    def keep(layer: Any, outputs: Any) -> None:
        shape = tuple(getattr(outputs, "shape", ()))
        if id(layer) in layers and shape and shape[0] == here.rows:
            path = layers[id(layer)]
            calls = sum(1 for name in found if name.partition(" ")[0] == path)
            found[path if calls == 0 else f"{path} (call {calls + 1})"] = outputs

    _state.kept = keep
    try:
        call(model, x, training=True)
    finally:
        _state.kept = None
    names[:] = found  # apart from the values, since compiled functions return dicts sorted
    return [_gather_in(here, output) if here.count > 1 else output for output in found.values()]


def unshared(size: int, update: int, replicas: int, index: int) -> Sharding:
    """Return the sharding of a batch that every replica computes whole; the first one's rows count in metrics."""
    return Sharding(rows=size, size=size, update=update, replicas=replicas, counts=index == 0)


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
    import keras

    if type(model).compute_metrics is not keras.Model.compute_metrics:
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
        outputs = call(model, _gather_in(here, x), training=False)
    return keras.tree.map_structure(lambda output: output[here.first : here.first + here.rows], outputs)


def _gather_in(here: Sharding, tree: Any) -> Any:
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


# --- does a step on shares of a batch compute what a step on the whole batch computes? --------------------------------

LOSS_TOLERANCE = 1e-5  # relative; float32 rounding gives 1e-7
GRADIENT_TOLERANCE = 1e-2  # of a variable's norm; ReLU and max-pool kinks that rounding flips give up to 1e-3


@contextlib.contextmanager
def perturbed(model: Any) -> Iterator[None]:
    """Within this context the trainable weights are a little off, since zeros hide what depends on them."""
    generator = np.random.default_rng(0)
    before = [to_numpy(variable.value) for variable in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, before, strict=True):
        variable.assign((value + 0.05 * generator.standard_normal(value.shape)).astype(value.dtype))
    try:
        yield
    finally:
        for variable, value in zip(model.trainable_variables, before, strict=True):
            variable.assign(value)


def few_rows(batch: Batch, devices: int, process: int | None = None) -> Batch:
    """Return a batch of two rows for each device and one more, so that shares are uneven; no more than there are.

    A step on the whole of it then fits where a step on a share of the real batch does. ``process`` is that whose rows
    the batch holds, or None where it holds all.
    """
    import keras

    size = 2 * devices + 1
    if batch.size <= size:
        return batch
    parts = split(size, devices)
    assert parts is not None
    own = slice(0, size) if process is None else parts[process]
    trees = (batch.x, batch.y, batch.sample_weight)
    x, y, sample_weight = keras.tree.map_structure(
        lambda array: None if array is None else array[: own.stop - own.start], trees
    )
    return Batch(batch.step, batch.indices[:size], own.start, x, y, sample_weight)


def difference(model: Any, shares: StepResult, whole: StepResult) -> str | None:
    """Return where a step on shares departs from the step on the whole batch, or None."""
    if not np.isfinite(whole.loss):
        return None
    if not abs(shares.loss - whole.loss) <= LOSS_TOLERANCE * max(abs(whole.loss), 1e-3):  # NaN is no agreement
        blame = [layer.name for layer in model._flatten_layers() if layer is not model and layer._losses]
        adding = f" (layers that add losses: {', '.join(blame)})" if blame else ""
        return f"the loss is {shares.loss:.6g} on shares of it and {whole.loss:.6g} on the whole{adding}"
    scale = np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in whole.gradients))
    pairs = [
        *zip(model.trainable_variables, shares.gradients, whole.gradients, strict=True),
        *zip(model.non_trainable_variables, shares.states, whole.states, strict=True),
    ]
    for position, (variable, mine, truth) in enumerate(pairs):
        gradient = position < len(shares.gradients)
        mine, truth = mine.astype(np.float64), truth.astype(np.float64)
        floor = 1e-3 * scale if gradient else 1e-6
        apart = np.linalg.norm(mine - truth) / (np.linalg.norm(truth) + floor)
        if not apart <= GRADIENT_TOLERANCE:
            what = "the gradient of " if gradient else "what the forward pass makes of "
            return f"{what}{variable.path} differs by {apart:.2g} between shares of it and the whole"
    return None


# --- building, variables, metrics -------------------------------------------------------------------------------------


def build(model: Any, sample: Batch) -> None:
    """Build the model, its loss, metrics and optimizer for batches like ``sample``."""
    import keras

    if not isinstance(model, keras.Model):
        raise UsageError(f"the recipe's model is a {type(model).__name__}; it must be a compiled keras.Model")
    if not model.compiled:
        raise UsageError("the recipe's model is not compiled; call model.compile(optimizer=..., loss=...)")
    for name in ("train_step", "test_step"):
        if not getattr(model, name).__func__.__module__.startswith("keras.src."):
            raise UsageError(
                f"{type(model).__name__} overrides {name}, which is not portable between backends; "
                "override compute_loss or compute_metrics instead"
            )
    trees = keras.tree.map_structure(
        lambda array: None if array is None else as_keras(array), (sample.x, sample.y, sample.sample_weight)
    )
    model._symbolic_build(data_batch=trees)
    if not model.trainable_variables:
        raise UsageError("the recipe's model has no trainable weights")
    model.optimizer.build(model.trainable_variables)


def as_keras(array: np.ndarray) -> np.ndarray:
    """Return an array as Keras's fit takes it: floats in floatx, contiguous and writable; strings are refused."""
    import keras

    if array.dtype.kind in "SUO":
        raise UsageError(f"the data hold {array.dtype}; turn them into numbers in the data, not in the model")
    dtype = keras.config.floatx() if array.dtype.kind == "f" else array.dtype
    return np.require(array, dtype=dtype, requirements=["C", "W"])


def to_numpy(tensor: Any) -> np.ndarray:
    from keras import ops

    return np.array(ops.convert_to_numpy(tensor))


def metric_results(model: Any, states: Sequence[Any]) -> dict[str, float]:
    """Return the metrics whose variables hold ``states`` (in the order of ``model.metrics_variables``)."""
    import keras
    from keras import ops

    mapping = [
        (variable, ops.convert_to_tensor(state, dtype=variable.dtype))
        for variable, state in zip(model.metrics_variables, states, strict=True)
    ]
    with keras.StatelessScope(state_mapping=mapping):
        results = model.get_metrics_result()
    flat = {}
    for name, value in results.items():
        array = np.asarray(ops.convert_to_numpy(value), dtype=np.float64)
        if name != "loss":
            flat[name] = float(array) if array.ndim == 0 else array.tolist()
    return flat


def state(model: Any) -> State:
    """Return the values of all variables that a step starts from, as they are on the first device."""
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    return State(*([to_numpy(variable.value) for variable in group] for group in groups))


def load_state(model: Any, values: State) -> None:
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    for group, arrays in zip(groups, (values.trainable, values.other, values.slots), strict=True):
        for variable, array in zip(group, arrays, strict=True):
            variable.assign(array)


def names(model: Any) -> dict[str, list[str]]:
    """Return unique names of the variables of each list of a State; Keras's paths repeat."""
    groups = {
        "trainable": model.trainable_variables,
        "other": model.non_trainable_variables,
        "slots": model.optimizer.variables,
    }
    found = {}
    for kind, variables in groups.items():
        paths = [variable.path for variable in variables]
        found[kind] = [path if paths.count(path) == 1 else f"{path} ({n})" for n, path in enumerate(paths)]
    return found


def dtypes(model: Any) -> dict[str, str]:
    """Return the dtype of each variable, and of each layer's computations, by path."""
    variables = {variable.path: str(variable.dtype) for variable in model.variables}
    return variables | {layer.path: str(layer.compute_dtype) for layer in model._flatten_layers(include_self=False)}


def set_float(dtype: str) -> None:
    """Set the type of weights, inputs and computations: float32, or a float64 that is float64 everywhere."""
    import keras

    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    replacements.install(dtype == "float64")


def model_facts(model: Any) -> dict[str, Any]:
    """Return the number of parameters, the learning rate or its schedule, and Keras's version."""
    import keras

    rate = model.optimizer._learning_rate
    value = float(to_numpy(model.optimizer.learning_rate))
    named = value if hasattr(rate, "path") else f"{type(rate).__name__}, from {value:g}"
    return {"parameters": model.count_params(), "learning_rate": named, "keras": keras.__version__}
