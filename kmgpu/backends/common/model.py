"""A Keras model built, described, read and set."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.backends.adapter import State
from kmgpu.backends.common.precision import scale_losses
from kmgpu.backends.common.randomness import learn_draws, portable, refuse
from kmgpu.data.loader import Batch
from kmgpu.errors import UsageError

Copies = list[tuple[Any, Any]]  # slots of the optimizer, and the weights that they start as copies of


def build(model: Any, sample: Batch, scored: bool = True) -> Copies:
    """Build model and optimizer, and loss and metrics where it is ``scored``, for batches like ``sample``.

    Returns the optimizer's slots that start as copies of weights: they have to follow when weights are assigned.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise UsageError(f"the recipe's model is a {type(model).__name__}; it must be a compiled keras.Model")
    if not model.compiled:
        raise UsageError("the recipe's model is not compiled; call model.compile(optimizer=..., loss=...)")
    own = any(not type(layer).__module__.startswith("keras.src.") for layer in model._flatten_layers())
    if model._compile_loss is None and not own:  # a layer or model of the user's own may add losses
        raise UsageError("the recipe's model has no loss; give model.compile one, such as loss='mse'")
    steps = ("train_step", "test_step", "make_train_function", "make_test_function")
    for name in steps if scored else ("predict_step", "make_predict_function"):
        if overrides(model, name):
            instead = "override compute_loss or compute_metrics instead" if scored else "put it into call instead"
            raise UsageError(
                f"{type(model).__name__} overrides {name}, which is not portable between backends; {instead}"
            )
    trees = keras.tree.map_structure(
        lambda array: None if array is None else as_keras(array), (sample.x, sample.y, sample.sample_weight)
    )
    with _in_one_sentence():
        if not model.built or not scored:
            model(keras.tree.map_structure(lambda a: spec(a, sample.size), trees[0]))
    scale_losses(model)
    if not model.trainable_variables:
        raise UsageError("the recipe's model has no trainable weights")
    with perturbed(model):  # weights of zero look like slots of zero
        model.optimizer.build(model.trainable_variables)
        copies = _copied_slots(model)
    _copy(copies)
    with _in_one_sentence():
        if scored:
            # Loss and metrics; it would build the optimizer too. A process may have a share of the rows.
            model._symbolic_build(data_batch=keras.tree.map_structure(lambda a: spec(a, sample.size), trees))
    if portable():
        refuse(model)
        learn_draws(model, trees[0])
    return copies


def overrides(model: Any, name: str) -> bool:
    """Whether a method of a model is not Keras's: of a class of the user's own, or set on the model itself."""
    method = getattr(model, name)
    return not str(getattr(getattr(method, "__func__", method), "__module__", "")).startswith("keras.src.")


@contextlib.contextmanager
def _in_one_sentence() -> Iterator[None]:
    try:
        yield
    except (MemoryError, UsageError):
        raise
    except Exception as error:  # whatever Keras or a layer of the user's raises for data of another shape
        traceback.print_exception(error)
        raise UsageError(f"the model cannot be built for the recipe's data: {core(str(error))}") from error


@contextlib.contextmanager
def perturbed(model: Any, seed: int = 0) -> Iterator[None]:
    """Within this context weights are a little off, since zeros hide what depends on them.

    Those that are not trained grow, since variances must not be negative.
    """
    generator = np.random.default_rng(seed)

    def off(value: np.ndarray) -> np.ndarray:
        return value + 0.05 * generator.standard_normal(value.shape)

    def larger(value: np.ndarray) -> np.ndarray:
        return value + np.abs(off(value) - value) if value.dtype.kind == "f" else value

    with _changed(model.trainable_variables, off), _changed(model.non_trainable_variables, larger):
        yield


@contextlib.contextmanager
def rounded(model: Any) -> Iterator[None]:
    """Within this context the trainable weights are off by one rounding."""
    generator = np.random.default_rng(0)

    def off(value: np.ndarray) -> np.ndarray:
        unit = float(np.finfo(value.dtype).eps) if value.dtype.kind == "f" else 0.0
        return value * (1 + unit * generator.standard_normal(value.shape))

    with _changed(model.trainable_variables, off):
        yield


@contextlib.contextmanager
def _changed(variables: Sequence[Any], function: Callable[[np.ndarray], np.ndarray]) -> Iterator[None]:
    from keras import ops

    # MirroredStrategy gives no array of a variable that is not trained itself.
    before = [to_numpy(ops.copy(variable.value)) for variable in variables]
    for variable, value in zip(variables, before, strict=True):
        variable.assign(np.asarray(function(value), value.dtype))
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def _copied_slots(model: Any) -> Copies:
    """Return the slots with the values of a weight, as ScheduleFreeAdamW has them: found where no two are equal."""
    from keras import ops

    weights = [(variable, to_numpy(variable.value)) for variable in model.trainable_variables]
    found = []
    for slot in model.optimizer.variables:
        value = to_numpy(ops.copy(slot.value))  # MirroredStrategy gives no array of an optimizer's variable itself
        if value.any():
            found += [(slot, variable) for variable, weight in weights if np.array_equal(value, weight)]
    return found


def _copy(copies: Copies) -> None:
    for slot, variable in copies:
        slot.assign(to_numpy(variable.value))


def assign(model: Any, values: Sequence[np.ndarray], copies: Copies) -> None:
    """Set the weights, in model order, and the optimizer's slots that start as copies of them."""
    for variable, value in zip(model.weights, values, strict=True):
        variable.assign(value)
    _copy(copies)


def assigned_weights(model: Any) -> list[Any]:
    """Return the trainable variables that a forward pass may assign: SpectralNormalization does, others may."""
    import keras

    found: dict[int, Any] = {}
    for layer in model._flatten_layers():
        own = not type(layer).__module__.startswith("keras.src.")
        if own or isinstance(layer, keras.layers.SpectralNormalization):
            found |= {id(variable): variable for variable in layer.trainable_variables}
    return list(found.values())


def assigned(model: Any) -> list[Any]:
    """Return all variables that a forward pass may assign: weights, states and metrics."""
    return [*assigned_weights(model), *model.non_trainable_variables, *model.metrics_variables]


def spec(array: np.ndarray | None, rows: int | None = None) -> Any:
    """Return a symbolic tensor like an array, of so many rows if they are given; None for None."""
    import keras

    if array is None:
        return None
    shape = array.shape if rows is None else (rows, *array.shape[1:])
    return keras.KerasTensor(shape, keras.backend.standardize_dtype(array.dtype))


def core(message: str) -> str:
    """Return one line of an error of Keras, which puts what matters in bold, into several lines."""
    bold = re.search(r"\x1b\[1m(.*?)\x1b\[0m", message, re.DOTALL)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", bold.group(1) if bold else message)
    return " ".join(plain.split())[:400]


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


def model_facts(model: Any) -> dict[str, Any]:
    """Return the number of parameters, the learning rate or its schedule, and Keras's version."""
    import keras

    rate = getattr(model.optimizer, "inner_optimizer", model.optimizer)._learning_rate
    value = float(to_numpy(model.optimizer.learning_rate))
    named = value if hasattr(rate, "path") else f"{type(rate).__name__}, from {value:g}"
    return {"parameters": model.count_params(), "learning_rate": named, "keras": keras.__version__}
