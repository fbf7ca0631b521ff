"""The order in which samples are consumed, and a hash that proves that it was kept on any number of devices."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_LANES = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], np.uint64)  # first digits of pi: nothing up our sleeve


def epoch_order(rows: int, seed: int, epoch: int, shuffle: bool) -> np.ndarray:
    """Return (rows,) int64: every index once, in the order of one epoch; a function of its arguments alone.

    NumPy keeps the raw words of a bit generator stable across versions (NEP 19), but not ``Generator.permutation``;
    hence a stable sort of raw words.
    """
    if not shuffle:
        return np.arange(rows, dtype=np.int64)
    words = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(rows)
    return np.argsort(words, kind="stable").astype(np.int64)


class OrderHash:
    """A 128-bit hash of the consumed samples: a sum, so that processes may each add their own share in any order.

    The sum over all processes equals what one process that consumed everything would hold, provided that each sample
    is added once: where all processes compute the whole batch, one of them adds it (``Batch.counted``).
    """

    def __init__(self, lanes: np.ndarray | None = None):
        self.lanes = np.zeros(2, np.uint64) if lanes is None else np.array(lanes, np.uint64)  # (2,) uint64

    def add(self, step: int, positions: np.ndarray, indices: np.ndarray) -> None:
        """Add the samples ``indices`` at ``positions`` of the global batch of ``step``, counted over the whole run."""
        with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is the point
            mixed = _splitmix64(_LANES + np.uint64(step))[:, None]
            for word in (positions, indices):
                mixed = _splitmix64(mixed + np.asarray(word, np.int64).astype(np.uint64))
            self.lanes = self.lanes + mixed.sum(axis=1, dtype=np.uint64)

    @staticmethod
    def join(lanes: np.ndarray) -> str:
        """Return 32 hexadecimal digits from the lanes of all processes, (processes, 2) uint64."""
        total = np.asarray(lanes, np.uint64).reshape(-1, 2).sum(axis=0, dtype=np.uint64)
        return "".join(f"{int(lane):016x}" for lane in total)


def content_hashes(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Return (rows,) int64: a hash of each row of arrays of equally many rows; what names a sample without an index.

    Of a row longer than 4 KiB it looks at 512 words of 8 bytes, evenly spaced.
    """
    total = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for number, array in enumerate(arrays):
            total = _splitmix64(total + _row_words(array) + np.uint64(number))
    return total.view(np.int64)


def _row_words(array: np.ndarray) -> np.ndarray:
    """Return (rows,) uint64: a sum of each row's words, each multiplied by an odd number of its own."""
    data = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)  # (rows, bytes)
    padding = -data.shape[1] % 8
    if padding:
        data = np.pad(data, ((0, 0), (0, padding)))
    words = data.view(np.uint64)
    if words.shape[1] > 512:
        words = words[:, np.linspace(0, words.shape[1] - 1, 512).astype(np.int64)]
    factors = _splitmix64(np.arange(words.shape[1], dtype=np.uint64)) | np.uint64(1)
    return (words * factors).sum(axis=1, dtype=np.uint64)


def _splitmix64(words: np.ndarray) -> np.ndarray:
    """Return well-mixed uint64 words (Steele, Lea, Flood 2014: the output function of SplitMix64)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
