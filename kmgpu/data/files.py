"""A user's own files as data: folders of images, lines of text, tables.

What reads them is Keras (and Pillow), Python's csv module, and pandas for Parquet; this module only gives them the form
that kmgpu reads in any order and from several threads.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu.errors import MissingEnvironment, UsageError, nearest

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


class ImageFolder:
    """Rows of (image (height, width, channels) float32 in 0..1, label int32): a subfolder for each class, in order.

    An image is read when its row is; `--workers N` reads with N threads. Other shapes are cropped in the middle and
    resized. ``class_names`` are the names of the subfolders, ``paths`` those of the images.
    """

    def __init__(self, folder: str | Path, *, size: tuple[int, int], channels: int = 3):
        self.folder, self.size = Path(folder).expanduser(), size
        self.color_mode = {1: "grayscale", 3: "rgb", 4: "rgba"}.get(channels)
        if self.color_mode is None:
            raise UsageError(f"channels is {channels!r}; it is 1, 3 or 4")
        if importlib.util.find_spec("PIL") is None:
            raise MissingEnvironment("images are read by Pillow, which is not installed here; run `pip install pillow`")
        if not self.folder.is_dir():
            raise UsageError(
                f"the folder of images {self.folder} does not exist; give one with a subfolder for each class"
            )
        self.class_names = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        found = [
            (path, label)
            for label, name in enumerate(self.class_names)
            for path in sorted((self.folder / name).rglob("*"))
            if path.suffix.lower() in IMAGES
        ]
        if not found:
            kinds = ", ".join(suffix[1:] for suffix in IMAGES)
            raise UsageError(f"{self.folder} has no images in subfolders, one for each class; images are {kinds}")
        self.paths = [path for path, _ in found]
        self.labels = np.array([label for _, label in found], np.int32)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        import keras

        image = keras.utils.load_img(
            self.paths[index], color_mode=self.color_mode, target_size=self.size, interpolation="bilinear",
            keep_aspect_ratio=True,
        )  # fmt: skip
        return keras.utils.img_to_array(image, dtype="float32") / 255, self.labels[index]


def text_lines(path: str | Path, *, encoding: str = "utf-8") -> list[str]:
    """Return the lines of a text file that are not empty, or of all .txt files in a folder, by name."""
    path = Path(path).expanduser()
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    lines: list[str] = []
    for file in files:
        try:
            lines += [line for line in file.read_text(encoding=encoding).splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is not {encoding} ({error}); name its encoding") from None
        except OSError as error:
            raise UsageError(f"cannot read the text {file}: {error.strerror}") from None
    if not lines:
        raise UsageError(f"{path} has no text; give a file, or a folder of .txt files")
    return lines


def table(path: str | Path, *, target: str, text: Sequence[str] = ()) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return the columns of a CSV or Parquet file by name, each (rows,), and the column ``target``.

    A CSV file has names in its first line. Numbers become float32, empty cells NaN; columns named in ``text`` become
    int32, the place of each text among its column's texts in order. Parquet is read by pandas.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UsageError(f"the table {path} does not exist")
    columns = _parquet(path) if path.suffix.lower() in (".parquet", ".pq") else _csv(path)
    for name in (target, *text):
        if name not in columns:
            raise UsageError(
                f"{path} has no column {name!r}{nearest(name, list(columns))}; it has {', '.join(columns)}"
            )
    read = {name: _codes(values) if name in text else _numbers(path, name, values) for name, values in columns.items()}
    y = read.pop(target)
    return read, y


def _csv(path: Path) -> dict[str, list[Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    if len(rows) < 2:
        raise UsageError(f"{path} has no rows; its first line names the columns")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(rows[0]):
            raise UsageError(f"{path}: row {number} has {len(row)} cells; the first line names {len(rows[0])} columns")
    return {name: list(values) for name, values in zip(rows[0], zip(*rows[1:], strict=True), strict=True)}


def _parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pandas

        frame = pandas.read_parquet(path)
    except ImportError as error:
        raise MissingEnvironment(
            f"Parquet is read by pandas and pyarrow ({error}); run `pip install pandas pyarrow`"
        ) from None
    return {str(name): frame[name].tolist() for name in frame.columns}


def _codes(values: list[Any]) -> np.ndarray:
    return np.unique(np.array([str(value) for value in values]), return_inverse=True)[1].astype(np.int32)


def _numbers(path: Path, name: str, values: list[Any]) -> np.ndarray:
    try:
        return np.array([np.nan if value in ("", None) else float(value) for value in values], np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{path}: column {name!r} is no column of numbers ({error}); add it to text=") from None
