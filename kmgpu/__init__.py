"""kmgpu trains one Keras 3 recipe on torch, TensorFlow and JAX, and measures what is comparable."""

from __future__ import annotations

from typing import Any

from kmgpu.recipe import Recipe

__version__ = "0.1.0"
__all__ = ["Recipe", "check", "compare", "evaluate", "export", "parity", "predict", "random", "train"]

# A recipe file must not load the orchestrator.
_LAZY = {
    "train": "kmgpu.training", "compare": "kmgpu.comparison", "parity": "kmgpu.proving", "check": "kmgpu.checking",
    "evaluate": "kmgpu.using", "predict": "kmgpu.using", "export": "kmgpu.exporting",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    import importlib

    if name == "random":
        return importlib.import_module("kmgpu.random")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kmgpu' has no attribute {name!r}")
