"""What a model is made of: its layers that are not alike everywhere, and the bytes that a step needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from kmgpu.backends.common.model import spec
from kmgpu.data.loader import Batch

RECURRENT = ("LSTM", "GRU", "SimpleRNN", "RNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "Bidirectional")
KINKED = ("relu", "relu6", "leaky_relu", "hard_sigmoid", "hard_silu")
POOLS = ("MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D")
TEXT = ("TextVectorization", "StringLookup", "Hashing")


def layer_notes(model: Any) -> list[dict[str, Any]]:
    """Return what is to be known of layers: "kind", "count" and "note", in the order of the model."""
    found: dict[tuple[str, str], int] = {}
    for layer in model._flatten_layers(include_self=False):
        for applies, note in NOTES:
            if applies(layer):
                key = type(layer).__name__, note
                found[key] = found.get(key, 0) + 1
    return [{"kind": kind, "count": count, "note": note} for (kind, note), count in found.items()]


def step_bytes(model: Any, batch: Batch) -> dict[str, int]:
    """Return the bytes that a step on this batch holds at least: weights, gradients, optimizer, outputs, batch.

    Outputs are those of all layers, as the backward pass needs them; where a framework fuses or computes again it
    needs fewer, and its libraries' own workspace comes on top.
    """
    import keras

    weights = sum(_bytes(variable) for variable in model.variables)
    return {
        "weights": weights,
        "gradients": sum(_bytes(variable) for variable in model.trainable_variables),
        "optimizer": sum(_bytes(variable) for variable in model.optimizer.variables),
        "outputs": _output_bytes(model, batch),
        "batch": sum(array.nbytes for array in keras.tree.flatten((batch.x, batch.y)) if array is not None),
    }


def _output_bytes(model: Any, batch: Batch) -> int:
    """Return the bytes of what all layers give, found by calling the model on shapes alone."""
    import keras
    from keras.src import backend

    outputs: list[Any] = []
    original = keras.layers.Layer.__call__
    inside = 0  # of a layer within a layer both are counted, of the model itself nothing is

    def call_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside += 1
        try:
            result = original(self, *args, **kwargs)
        finally:
            inside -= 1
        if inside > 0 and not isinstance(self, (keras.layers.InputLayer, keras.Model)):
            outputs.extend(keras.tree.flatten(result))
        return result

    keras.layers.Layer.__call__ = call_and_keep
    try:
        backend.compute_output_spec(
            lambda x: model(x, training=True) if model._call_has_training_arg else model(x),
            keras.tree.map_structure(spec, batch.x),
        )
    finally:
        keras.layers.Layer.__call__ = original
    return sum(_bytes(output) for output in outputs)


def _bytes(tensor: Any) -> int:
    shape = tuple(getattr(tensor, "shape", ()))
    if None in shape:
        return 0
    bits = "".join(filter(str.isdigit, str(getattr(tensor, "dtype", "float32")))) or "8"
    return math.prod(shape) * int(bits) // 8


def _named(*names: str) -> Callable[[Any], bool]:
    return lambda layer: any(kind.__name__ in names for kind in type(layer).__mro__)


def _draws(layer: Any) -> bool:
    import keras

    if any(isinstance(value, keras.random.SeedGenerator) for value in vars(layer).values()):
        rate = getattr(layer, "rate", getattr(layer, "dropout", 1))
        return rate is None or isinstance(rate, (list, tuple)) or rate > 0
    return False


def _kinked(layer: Any) -> bool:
    activation = getattr(layer, "activation", None)
    own = _named("ReLU", "LeakyReLU", "PReLU", *POOLS)(layer)
    return own or getattr(activation, "__name__", "") in KINKED


def _masks(layer: Any) -> bool:
    return bool(getattr(layer, "mask_zero", False)) or _named("Masking")(layer)


def _own(layer: Any) -> bool:
    return not type(layer).__module__.startswith(("keras.", "keras_hub."))


# Who is asked, and what is said. Sentences say what differs, then what kmgpu does about it.
NOTES: tuple[tuple[Callable[[Any], bool], str], ...] = (
    (
        _named("BatchNormalization"),
        "frameworks normalise each device's rows on their own; here statistics are over the global batch, unless the "
        'recipe says batch_norm="replica"',
    ),
    (
        _draws,
        "draws other numbers on each backend and number of devices; --randomness portable draws the same everywhere, "
        "and parity without it compares with the draws left out",
    ),
    (
        _named(*RECURRENT),
        "the same numbers at very different speeds: torch on CPU goes through the steps in Python, the others in a "
        "compiled loop; on GPUs Keras may take cuDNN's (unverified)",
    ),
    (
        _kinked,
        "has a kink, which rounding can flip: single steps agree to rounding, long trajectories part by about 1e-3, as "
        "they do in stock frameworks; parity tells the two apart",
    ),
    (_masks, "makes a mask; losses and means count what is not masked over the whole batch, not on each device"),
    (
        lambda layer: _named("Embedding")(layer) and not _masks(layer),
        "TensorFlow has sparse gradients for it, the others dense ones; clipping and the update see the same sums",
    ),
    (
        _named("SpectralNormalization"),
        "changes its weights in the forward pass; a step on shares is compared with one on the whole at the start",
    ),
    (_named(*TEXT), "works on TensorFlow alone; turn text into numbers in the data, before the model"),
    (
        _named("TorchModuleWrapper", "TFSMLayer", "JaxLayer", "FlaxLayer"),
        "belongs to one framework, so that the other backends refuse this recipe",
    ),
    (
        lambda layer: getattr(layer, "activity_regularizer", None) is not None,
        "adds a loss from its outputs, which counts by the rows of each device, as over the whole batch",
    ),
    (
        _own,
        "is your own: whether a step on shares of a batch is that on the whole is compared at the start of each run; "
        "where it is not, every device computes the whole batch",
    ),
)
