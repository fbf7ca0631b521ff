"""Torch: the words that portable random numbers are made of (kmgpu/backends/common/draws.py).

Threefry-2x32 with 20 rounds (Salmon et al., SC'11), in JAX's partitionable form: on a CPU a C function, under
torch.compile operators that it fuses, and else operators in place.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from kmgpu.backends import torch_threefry

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
CHUNK = 1 << 18  # numbers that operators compute at once, so that they stay in the cache
WRAP = 1 << 32

wide = contextlib.nullcontext
erf_inverse = torch.erfinv
where, log = torch.where, torch.log  # those of keras.ops make float32 of float64 in a run


def bits(key: torch.Tensor, start: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return 32 random bits for each element of ``shape``, the first of which has the counter ``start``; int32."""
    if key.device.type == "meta":
        return torch.empty(shape, dtype=torch.int32, device="meta")
    if torch.compiler.is_compiling():
        return _traced(key, start, math.prod(shape)).reshape(shape)
    if key.device.type == "cuda":
        return _fused(key, start, math.prod(shape)).reshape(shape)
    if key.device.type == "cpu" and (compiled := torch_threefry.library()):
        return _filled(compiled.words, key, start, shape, torch.int32)
    return _in_place(key, start, math.prod(shape)).reshape(shape)


def below(key: torch.Tensor, start: int, shape: tuple[int, ...], limit: int) -> torch.Tensor:
    """Return whether the first 23 bits of each word, as a number, are less than a limit."""
    plain = key.device.type == "cpu" and not torch.compiler.is_compiling()
    if plain and (compiled := torch_threefry.library()):
        return _filled(compiled.below, key, start, shape, torch.bool, limit)
    return shift_right(bits(key, start, shape), 9) < limit


def split(key: torch.Tensor, number: int) -> list[torch.Tensor]:
    if key.device.type == "meta":
        return [key] * number
    plain = key.device.type == "cpu" and not torch.compiler.is_compiling()
    if plain and (compiled := torch_threefry.library()):
        keys = torch.empty((number, 2), dtype=torch.int64, device="cpu")
        compiled.pairs(*(word % WRAP for word in key.tolist()), number, keys.data_ptr())
        return list(keys)
    counter = torch.arange(number, dtype=torch.int32, device=key.device)
    first, second = _threefry(_signed_words(key), torch.zeros_like(counter), counter)
    return list(torch.stack([first, second], dim=1))


def shift_right(words: torch.Tensor, count: int) -> torch.Tensor:
    """Return int32 words as if unsigned, shifted."""
    return (words >> count) & ((1 << (32 - count)) - 1)


def unsigned(words: torch.Tensor) -> torch.Tensor:
    return words.to(torch.int64) & 0xFFFFFFFF


def _filled(
    function: Callable[..., None], key: torch.Tensor, start: int, shape: tuple[int, ...], dtype: Any, *more: int
) -> torch.Tensor:
    """Return a tensor that a C function has filled, in parts within which the low word of the counter does not wrap."""
    result = torch.empty(shape, dtype=dtype, device="cpu")
    count, at = result.numel(), 0
    first, second = (word % WRAP for word in key.tolist())
    while at < count:
        size = min(count - at, WRAP - (start + at) % WRAP)
        place = ctypes.c_void_p(result.data_ptr() + at * result.element_size())
        function(first, second, start + at, size, *more, place)
        at += size
    return result


def _in_place(key: torch.Tensor, start: int, count: int) -> torch.Tensor:
    result = torch.empty(count, dtype=torch.int32, device=key.device)
    words = _signed_words(key)
    at = 0
    while at < count:
        high, low = divmod(start + at, WRAP)
        size = min(CHUNK, count - at, WRAP - low)
        counter = torch.arange(size, dtype=torch.int32, device=key.device).add_(_signed(low))
        first, second = _threefry_in_place(words, torch.full_like(counter, _signed(high)), counter)
        torch.bitwise_xor(first, second, out=result[at : at + size])
        at += size
    return result


def _traced(key: torch.Tensor, start: Any, count: Any) -> torch.Tensor:
    counter = torch.arange(count, dtype=torch.int64, device=key.device) + start
    first, second = _threefry(_signed_words(key), (counter >> 32).to(torch.int32), _low(counter))
    return first ^ second


@functools.cache
def _compiled_by_torch() -> Callable[..., torch.Tensor]:
    return torch.compile(_traced, dynamic=True)


def _fused(key: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """On a GPU one kernel instead of a hundred, if torch can compile it (Triton); unverified on GPU."""
    try:
        return _compiled_by_torch()(key, start, count)
    except Exception:  # no Triton, no C compiler for it: the same numbers, operator after operator
        return _in_place(key, start, count)


def _signed(word: int) -> int:
    return word - WRAP if word >= 1 << 31 else word


def _low(numbers: torch.Tensor) -> torch.Tensor:
    """Return the low words of int64 numbers, as int32."""
    low = numbers & 0xFFFFFFFF
    return torch.where(low >= 1 << 31, low - WRAP, low).to(torch.int32)


def _signed_words(key: torch.Tensor) -> list[torch.Tensor]:
    words = _low(key.to(torch.int64))
    return [words[0], words[1]]


def _schedule(key: Any) -> tuple[torch.Tensor, ...]:
    return key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA


def _threefry(key: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both words for the counters (x, y); int32 wraps around as uint32, which torch cannot add."""
    keys = _schedule(key)
    x, y = x + keys[0], y + keys[1]
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = ((y << rotation) | shift_right(y, 32 - rotation)) ^ x
        x, y = x + keys[(group + 1) % 3], y + keys[(group + 2) % 3] + (group + 1)
    return x, y


def _threefry_in_place(key: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, in the memory of x and y and one tensor more."""
    keys = _schedule(key)
    x, y = x.add_(keys[0]), y.add_(keys[1])
    turned = torch.empty_like(y)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x.add_(y)
            torch.bitwise_right_shift(y, 32 - rotation, out=turned)
            turned.bitwise_and_((1 << rotation) - 1).add_(y, alpha=1 << rotation).bitwise_xor_(x)
            y, turned = turned, y
        x.add_(keys[(group + 1) % 3])
        y.add_(keys[(group + 2) % 3] + (group + 1))
    return x, y
