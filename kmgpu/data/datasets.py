"""Data sets of the shipped recipes, as NumPy arrays."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kmgpu.errors import MissingEnvironment, UsageError


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x (rows, 8, 8, 1) float32 in 0..1 and y (rows,) int32: handwritten digits that ship with scikit-learn.

    "test" is every fifth of the 1,797 images, from the first on (360 rows); "train" is the rest (1,437 rows). The file
    holds the images writer by writer, so that nearly all writers are in both.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, https://doi.org/10.24432/C50P49.
    """
    _check_split("digits", split)
    table = _digits_table()
    rows = np.arange(len(table)) % 5 == 0
    table = table[rows if split == "test" else ~rows]
    return table[:, :64].reshape(-1, 8, 8, 1).astype(np.float32) / 16, table[:, 64].astype(np.int32)


def mnist(split: str) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return a function that gives x (rows, 28, 28, 1) float32 in 0..1 and y (rows,) int32: MNIST.

    60,000 rows of "train", 10,000 of "test". The function is called once per host. It reads Keras's local copy, and
    has Keras download it where there is none.
    """
    _check_split("mnist", split)
    return functools.partial(_load_mnist, split)


@functools.cache
def _digits_table() -> np.ndarray:
    """Return (1797, 65) int8: 64 pixels in 0..16 and the label. Read without importing scikit-learn, a second saved."""
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise MissingEnvironment(
            "the data set digits is part of scikit-learn, which is not installed here; run `pip install scikit-learn`"
        )
    path = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    try:
        return np.loadtxt(path, delimiter=",", dtype=np.int8)
    except (OSError, ValueError) as error:
        raise MissingEnvironment(f"cannot read {path} ({error}); reinstall scikit-learn") from error


def _load_mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    path = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets" / "mnist.npz"
    x, y = _read_mnist(path, split) if path.exists() else _download_mnist(path, split)
    return x[..., np.newaxis].astype(np.float32) / 255, y.astype(np.int32)


def _read_mnist(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays[f"x_{split}"], arrays[f"y_{split}"]
    except Exception as error:  # a damaged archive raises half a dozen kinds
        raise MissingEnvironment(f"{path} is not Keras's mnist.npz ({error}); remove it or replace it") from error


def _download_mnist(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    import keras  # only here: the digits must not cost an import of Keras

    try:
        train, test = keras.datasets.mnist.load_data()
    except Exception as error:  # Keras raises a bare Exception where a download fails
        raise MissingEnvironment(
            f"MNIST is not at {path} and cannot be downloaded ({error}); "
            "put Keras's mnist.npz there (any machine where keras.datasets.mnist.load_data() ran has it)"
        ) from error
    return train if split == "train" else test


def _check_split(name: str, split: str) -> None:
    if split not in ("train", "test"):
        raise UsageError(f"{name} has no split {split!r}; it has 'train' and 'test'")
