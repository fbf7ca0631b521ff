"""Where Keras draws random numbers: from the frameworks themselves, from numbers that all of them share, or not at all.

``native``: each framework's own generator, with a stream for each replica. ``portable``: the numbers of draws.py, those
of the replica's own rows, so that they belong to samples and not to devices.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.backends.common import draws
from kmgpu.backends.common.sharding import sharding, within_step
from kmgpu.errors import UsageError

_DRAWS = ("normal", "truncated_normal", "uniform", "randint", "gamma", "beta", "binomial")
_state: dict[str, Any] = {"off": False, "words": None, "led": {}, "recorded": None}  # for all threads
REFUSED = {
    "AugMix": "it picks its operations with Python's random module while the step is traced",
    "RandomElasticTransform": "it draws from the framework itself, and cannot be compiled on JAX",
}
_update = threading.local()  # the seeds that an update began with


@contextlib.contextmanager
def without_randomness() -> Iterator[None]:
    """Within this context dropout keeps everything and draws give the middle of their distribution.

    Holds for what is traced within it, too.
    """
    before = _state["off"]
    _state["off"] = True
    try:
        yield
    finally:
        _state["off"] = before


def set_randomness(words: Any) -> Any:
    """Draw portable numbers made of a framework's ``words`` from now on, or native ones where it is None.

    Returns the words from before.
    """
    before = _state["words"]
    _state.update(words=words, led={}, recorded=None)
    return before


def portable() -> bool:
    return _state["words"] is not None


@functools.cache  # twice would move a replica's stream on twice
def route_draws() -> None:
    """Replace the functions of keras.random of this backend, and how a seed becomes the key of a draw."""
    from keras import ops
    from keras.src import backend
    from keras.src.random.seed_generator import SeedGenerator

    module = backend.random
    shipped_seed = module.draw_seed

    def draw_seed(seed: Any) -> Any:
        drawn = shipped_seed(seed)
        index = 0 if portable() else sharding().index
        if isinstance(index, int):
            if index == 0:
                return drawn
            offset = ops.convert_to_tensor(np.array([index * 0x9E3779B % 2**31, 0]), dtype=drawn.dtype)
        else:
            index = ops.cast(index, drawn.dtype)
            offset = ops.stack([index * 0x9E3779B, ops.zeros_like(index)])
        return drawn + offset

    module.draw_seed = draw_seed
    for name in _DRAWS:
        setattr(module, name, _routed(name, getattr(module, name)))
    module.dropout = _dropout(module.dropout)
    module.categorical = _categorical(module.categorical)
    module.shuffle = _shuffle(module.shuffle)
    SeedGenerator.next = _next(SeedGenerator.next)


def _routed(name: str, shipped: Callable[..., Any]) -> Callable[..., Any]:
    """Return a draw of keras.random of a given shape; it gives its middle where randomness is off."""
    draw = getattr(draws, name)

    def routed(shape: Any, *args: Any, dtype: Any = None, seed: Any = None, **kwargs: Any) -> Any:
        from keras import backend, ops

        dtype = backend.standardize_dtype(dtype or ("int32" if name == "randint" else backend.floatx()))
        if not portable() and not _state["off"]:
            return shipped(shape, *args, dtype=dtype, seed=seed, **kwargs)
        values = [*args, *(kwargs[key] for key in ("minval", "maxval", "mean", "stddev") if key in kwargs)]
        values += [kwargs[key] for key in ("counts", "probabilities", "alpha", "beta") if key in kwargs]
        if _state["off"] and name in _MIDDLES:
            return ops.full(shape, _MIDDLES[name](*values), dtype=dtype)
        if not portable():
            return shipped(shape, *values, dtype=dtype, seed=seed)
        return draw(_state["words"], _key(seed), _start(seed, name, shape), shape, *values, dtype=dtype)

    return routed


_MIDDLES: dict[str, Callable[..., Any]] = {
    "normal": lambda mean=0.0, stddev=1.0: mean,
    "truncated_normal": lambda mean=0.0, stddev=1.0: mean,
    "uniform": lambda low=0.0, high=1.0: (low + high) / 2,
}


def _dropout(shipped: Callable[..., Any]) -> Callable[..., Any]:
    def dropout(inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        from keras import ops

        if _state["off"] or (portable() and rate == 0.0):
            return inputs
        if portable():
            if rate == 1.0:
                return ops.zeros_like(inputs)
            full = ops.shape(inputs)
            given = full if noise_shape is None else noise_shape
            shape = tuple(size if asked is None else asked for asked, size in zip(given, full, strict=True))
            start = _start(seed, "dropout", shape)
            return draws.dropout(_state["words"], _key(seed), start, inputs, rate, shape)
        # Keras on torch draws from torch's global generator for an unseeded layer, which no seed state describes.
        if noise_shape is None and getattr(seed, "_initial_seed", 0) is None and within_step():
            noise_shape = tuple(inputs.shape)
        return shipped(inputs, rate, noise_shape=noise_shape, seed=seed)

    return dropout


def _categorical(shipped: Callable[..., Any]) -> Callable[..., Any]:
    def categorical(logits: Any, num_samples: int, dtype: Any = "int32", seed: Any = None) -> Any:
        if not portable():
            return shipped(logits, num_samples, dtype=dtype, seed=seed)
        shape = (logits.shape[0], num_samples, logits.shape[1])
        start = _start(seed, "categorical", shape)
        return draws.categorical(_state["words"], _key(seed), start, logits, num_samples, dtype)

    return categorical


def _shuffle(shipped: Callable[..., Any]) -> Callable[..., Any]:
    def shuffle(x: Any, axis: int = 0, seed: Any = None) -> Any:
        return draws.shuffle(_state["words"], _key(seed), x, axis) if portable() else shipped(x, axis, seed=seed)

    return shuffle


def _next(shipped: Callable[..., Any]) -> Callable[..., Any]:
    def following(self: Any, ordered: bool = True) -> Any:
        """As Keras has it; the sequence of the global generator overflows alike on every backend."""
        from keras import ops

        if not portable():
            return shipped(self, ordered)
        drawn = self.state.value * 1
        if ordered:  # as Keras has it, without an array of NumPy's, at which torch.compile stops
            self.state.assign(ops.stack([drawn[0], drawn[1] + 1]))
            return drawn
        with _state["words"].wide():
            word = ((ops.cast(drawn, "int64") + 1) & 0xFFFFFFFF) * 5387 & 0xFFFFFFFF
            self.state.assign(ops.cast(word % 933199, self.state.dtype))
        return drawn

    return following


def _key(seed: Any) -> Any:
    from keras.src import backend

    drawn = getattr(seed, "shape", None) is not None  # a key that a layer has drawn before
    return seed if drawn else backend.random.draw_seed(seed)


def _start(seed: Any, name: str, shape: Any) -> Any:
    """Return the number of a draw's first element among those of the whole update; 0 where it has no rows."""
    source = (id(seed) if hasattr(seed, "state") else repr(seed), name)
    if _state["recorded"] is not None:
        _state["recorded"].append((source, tuple(shape)))
    here = sharding()
    before = here.offset + here.first
    known = all(isinstance(size, int) for size in shape)  # not so while TensorFlow traces for batches of any size
    if (isinstance(before, int) and before == 0) or not known or len(shape) == 0 or shape[0] % here.rows:
        return 0
    if not _state["led"].get((*source, tuple(shape[1:])), True):
        return 0
    return before * (math.prod(shape) // here.rows)


def refuse(model: Any) -> None:
    """Raise UsageError for a model with a layer of Keras's whose numbers do not come from keras.random."""
    for layer in model._flatten_layers():
        why = REFUSED.get(type(layer).__name__)
        if why and type(layer).__module__.startswith("keras.src."):
            raise UsageError(
                f"portable randomness has no numbers for {type(layer).__name__} (layer {layer.name!r}): {why}; "
                "leave it out, or use --randomness native"
            )


def learn_draws(model: Any, x: Any) -> None:
    """Find out which draws of a model have a row for each sample: those that are longer for a longer batch.

    The model is traced for batches of two and three rows like ``x``. What is drawn elsewhere, in a loss, has a row for
    each sample if it has as many rows as the batch; a check of shares against the whole batch tells if that is wrong.
    """
    import keras
    from keras import backend

    passes = []
    for rows in (2, 3):
        specs = keras.tree.map_structure(
            lambda a, rows=rows: keras.KerasTensor((rows, *a.shape[1:]), backend.standardize_dtype(a.dtype)), x
        )
        _state["recorded"] = []
        try:
            keras.src.backend.compute_output_spec(lambda value: model(value, **_training(model)), specs)
            passes.append(_state["recorded"])
        except Exception:  # a model that cannot be traced for other batches; then all that fits has rows
            return
        finally:
            _state["recorded"] = None
    _state["led"] = _led(*passes)


def _training(model: Any) -> dict[str, bool]:
    return {"training": True} if model._call_has_training_arg else {}


def _led(two: Sequence[Any], three: Sequence[Any]) -> dict[Any, bool]:
    """Return of each kind of draw, (seed, function, shape without the first axis), whether its first axis is the batch.

    A kind of which both are found has no verdict.
    """
    found: dict[Any, set[bool]] = {}
    for (source, short), (_, long) in zip(two, three, strict=False):
        if short:
            found.setdefault((*source, short[1:]), set()).add(short[0] != long[0])
    return {kind: verdict.pop() for kind, verdict in found.items() if len(verdict) == 1}


def seeds_of_update(model: Any) -> None:
    """Give all batches of an accumulated update the same keys, since their draws are parts of the same ones."""
    from keras import ops

    here = sharding()
    if not portable() or here.update == here.size:
        return
    seeds = [generator.state for layer in model._flatten_layers() for generator in layer._seed_generators]
    if here.offset == 0:
        _update.seeds = [ops.copy(seed.value) for seed in seeds]
        return
    for seed, value in zip(seeds, _update.seeds, strict=True):
        seed.assign(value)


def random_state() -> dict[str, np.ndarray]:
    """Return the state of Keras's global seed generator, which serves draws without a seed, if there is one yet."""
    import keras
    from keras.src.backend.common.global_state import get_global_attribute
    from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

    generator = get_global_attribute(GLOBAL_SEED_GENERATOR)
    return {} if generator is None else {"keras": np.array(keras.ops.convert_to_numpy(generator.state.value))}


def load_random_state(state: dict[str, np.ndarray]) -> None:
    from keras.src.random.seed_generator import global_seed_generator

    if "keras" in state:
        global_seed_generator().state.assign(state["keras"])
