"""Random draws: a stream for each replica, and nothing drawn where randomness is off."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from kmgpu.backends.common.sharding import sharding

_randomness = {"off": False}  # for all threads


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


def route_seeds() -> None:
    """Give each replica its own stream: the replica's index is folded into every seed that is drawn in a step."""
    import keras
    from keras.src import backend

    module = backend.random
    original = module.draw_seed

    def draw_seed(seed: Any) -> Any:
        drawn = original(seed)
        index = sharding().index
        if isinstance(index, int):
            if index == 0:
                return drawn
            offset = keras.ops.convert_to_tensor(np.array([index * 0x9E3779B % 2**31, 0]), dtype=drawn.dtype)
        else:
            index = keras.ops.cast(index, drawn.dtype)
            offset = keras.ops.stack([index * 0x9E3779B, keras.ops.zeros_like(index)])
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
