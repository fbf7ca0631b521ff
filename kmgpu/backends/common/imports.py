"""Keras imported on one backend, and set to the defaults that every run shares."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator
from typing import Any

from kmgpu.backends.common.reductions import install
from kmgpu.errors import UsageError

FRAMEWORKS = {"torch": ("torch",), "tensorflow": ("tensorflow",), "jax": ("jax", "jaxlib")}


def import_keras(backend: str) -> Any:
    """Import Keras on one backend, with reductions over rows that know of the whole batch."""
    keras = stock_keras(backend)
    install()
    return keras


def stock_keras(backend: str) -> Any:
    """Import Keras on one backend as it is, the other frameworks blocked meanwhile, with Keras's own defaults.

    Keras on torch and on TensorFlow imports JAX by itself; a user's keras.json could change dtype or image layout.
    """
    os.environ["KERAS_BACKEND"] = backend
    others = {name for key, names in FRAMEWORKS.items() if key != backend for name in names}
    # Keras would import pandas, half a second, to know a DataFrame when it sees one; it is given arrays alone.
    with _blocked(others | {"pandas"}):
        import keras
        from keras.src.utils import module_utils
    for name in others & {"tensorflow", "jax"}:
        # Keras imports the others to ask whether an object is of their kind: they are there once a recipe has them.
        lazy = getattr(module_utils, name)
        imported = property(lambda self: self.name in sys.modules)
        lazy.__class__ = type("OnlyIfImported", (type(lazy),), {"available": imported})
    if keras.backend.backend() != backend:
        raise UsageError(f"Keras runs on {keras.backend.backend()!r} in this process, the run asked for {backend!r}")
    sys.meta_path.insert(0, WithoutDevices(others))
    keras.config.set_floatx("float32")
    keras.config.set_epsilon(1e-7)
    keras.config.set_image_data_format("channels_last")
    return keras


def import_alone(backend: str) -> None:
    """Import a framework while the others are blocked, as tensorflow.lite would import JAX where there is one."""
    with _blocked({name for key, names in FRAMEWORKS.items() if key != backend for name in names}):
        importlib.import_module(backend)


@contextlib.contextmanager
def _blocked(names: set[str]) -> Iterator[None]:
    """Within this context the packages seem not to be installed, unless they are imported already."""

    class Blocker(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.machinery.ModuleSpec(name, self) if name.partition(".")[0] in names else None

        def create_module(self, spec: Any) -> Any:
            raise ModuleNotFoundError(f"{spec.name} is blocked while Keras is imported", name=spec.name)

        def exec_module(self, module: Any) -> None:
            """Never reached; without it the import system would ask for an older protocol."""

    blocker = Blocker()
    sys.meta_path.insert(0, blocker)
    try:
        yield
    finally:
        sys.meta_path.remove(blocker)


class WithoutDevices(importlib.abc.MetaPathFinder):
    """Lets a recipe bring another framework for its data (tf.data, say) and hides the devices of the run from it."""

    def __init__(self, names: set[str]):
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._names or name not in _HIDE:
            return None
        self._names.discard(name)  # the finders after this one find it
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            # tensorflow.lite imports JAX where there is one
            with _blocked({"jax", "jaxlib"} - {*FRAMEWORKS[name], *sys.modules}):
                load(module)
            _HIDE[name](module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _hide_from_jax(jax: Any) -> None:
    jax.config.update("jax_platforms", "cpu")


def _hide_from_tensorflow(tensorflow: Any) -> None:
    tensorflow.config.set_visible_devices([], "GPU")


_HIDE = {"jax": _hide_from_jax, "tensorflow": _hide_from_tensorflow}  # torch takes no device before it is asked to
