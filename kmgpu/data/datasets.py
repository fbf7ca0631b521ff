"""Data sets by name, as NumPy arrays: those that ship inside Python packages, and those that Keras downloads."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kmgpu.errors import MissingEnvironment, UsageError, nearest

KERAS_IMAGES = ("mnist", "fashion_mnist", "cifar10", "cifar100")  # of keras.datasets


def digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return x (rows, 8, 8, 1) float32 in 0..1 and y (rows,) int32: handwritten digits that ship with scikit-learn.

    "test" is every fifth of the 1,797 images, from the first on (360 rows); "train" is the rest (1,437 rows). The file
    holds the images writer by writer, so that nearly all writers are in both.
    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI, https://doi.org/10.24432/C50P49.
    """
    check_split("digits", split)
    table = _digits_table()
    rows = np.arange(len(table)) % 5 == 0
    table = table[rows if split == "test" else ~rows]
    return table[:, :64].reshape(-1, 8, 8, 1).astype(np.float32) / 16, table[:, 64].astype(np.int32)


def co2() -> np.ndarray:
    """Return (2284,) float32: CO2 in the air over Mauna Loa, weekly from March 1958 to December 2001, in ppm.

    It ships with statsmodels; the 59 weeks without a measurement are interpolated linearly.
    Source: C. D. Keeling, T. P. Whorf, Scripps Institution of Oceanography (public domain).
    """
    table = _statsmodels_table("co2")
    values = np.array([float(value) if value else np.nan for value in table["co2"]])
    weeks, known = np.arange(len(values)), ~np.isnan(values)
    return np.interp(weeks, weeks[known], values[known]).astype(np.float32)


def affairs(split: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return columns by name, each (rows,) float32, and y (rows,) int32: whether there was an affair (32 % yes).

    6,366 women asked by a magazine in 1974, with marriage, age, years married, children, religion, education and two
    occupations; "test" is every fifth row. It ships with statsmodels, as its data set `fair`.
    Source: R. Fair, A Theory of Extramarital Affairs, Journal of Political Economy 86 (1978).
    """
    check_split("affairs", split)
    table = {name: np.array(values, np.float32) for name, values in _statsmodels_table("fair").items()}
    rows = (np.arange(len(table["age"])) % 5 == 0) == (split == "test")
    target = table.pop("affairs") > 0
    return {name: values[rows] for name, values in table.items()}, target[rows].astype(np.int32)


def mnist(split: str) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return a function that gives x (rows, 28, 28, 1) float32 in 0..1 and y (rows,) int32: MNIST.

    60,000 rows of "train", 10,000 of "test". The function is called once per host. It reads Keras's local copy, and
    has Keras download it where there is none.
    """
    check_split("mnist", split)
    return functools.partial(_load_mnist, split)


def keras_images(name: str, split: str) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Return a function that gives x (rows, height, width, channels) float32 in 0..1 and y (rows,) int32.

    ``name`` is that of a set in `keras.datasets`: mnist, fashion_mnist, cifar10 or cifar100. Keras downloads it on
    first use, checks it, and keeps it in ~/.keras/datasets. The function is called once per host.
    """
    if name not in KERAS_IMAGES:
        known = ", ".join(KERAS_IMAGES)
        raise UsageError(f"keras.datasets has no images {name!r}{nearest(name, list(KERAS_IMAGES))}; it has {known}")
    check_split(name, split)
    return mnist(split) if name == "mnist" else functools.partial(_load_keras, name, split)


def check_split(name: str, split: str) -> None:
    """Raise UsageError for a split that a data set does not have."""
    if split not in ("train", "test"):
        raise UsageError(f"{name} has no split {split!r}; it has 'train' and 'test'")


@functools.cache
def _digits_table() -> np.ndarray:
    """Return (1797, 65) int8: 64 pixels in 0..16 and the label."""
    path = _inside("sklearn", "scikit-learn", "digits") / "datasets" / "data" / "digits.csv.gz"
    try:
        return np.loadtxt(path, delimiter=",", dtype=np.int8)
    except (OSError, ValueError) as error:
        raise MissingEnvironment(f"cannot read {path} ({error}); reinstall scikit-learn") from error


def _statsmodels_table(name: str) -> dict[str, list[str]]:
    """Return the columns of one of statsmodels' data sets, as text."""
    import csv

    path = _inside("statsmodels", "statsmodels", name) / "datasets" / name / f"{name}.csv"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
    except (OSError, ValueError) as error:
        raise MissingEnvironment(f"cannot read {path} ({error}); reinstall statsmodels") from error
    return {column: list(values) for column, values in zip(head, zip(*rows, strict=True), strict=True)}


def _inside(module: str, package: str, data: str) -> Path:
    """Return the folder of an installed package, which is not imported: that would take a second."""
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        raise MissingEnvironment(
            f"the data set {data} is part of {package}, which is not installed here; run `pip install {package}`"
        )
    return Path(found.submodule_search_locations[0])


def _load_mnist(split: str) -> tuple[np.ndarray, np.ndarray]:
    path = _keras_home() / "datasets" / "mnist.npz"
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


def _load_keras(name: str, split: str) -> tuple[np.ndarray, np.ndarray]:
    import keras

    try:
        train, test = getattr(keras.datasets, name).load_data()
    except Exception as error:  # Keras raises a bare Exception where a download fails
        folder = _keras_home() / "datasets"
        raise MissingEnvironment(
            f"{name} is not in {folder} and cannot be downloaded ({error}); copy there what "
            f"keras.datasets.{name}.load_data() has put into that folder on a machine with a network"
        ) from error
    x, y = train if split == "train" else test
    x = x if x.ndim == 4 else x[..., np.newaxis]
    return x.astype(np.float32) / 255, y.reshape(-1).astype(np.int32)


def _keras_home() -> Path:
    return Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
