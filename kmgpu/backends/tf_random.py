"""TensorFlow: the words that portable random numbers are made of (kmgpu/backends/common/draws.py)."""

from __future__ import annotations

import contextlib
import functools
import math
from typing import Any

from kmgpu.backends.common.imports import import_alone

import_alone("tensorflow")
import tensorflow as tf  # noqa: E402

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))

SHARED = 1 << 16  # below it draws of other sizes share a compiled function, of the next power of two

wide = contextlib.nullcontext
erf_inverse = tf.math.erfinv
where, log = tf.where, tf.math.log  # those of keras.ops make float32 of float64 in a run


def bits(key: Any, start: int, shape: Any) -> Any:
    """Return 32 random bits for each element of ``shape``, the first of which has the counter ``start``; int32.

    Threefry-2x32 with 20 rounds (Salmon et al., SC'11), in JAX's partitionable form.
    """
    if any(tf.is_tensor(size) for size in shape):  # of a batch whose size is not known yet
        count = tf.reduce_prod(tf.cast(tf.stack(shape), tf.int64))
        return tf.reshape(_bits(_words(key), tf.range(start, start + count)), shape)
    count = math.prod(shape)
    computed = 1 << (count - 1).bit_length() if 0 < count < SHARED else count
    signed = tf.constant(start - (start >> 63 << 64), tf.int64)
    return tf.reshape(_compiled(computed)(_words(key), signed)[:count], shape)


@functools.cache
def _compiled(count: int) -> Any:
    """Fused by XLA, several times faster than one operation after the other; for a shape that is known."""

    @tf.function(jit_compile=True, autograph=False)
    def compute(key: Any, start: Any) -> Any:
        return _bits(key, start + tf.range(count, dtype=tf.int64))

    return compute


def _bits(key: Any, counter: Any) -> Any:
    first, second = _threefry(key, _word(tf.bitwise.right_shift(counter, tf.constant(32, tf.int64))), _word(counter))
    return tf.bitcast(tf.bitwise.bitwise_xor(first, second), tf.int32)


def below(key: Any, start: Any, shape: Any, limit: int) -> Any:
    """Return whether the first 23 bits of each word, as a number, are less than a limit."""
    return shift_right(bits(key, start, shape), 9) < limit


def split(key: Any, number: int) -> list[Any]:
    counter = tf.range(number, dtype=tf.int64)
    first, second = _threefry(_words(key), tf.zeros(number, tf.uint32), _word(counter))
    return tf.unstack(tf.cast(tf.stack([first, second], axis=1), tf.int64))


def shift_right(words: Any, count: int) -> Any:
    """Return int32 words as if unsigned, shifted."""
    return tf.bitcast(tf.bitwise.right_shift(tf.bitcast(words, tf.uint32), tf.constant(count, tf.uint32)), tf.int32)


def unsigned(words: Any) -> Any:
    return tf.cast(tf.bitcast(words, tf.uint32), tf.int64)


def _word(number: Any) -> Any:
    return tf.cast(tf.bitwise.bitwise_and(tf.cast(number, tf.int64), 0xFFFFFFFF), tf.uint32)


def _words(key: Any) -> Any:
    return _word(key)


def _threefry(key: Any, x: Any, y: Any) -> tuple[Any, Any]:
    keys = (key[0], key[1], tf.bitwise.bitwise_xor(tf.bitwise.bitwise_xor(key[0], key[1]), 0x1BD11BDA))
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            left = tf.bitwise.left_shift(y, tf.constant(rotation, tf.uint32))
            right = tf.bitwise.right_shift(y, tf.constant(32 - rotation, tf.uint32))
            y = tf.bitwise.bitwise_xor(tf.bitwise.bitwise_or(left, right), x)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + tf.constant(group + 1, tf.uint32)
    return x, y
