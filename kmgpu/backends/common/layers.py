"""What each layer gives, for a parity check that wants to know where a difference begins."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from kmgpu.backends.common.sharding import sharding
from kmgpu.backends.common.step import call, gather_in

_watch = threading.local()  # MirroredStrategy runs its replicas in threads


@contextlib.contextmanager
def watched_layers() -> Iterator[None]:
    """Within this context ``layer_outputs`` can be called, by each replica's thread."""
    import keras

    original = keras.layers.Layer.__call__

    def call_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(self, *args, **kwargs)
        kept = getattr(_watch, "kept", None)
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

    _watch.kept = keep
    try:
        call(model, x, training=True)
    finally:
        _watch.kept = None
    names[:] = found  # apart from the values, since compiled functions return dicts sorted
    return [gather_in(here, output) if here.count > 1 else output for output in found.values()]
