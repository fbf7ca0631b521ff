"""JAX: the words that portable random numbers are made of (kmgpu/backends/common/draws.py)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry_2x32

erf_inverse = jax.lax.erf_inv
where, log = jnp.where, jnp.log  # those of keras.ops make float32 of float64 in a run


def wide() -> Any:
    """Within this context JAX computes in 64 bits where it is asked to."""
    return jax.enable_x64(True)


def bits(key: Any, start: Any, shape: tuple[int, ...]) -> Any:
    """Return 32 random bits for each element of ``shape``, the first of which has the counter ``start``; int32.

    Threefry-2x32 with 20 rounds (Salmon et al., SC'11), in the partitionable form of jax.random.
    """
    if isinstance(start, int) and start == 0:
        with jax.threefry_partitionable(True):
            words = jax.random.bits(_words(key), shape, jnp.uint32)
        return jax.lax.bitcast_convert_type(words, jnp.int32)
    count = int(np.prod(shape, dtype=np.int64))
    with wide():
        counter = jnp.arange(count, dtype=jnp.uint64) + jnp.asarray(start, jnp.uint64)
        pair = jnp.concatenate([(counter >> 32).astype(jnp.uint32), counter.astype(jnp.uint32)])
    first, second = jnp.split(threefry_2x32(_words(key), pair), 2)
    return jax.lax.bitcast_convert_type(first ^ second, jnp.int32).reshape(shape)


def below(key: Any, start: Any, shape: Any, limit: int) -> Any:
    """Return whether the first 23 bits of each word, as a number, are less than a limit."""
    return shift_right(bits(key, start, shape), 9) < limit


def split(key: Any, number: int) -> list[Any]:
    with jax.threefry_partitionable(True):
        return list(jax.random.split(_words(key), number))


def shift_right(words: Any, count: int) -> Any:
    """Return int32 words as if unsigned, shifted."""
    return jax.lax.shift_right_logical(words, jnp.int32(count))


def unsigned(words: Any) -> Any:
    return jax.lax.bitcast_convert_type(words, jnp.uint32).astype(jnp.int64)


def _words(key: Any) -> Any:
    return jnp.asarray(key).astype(jnp.uint32)
