"""Portable random numbers in a program of your own: the same on torch, TensorFlow and JAX.

    import keras
    import kmgpu

    keras.utils.set_random_seed(0)
    kmgpu.random.portable()
    model = keras.Sequential([...])
    model.compile(...)
    model.fit(x, y, shuffle=False)
"""

from __future__ import annotations

import contextlib
import importlib
import sys

from kmgpu.backends import find
from kmgpu.errors import UsageError

__all__ = ["portable"]


def portable() -> contextlib.AbstractContextManager[object]:
    """Let ``keras.random`` and all Keras layers draw portable numbers from this call on, or only ``with`` it.

    A function that was compiled before, by ``fit`` or by hand, keeps drawing as it did. Raises UsageError where Keras
    has not been imported yet, or runs on a backend that has no portable numbers.
    """
    if "keras" not in sys.modules:
        raise UsageError("kmgpu.random.portable() was called before Keras was imported; import keras first")
    import keras

    words = importlib.import_module(find(keras.backend.backend()).words)
    routing = importlib.import_module("kmgpu.backends.common.randomness")
    routing.route_draws()
    afterwards = contextlib.ExitStack()
    afterwards.callback(routing.set_randomness, routing.set_randomness(words))
    return afterwards
