"""Functions of Keras 3.15 that differ between backends, replaced so that all compute the same.

Always: attention on torch, ScheduleFreeAdamW on torch and TensorFlow, recomputed layers on TensorFlow, RandomCrop on
JAX. In float64 models: what silently computes in float32. Each names what goes wrong without it;
tests/test_replacements.py fails when Keras changes, and then it may go.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

_original: dict[tuple[str, str], Callable[..., Any]] = {}


def install(float64: bool) -> None:
    """Replace what this backend needs; with ``float64`` also what would not be float64, else put that back."""
    from keras.src import backend
    from keras.src.backend.common import dtypes

    table: Any = dtypes.BIT64_TO_BIT32_DTYPE  # Keras's result type of two float64 is float32 on torch and JAX
    table["float64"] = "float64" if float64 else "float32"
    for only_float64, module, name, make in _TABLE.get(backend.backend(), ()):
        holder = _resolve(module)
        original = _original.setdefault((module, name), getattr(holder, name))
        setattr(holder, name, make(original) if float64 or not only_float64 else original)


def _resolve(path: str) -> Any:
    """Return a module, or a class in one."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name) if name[:1].isupper() else importlib.import_module(path)


def _attention_with_dead_rows(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras on torch adds the mask to the logits, the others select by it.

    They differ for a query that may attend to nothing: all backends give it the mean of the values, but on torch
    gradients flow back through its logits.
    """
    import torch

    def dot_product_attention(
        query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        outputs = original(query, key, value, bias, mask, *args, **kwargs)
        if mask is None or bias is not None:
            return outputs
        alive = torch.as_tensor(mask, dtype=torch.bool, device=outputs.device).any(dim=-1)  # (batch, heads or 1, T)
        values = torch.as_tensor(value, device=outputs.device).to(outputs.dtype)
        mean = values.mean(dim=1, keepdim=True).repeat_interleave(outputs.shape[2] // values.shape[2], dim=2)
        return torch.where(alive.transpose(1, 2).unsqueeze(-1), outputs, mean)

    return dot_product_attention


def _schedule_free(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras takes the old momentum after it was overwritten, where variables are changed in place.

    The result is off by (1 - 1 / step) (1 - beta_1) of what the momentum has moved.
    """

    def update_step(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        from keras import ops

        momentum = self._momentums[self._get_variable_index(variable)]
        before = ops.copy(momentum)
        original(self, gradient, variable, learning_rate)
        rest = 1 - 1 / ops.cast(self.iterations + 1, variable.dtype)
        self.assign_add(variable, rest * (1 - self.beta_1) * (momentum - before))

    return update_step


def _attention_in_float64(original: Callable[..., Any]) -> Callable[..., Any]:
    """jax.nn.dot_product_attention computes logits and softmax in float32."""
    import jax
    import jax.numpy as jnp

    def dot_product_attention(
        query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None, scale: Any = None,
        is_causal: bool = False, flash_attention: Any = None, attn_logits_soft_cap: Any = None,
    ) -> Any:  # fmt: skip
        if query.dtype != jnp.float64 or attn_logits_soft_cap is not None:
            return original(query, key, value, bias, mask, scale, is_causal, flash_attention, attn_logits_soft_cap)
        groups = query.shape[2] // key.shape[2]
        key, value = (jnp.repeat(array, groups, axis=2) for array in (key, value))
        logits = jnp.einsum("BTNH,BSNH->BNTS", query, key) * (scale or 1 / np.sqrt(query.shape[-1]))
        logits = logits if bias is None else logits + bias
        allowed = jnp.ones(logits.shape, bool) if mask is None else jnp.broadcast_to(mask, logits.shape)
        allowed = jnp.tril(allowed) if is_causal else allowed
        logits = jnp.where(allowed, logits, -0.7 * np.finfo(np.float64).max)
        return jnp.einsum("BNTS,BSNH->BTNH", jax.nn.softmax(logits, axis=-1), value)

    return dot_product_attention


def _random_crop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras slices at places that are drawn, which JAX cannot compile."""
    import jax

    def transform_images(self: Any, images: Any, transformation: Any, training: bool = True) -> Any:
        if training and not isinstance(transformation[0], int):
            top, left = transformation
            images = jax.lax.dynamic_slice_in_dim(images, top, self.height, self.height_axis)
            images = jax.lax.dynamic_slice_in_dim(images, left, self.width, self.width_axis)
            transformation = (0, 0)
        return original(self, images, transformation, training)

    return transform_images


def _cast(original: Callable[..., Any]) -> Callable[..., Any]:
    """TensorFlow casts a Python float by way of float32 (0.999 of Adam, 0.9 of a momentum)."""

    def cast(x: Any, dtype: Any) -> Any:
        return original(np.float64(x) if isinstance(x, float) else x, dtype)

    return cast


def _gelu(original: Callable[..., Any]) -> Callable[..., Any]:
    """tf.nn.gelu casts the square root of two by way of float32."""
    import tensorflow as tf

    def gelu(x: Any, approximate: bool = True) -> Any:
        x = tf.convert_to_tensor(x)
        if x.dtype != tf.float64:
            return original(x, approximate)
        if approximate:
            inner = np.float64(np.sqrt(2 / np.pi)) * (x + np.float64(0.044715) * x**3)
            return np.float64(0.5) * x * (1 + tf.tanh(inner))
        return np.float64(0.5) * x * (1 + tf.math.erf(x / np.float64(np.sqrt(2))))

    return gelu


def _remat(original: Callable[..., Any]) -> Callable[..., Any]:
    """tf.recompute_grad takes no keywords in a graph, and layers are called with training=... and mask=...."""

    def remat(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: original(functools.partial(f, **kwargs))(*args)

    return remat


def _weight_decay(original: Callable[..., Any]) -> Callable[..., Any]:
    """TensorFlow's optimizer casts its weight decay by way of float32."""

    def apply_weight_decay(self: Any, variables: Any) -> None:
        if self.weight_decay is not None:
            self.weight_decay = np.float64(self.weight_decay)
        original(self, variables)

    return apply_weight_decay


def _in_top_k(original: Callable[..., Any]) -> Callable[..., Any]:
    """tf.math.in_top_k takes float32 alone."""
    import tensorflow as tf

    def in_top_k(targets: Any, predictions: Any, k: int) -> Any:
        predictions = tf.convert_to_tensor(predictions)
        own = tf.gather(predictions, tf.cast(targets, "int32"), axis=1, batch_dims=1)
        higher = tf.reduce_sum(tf.cast(predictions > own[:, None], "int32"), axis=1)
        return tf.math.is_finite(own) & (higher < k)

    return in_top_k


_RANDOM_CROP = "keras.src.layers.preprocessing.image_preprocessing.random_crop.RandomCrop"
_SCHEDULE_FREE = "keras.src.optimizers.schedule_free_adamw.ScheduleFreeAdamW"
_TABLE: dict[str, tuple[tuple[bool, str, str, Callable[[Any], Any]], ...]] = {
    "torch": (
        (False, "keras.src.backend.torch.nn", "dot_product_attention", _attention_with_dead_rows),
        (False, _SCHEDULE_FREE, "update_step", _schedule_free),
    ),
    "tensorflow": (
        (False, _SCHEDULE_FREE, "update_step", _schedule_free),
        (False, "keras.src.backend.tensorflow.core", "remat", _remat),
        (True, "keras.src.backend.tensorflow.core", "cast", _cast),
        (True, "keras.src.backend.tensorflow.nn", "gelu", _gelu),
        (True, "keras.src.backend.tensorflow.optimizer.TFOptimizer", "_apply_weight_decay", _weight_decay),
        (True, "keras.src.backend.tensorflow.math", "in_top_k", _in_top_k),
    ),
    "jax": (
        (False, _RANDOM_CROP, "transform_images", _random_crop),
        (True, "keras.src.backend.jax.nn", "dot_product_attention", _attention_in_float64),
    ),
}
