"""What all studies have in common: a grid that can be asked for, and a directory of their own with study.json."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmgpu import backends as table
from kmgpu.errors import UsageError
from kmgpu.rundir import read_json, write_json

FORMAT = 1  # version of study.json
FILE = "study.json"


def check_grid(backends: Sequence[str], devices: Sequence[int]) -> None:
    """Raise UsageError unless both are lists that name something, known and once."""
    for option, values in (("--backends", backends), ("--devices", devices)):
        if isinstance(values, (str, int)) or not values:
            raise UsageError(f"{option} is {values!r}; it is a list with at least one entry")
        if len(set(values)) < len(values):
            raise UsageError(f"{option} names something twice: {','.join(map(str, values))}")
    for backend in backends:
        table.find(backend)


def check_count(option: str, count: Any) -> None:
    """Raise UsageError unless a value is None or a whole number of at least 1."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise UsageError(f"{option} is {count!r}; it is a count of at least 1")


def default_path(parent: str, recipe_name: str) -> Path:
    """Return a new path that says when and what."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{recipe_name}"
    return unused(Path(parent, name))


def create(path: Path, asked: dict[str, Any]) -> Path:
    """Make the directory of a study with its study.json; refuses one that already holds something."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not an empty directory; choose another --out for this study")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / FILE, {"format": FORMAT, "started": time.time(), **asked})
    except OSError as error:
        raise UsageError(f"cannot make the study directory {path}: {error.strerror}; choose another --out") from error
    return path


def read(path: Path) -> dict[str, Any]:
    """Return what a study was asked for, from its study.json; raises UsageError."""
    if not (path / FILE).is_file():
        raise UsageError(f"{path} is not a study: it has no {FILE}")
    try:
        asked = read_json(path / FILE)
        version = asked["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path / FILE} cannot be read ({error}); start a new study") from error
    if version != FORMAT:
        raise UsageError(f"{path / FILE} has format {version!r}, this kmgpu reads {FORMAT}; start a new study")
    return asked


def update(path: Path, **fields: Any) -> None:
    """Change fields of study.json."""
    write_json(path / FILE, {**read_json(path / FILE), **fields})


def unused(path: Path) -> Path:
    """Return the path, or with a number behind it if it is there already."""
    found, number = path, 2
    while found.exists():
        found, number = path.with_name(f"{path.name}-{number}"), number + 1
    return found
