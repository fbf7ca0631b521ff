"""Random numbers that are the same on torch, TensorFlow and JAX, and on any number of devices.

Each function has the meaning of its namesake in ``keras.random``, and draws number i of a draw from Threefry-2x32 under
the key of the draw and the counter i. A replica asks for the numbers of its own rows: ``start`` is the number of the
first of them among those of the global batch. On JAX ``uniform``, ``randint``, ``truncated_normal``'s uniform numbers
and dropout masks are those of ``jax.random`` in float32; normal numbers differ from its in the last digits, because
the inverse error function is evaluated in float64, where the three frameworks agree.

``words`` is the module of a framework's integers (torch_random.py, tf_random.py, jax_random.py).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kmgpu.errors import UsageError

SQRT2 = math.sqrt(2.0)
BELOW_MINUS_ONE = float(np.nextafter(np.float32(-1), np.float32(0)))
TWO_SIGMA = float(np.float32(math.erf(np.float32(2.0) / np.float32(SQRT2))))
TRIES = 12  # of gamma's rejections, each of which accepts more than 95 %: all fail once in 10^15
MOST_TRIALS = 1 << 28  # bits of one draw of binomial numbers
INSIDE_TWO = float(np.nextafter(np.float32(2), np.float32(0)))
TINY = float(np.finfo(np.float32).tiny)


def float32(value: float) -> float:
    """Return the nearest float32 number, computed without NumPy, which torch.compile takes for a tensor."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(mantissa, 24)), exponent - 24)


def uniform(words: Any, key: Any, start: int, shape: Any, low: Any = 0.0, high: Any = 1.0, dtype: Any = None) -> Any:
    """Uniform numbers in [low, high); of float16 and bfloat16 those of jax.random, of float64 those of float32."""
    from keras import ops

    bits = words.bits(key, start, shape)
    if dtype in ("float16", "bfloat16"):
        drop, digits = (6, 10) if dtype == "float16" else (1, 7)
        small = words.shift_right(bits, drop) & ((1 << digits) - 1)
        return ops.cast(ops.cast(small, "float32") * 2.0**-digits, dtype) * (high - low) + low
    unit = ops.cast(words.shift_right(bits, 9), "float32") * 2.0**-23
    return ops.cast(_scaled(words, unit, low, high), dtype)


def _scaled(words: Any, unit: Any, low: Any, high: Any) -> Any:
    """Return float32 numbers in [low, high) from those in [0, 1), rounded once as a fused multiply-add does."""
    from keras import ops

    plain = isinstance(low, (int, float)) and isinstance(high, (int, float))
    if plain and (low, high) == (0, 1):
        return unit
    if plain:
        low, high = float32(low), float32(high)
        span = float32(high - low)
    else:
        low, high = ops.cast(low, "float32"), ops.cast(high, "float32")
        span = high - low
    with words.wide():
        if not plain:
            low, span = ops.cast(low, "float64"), ops.cast(span, "float64")
        result = ops.cast(ops.cast(unit, "float64") * span + low, "float32")
    return ops.maximum(result, ops.cast(low, "float32"))


def normal(words: Any, key: Any, start: int, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None) -> Any:
    """Normal numbers: the inverse of their distribution function at float32 uniform numbers, in float64, rounded."""
    unit = uniform(words, key, start, shape, BELOW_MINUS_ONE, 1.0, "float32")
    return _from_quantiles(words, unit, mean, stddev, dtype)


def truncated_normal(
    words: Any, key: Any, start: int, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None
) -> Any:
    """Normal numbers less than two standard deviations from their mean."""
    unit = uniform(words, key, start, shape, -TWO_SIGMA, TWO_SIGMA, "float32")
    return _from_quantiles(words, unit, mean, stddev, dtype, limit=INSIDE_TWO)


def _from_quantiles(words: Any, unit: Any, mean: Any, stddev: Any, dtype: Any, limit: float | None = None) -> Any:
    from keras import ops

    with words.wide():
        standard = words.erf_inverse(ops.cast(unit, "float64")) * SQRT2
        if limit is not None:
            standard = ops.clip(standard, -limit, limit)
        # First rounded, so that the product has no more digits than float64 holds, fused with the sum or not.
        standard = ops.cast(ops.cast(standard, "float32"), "float64")
        result = standard * _wide_factor(stddev) + _wide_factor(mean)
        result = ops.cast(result, "float32")
    return ops.cast(result, dtype)


def _wide_factor(value: Any) -> Any:
    from keras import ops

    if isinstance(value, (int, float)):
        return float32(value)
    return ops.cast(ops.cast(value, "float32"), "float64")


def randint(words: Any, key: Any, start: int, shape: Any, low: Any, high: Any, dtype: Any = "int32") -> Any:
    """Whole numbers in [low, high), from two draws of 32 bits, as jax.random.randint has it for int32."""
    from keras import ops

    first, second = (words.bits(half, start, shape) for half in words.split(key, 2))
    with words.wide():
        low = ops.cast(low, "int64")
        span = ops.cast(high, "int64") - low
        factor = (1 << 16) % span
        factor = ((factor * factor) & 0xFFFFFFFF) % span
        offset = ((words.unsigned(first) % span) * factor + words.unsigned(second) % span) & 0xFFFFFFFF
        return ops.cast(low + offset % span, dtype)


def kept(words: Any, key: Any, start: int, shape: Any, probability: Any) -> Any:
    """Return a mask that is True with a probability, a float; by comparing integers, as exact as jax.random's."""
    threshold = math.ceil(float32(probability) * 2**23)
    return words.below(key, start, shape, threshold)


def dropout(words: Any, key: Any, start: int, inputs: Any, rate: float, noise_shape: Any) -> Any:
    """Keep each element of ``noise_shape`` with probability 1 - rate, and divide by it what is kept."""
    from keras import ops

    keep = 1.0 - rate
    mask = ops.broadcast_to(kept(words, key, start, noise_shape, keep), ops.shape(inputs))
    return ops.where(mask, inputs * ops.cast(1.0 / keep, inputs.dtype), ops.zeros_like(inputs))


def categorical(words: Any, key: Any, start: int, logits: Any, samples: int, dtype: Any = "int32") -> Any:
    """Draw classes (rows, samples) from logits (rows, classes), by the largest of them plus Gumbel noise."""
    from keras import ops

    rows, classes = ops.shape(logits)
    unit = uniform(words, key, start, (rows, samples, classes), TINY, 1.0, "float32")
    with words.wide():
        noise = ops.cast(-words.log(-words.log(ops.cast(unit, "float64"))), "float32")
    return ops.cast(ops.argmax(noise + ops.expand_dims(ops.cast(logits, "float32"), 1), axis=-1), dtype)


def shuffle(words: Any, key: Any, x: Any, axis: int) -> Any:
    """Return x with its slices along an axis in random order."""
    from keras import ops

    order = ops.argsort(words.bits(key, 0, (x.shape[axis],)))  # stable, should two be equal
    return ops.take(x, order, axis=axis)


def gamma(words: Any, key: Any, start: int, shape: Any, alpha: Any, dtype: Any = None) -> Any:
    """Gamma numbers of scale 1 (Marsaglia and Tsang, 2000), computed in float64."""
    from keras import ops

    shape = tuple(shape)
    first, second, third = words.split(key, 3)
    normals = normal(words, first, start * TRIES, (*shape, TRIES), 0.0, 1.0, "float32")
    units = _open_unit(words, second, start * TRIES, (*shape, TRIES))
    power = _open_unit(words, third, start, shape)
    with words.wide():
        alpha = ops.cast(ops.cast(alpha, "float32"), "float64")
        small = alpha < 1.0
        d = words.where(small, alpha + 1.0, alpha) - 1.0 / 3.0
        normals, units = ops.cast(normals, "float64"), ops.cast(units, "float64")
        result = None
        for number in reversed(range(TRIES)):  # so that the first accepted one stays
            z, u = normals[..., number], units[..., number]
            v = (1.0 + z / (3.0 * d**0.5)) ** 3
            tail = d - d * v + d * words.log(words.where(v > 0, v, v * 0 + 1.0))
            accepted = (v > 0) & (words.log(u) < 0.5 * z * z + tail)
            result = d * v if result is None else words.where(accepted, d * v, result)
        boost = ops.cast(power, "float64") ** (1.0 / words.where(small, alpha, alpha * 0 + 1.0))
        result = ops.cast(words.where(small, result * boost, result), "float32")
    return ops.cast(result, dtype)


def beta(words: Any, key: Any, start: int, shape: Any, alpha: Any, beta: Any, dtype: Any = None) -> Any:
    """Beta numbers, from two gamma numbers."""
    from keras import ops

    first, second = words.split(key, 2)
    a = gamma(words, first, start, shape, alpha, "float32")
    b = gamma(words, second, start, shape, beta, "float32")
    return ops.cast(a / (a + b), dtype)


def binomial(
    words: Any, key: Any, start: int, shape: Any, counts: Any, probabilities: Any, dtype: Any = None
) -> Any:
    """Binomial numbers, as counts of single trials; for counts that are known, and not too many in all."""
    from keras import ops

    try:
        most = int(np.max(np.asarray(counts)))
    except Exception as error:  # whatever a framework raises for a tensor without a value
        raise UsageError(
            "portable randomness draws binomial numbers only for counts that are known before the step; "
            "give them as numbers, or use randomness='native'"
        ) from error
    shape = tuple(shape)
    total = math.prod(shape) * most
    if total > MOST_TRIALS:
        raise UsageError(
            f"portable randomness would need {total:,} trials for these binomial numbers, more than {MOST_TRIALS:,}; "
            "use smaller counts, or randomness='native'"
        )
    unit = uniform(words, key, start * most, (*shape, most), 0.0, 1.0, "float32")
    hit = unit < ops.expand_dims(ops.broadcast_to(ops.cast(probabilities, "float32"), shape), -1)
    tried = ops.arange(most) < ops.expand_dims(ops.broadcast_to(ops.cast(counts, "int32"), shape), -1)
    return ops.cast(ops.sum(ops.cast(hit & tried, "int32"), axis=-1), dtype)


def _open_unit(words: Any, key: Any, start: int, shape: Any) -> Any:
    """Uniform numbers in (0, 1)."""
    return uniform(words, key, start, shape, 0.0, 1.0, "float32") + 2.0**-24
