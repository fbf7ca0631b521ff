"""What all studies have in common: a grid that can be asked for, and a directory of their own with study.json."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmgpu import backends as table
from kmgpu.errors import UsageError
from kmgpu.rundir import write_json

FORMAT = 1  # version of study.json


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
    path, number = Path(parent, name), 2
    while path.exists():
        path, number = Path(parent, f"{name}-{number}"), number + 1
    return path


def create(path: Path, asked: dict[str, Any]) -> Path:
    """Make the directory of a study with its study.json; refuses one that already holds something."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} is not an empty directory; choose another --out for this study")
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_json(path / "study.json", {"format": FORMAT, "started": time.time(), **asked})
    except OSError as error:
        raise UsageError(f"cannot make the study directory {path}: {error.strerror}; choose another --out") from error
    return path
