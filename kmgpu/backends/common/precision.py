"""The precision of a run: set, read back from what was built, and probed by what a product of numbers keeps."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from kmgpu.backends import replacements
from kmgpu.errors import RunFailed

# Of each --precision: Keras's dtype policy, and how many bits of the fraction its products keep.
POLICIES = {
    "float32": ("float32", 23),
    "tf32": ("float32", 10),  # each framework has a switch of its own for it
    "bfloat16": ("mixed_bfloat16", 7),
    "float16": ("mixed_float16", 10),
    "float64": ("float64", 52),
}
EPSILONS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
SIZE = 64  # of the probe: more than the bits of a float64, and a multiple of what GPUs multiply at once


def set_precision(precision: str) -> None:
    """Set the types of weights, inputs and computations; float64 is float64 everywhere."""
    import keras

    policy, _ = POLICIES[precision]
    keras.config.set_floatx("float64" if precision == "float64" else "float32")
    keras.config.set_dtype_policy(policy)
    replacements.install(precision == "float64")


def scale_losses(model: Any) -> None:
    """Give the optimizer of a float16 run a dynamic loss scale, where Keras's compile has not done it."""
    import keras

    scaling = keras.optimizers.LossScaleOptimizer
    if keras.config.dtype_policy().name == "mixed_float16" and not isinstance(model.optimizer, scaling):
        model.optimizer = scaling(model.optimizer)


@contextlib.contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Within this context layers that compute in half precision, of weights in float32, compute in float32."""
    import keras

    half = [
        layer
        for layer in model._flatten_layers()
        if str(layer.compute_dtype) in ("float16", "bfloat16")
        and str(layer.variable_dtype) == "float32"
        and getattr(layer._dtype_policy, "quantization_mode", None) is None
    ]
    before = [layer._dtype_policy for layer in half]
    for layer in half:
        layer._dtype_policy = keras.DTypePolicy("float32")
    try:
        yield
    finally:
        for layer, policy in zip(half, before, strict=True):
            layer._dtype_policy = policy


def epsilon(model: Any) -> float:
    """Return the distance from 1 to the next number in the coarsest type that a layer of the model computes in."""
    return max(EPSILONS.get(str(layer.compute_dtype), 0.0) for layer in model._flatten_layers())


def precision_facts(model: Any, tf32: bool) -> dict[str, Any]:
    """Return the types of a model's layers and weights, and the bits that products keep; raises where they are fewer.

    ``precision`` is what was set and is read back: the dtype policy, and the framework's switch of TF32. ``numerics``
    is what came of it: the types that layers compute in and weights are held in, and measured bits (23 for float32, 10
    for TF32 and float16, 7 for bfloat16, 52 for float64).
    """
    import keras

    policy = keras.config.dtype_policy().name
    layers = [layer for layer in model._flatten_layers(include_self=False) if layer.variables]
    found = kept_bits(policy, tf32)
    wanted = next(bits for name, (of, bits) in POLICIES.items() if of == policy and (name == "tf32") == tf32)
    for what, bits in found.items():
        if bits < wanted:
            raise RunFailed(
                f"the run computes in {policy}, whose {wanted} bits a {what} should keep, and it keeps {bits}; "
                "look for what sets another precision (NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)"
            )
    numerics = {
        "layers": _counted(layer.compute_dtype for layer in layers),
        "weights": _counted(variable.dtype for variable in model.weights),
        "loss_scaling": isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer),
        **{f"{what}_bits": bits for what, bits in found.items()},
    }
    return {"precision": {"dtype": policy, "tf32": tf32}, "numerics": numerics}


@functools.cache
def kept_bits(policy: str, tf32: bool) -> dict[str, int]:
    """Return how many bits of 1 + 2^-k a matrix product and a convolution keep, as layers of the policy compute them.

    Once for each precision in a process: a framework may compile for it.
    """
    import keras

    k = np.arange(1, SIZE + 1)
    numbers = 1 + 2.0**-k
    ones = keras.initializers.Ones()
    dense = keras.layers.Dense(SIZE, use_bias=False, kernel_initializer=ones, name="probe_product")
    dense.build((SIZE, SIZE))
    dense.kernel.assign(np.eye(SIZE))
    product = np.diagonal(_array(dense(_tensor(np.diag(numbers)))))
    conv = keras.layers.Conv2D(SIZE, 3, use_bias=False, kernel_initializer=ones, name="probe_convolution")
    conv.build((1, 3, 3, SIZE))
    kernel = np.zeros((3, 3, SIZE, SIZE))
    kernel[1, 1] = np.eye(SIZE)
    conv.kernel.assign(kernel)
    image = np.zeros((1, 3, 3, SIZE))
    image[0, 1, 1] = numbers
    convolution = _array(conv(_tensor(image)))[0, 0, 0]
    return {name: int((values != 1).sum()) for name, values in (("product", product), ("convolution", convolution))}


def _tensor(array: np.ndarray) -> Any:
    import keras
    from keras import ops

    return ops.convert_to_tensor(array, dtype=keras.config.floatx())


def _array(tensor: Any) -> np.ndarray:
    from keras import ops

    return np.asarray(ops.convert_to_numpy(tensor)).astype(np.float64)


def _counted(names: Iterable[Any]) -> str:
    """Return the one name, or each with its number."""
    counts = Counter(map(str, names))
    return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{name} ({n})" for name, n in counts.most_common())
