"""True float64: where Keras 3.15 computes in float32 inside a float64 model, replaced while it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

_original: dict[tuple[str, str], Callable[..., Any]] = {}


def install(wanted: bool) -> None:
    """Let float64 stay float64 everywhere, or put Keras's own rules back."""
    from keras.src import backend
    from keras.src.backend.common import dtypes

    table: Any = dtypes.BIT64_TO_BIT32_DTYPE  # Keras's result type of two float64 is float32 on torch and JAX
    table["float64"] = "float64" if wanted else "float32"
    for module, name, make in _replacements(backend.backend()):
        holder = importlib.import_module(module)
        original = _original.setdefault((module, name), getattr(holder, name))
        setattr(holder, name, make(original) if wanted else original)


def _replacements(backend: str) -> list[tuple[str, str, Callable[[Any], Any]]]:
    if backend == "tensorflow":
        return [("keras.src.backend.tensorflow.core", "cast", _cast)]
    return []


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    """TensorFlow casts a Python float by way of float32 (0.999 of Adam, 0.9 of a momentum)."""

    def cast(x: Any, dtype: Any) -> Any:
        return original(np.float64(x) if isinstance(x, float) else x, dtype)

    return cast
