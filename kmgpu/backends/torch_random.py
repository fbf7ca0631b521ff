"""Torch: the words that portable random numbers are made of (kmgpu/backends/common/draws.py)."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import torch

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
CHUNK = 1 << 20  # numbers that are computed at once, so that they stay in the cache

wide = contextlib.nullcontext
erf_inverse = torch.erfinv


def bits(key: torch.Tensor, start: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return 32 random bits for each element of ``shape``, the first of which has the counter ``start``; int32.

    Threefry-2x32 with 20 rounds (Salmon et al., SC'11), in JAX's partitionable form.
    """
    count = int(np.prod(shape, dtype=np.int64))
    if key.device.type == "meta":
        return torch.empty(shape, dtype=torch.int32, device="meta")
    result = torch.empty(count, dtype=torch.int32, device=key.device)
    words = _signed_words(key)
    at = 0
    while at < count:
        high, low = (start + at) >> 32, (start + at) & 0xFFFFFFFF
        size = min(CHUNK, count - at, (1 << 32) - low)  # up to where the low word of the counter wraps
        counter = torch.arange(size, dtype=torch.int32, device=key.device) + _signed(low)
        first, second = _threefry(words, torch.full_like(counter, _signed(high)), counter)
        torch.bitwise_xor(first, second, out=result[at : at + size])
        at += size
    return result.reshape(shape)


def split(key: torch.Tensor, number: int) -> list[torch.Tensor]:
    if key.device.type == "meta":
        return [key] * number
    counter = torch.arange(number, dtype=torch.int32, device=key.device)
    first, second = _threefry(_signed_words(key), torch.zeros_like(counter), counter)
    return list(torch.stack([first, second], dim=1))


def shift_right(words: torch.Tensor, count: int) -> torch.Tensor:
    """Return int32 words as if unsigned, shifted."""
    return (words >> count) & ((1 << (32 - count)) - 1)


def unsigned(words: torch.Tensor) -> torch.Tensor:
    return words.to(torch.int64) & 0xFFFFFFFF


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _signed_words(key: torch.Tensor) -> list[torch.Tensor]:
    words = key.to(torch.int64) & 0xFFFFFFFF
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
    return [words[0], words[1]]


def _threefry(key: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute in place; int32 wraps around as uint32, which torch cannot add."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA)
    x, y = x.add_(keys[0]), y.add_(keys[1])
    turned = torch.empty_like(y)
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x.add_(y)
            torch.bitwise_right_shift(y, 32 - rotation, out=turned)
            turned.bitwise_and_((1 << rotation) - 1)
            y.bitwise_left_shift_(rotation).bitwise_or_(turned).bitwise_xor_(x)
        x.add_(keys[(group + 1) % 3])
        y.add_(keys[(group + 2) % 3] + (group + 1))
    return x, y
