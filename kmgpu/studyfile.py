"""A study file: several comparisons written down in TOML, made one after the other into one directory.

    recipe = ["digits_cnn", "digits_mlp"]    # names, or files beside this one
    backends = ["torch", "tensorflow", "jax"]
    devices = [1, 2]
    batch_size = [64, 256]
    repeats = 8                              # or budget = "2h", of the whole file

    [settings]
    learning_rate = 0.01

Each key is an option of ``kmgpu compare``. A list of what that command takes one of makes a comparison for each, all of
them combined: the file above makes four, and each has a table of its own, for what is not equal is not ranked together.
"""

from __future__ import annotations

import inspect
import itertools
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import comparison, pacing
from kmgpu import study as studies
from kmgpu.comparison import Asked, CompareResult
from kmgpu.errors import Interrupted, KmgpuError, UsageError, nearest
from kmgpu.rundir import read_json, write_json

COPY = "study.toml"  # of the file, in the directory of its study
PARTS = "parts.json"  # the names of its comparisons, whose directories lie beside
FORMAT = 1  # version of parts.json
FACTORS = ("recipe", "scaling", "batch_size", "precision", "track", "randomness", "loss_gather", "seed")
NOT_IN_FILES = ("out", "show", "progress")


@dataclass(frozen=True)
class Part:
    """One comparison of a study file; its directory has its name."""

    name: str
    asked: Asked


@dataclass(frozen=True)
class Made:
    """What became of a part: its result, or why there is none."""

    name: str
    result: CompareResult | None
    error: KmgpuError | None = None


def read(path: Path) -> list[Part]:
    """Return the comparisons that a file asks for, all checked. Raises UsageError or MissingEnvironment."""
    wishes = _wishes(path)
    budget = wishes.get("budget")
    if budget is not None and "repeats" in wishes:
        raise UsageError(f"{path} has repeats and budget, which finds the repeats; choose one")
    total = None if budget is None else pacing.seconds(budget, "budget")
    chosen = {name: _listed(path, name, wishes[name]) for name in FACTORS if name in wishes}
    combined = [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]
    parts: list[Part] = []
    for values in combined:
        arguments = {**_defaults(), **wishes, **values}
        if total is not None:
            arguments["budget"] = total / len(combined)
        recipe = _recipe(path, arguments.pop("recipe"))
        arguments["settings"] = _settings_of(Path(recipe).stem, arguments["settings"] or {}, chosen["recipe"])
        varied = [f"{name}-{value}" for name, value in values.items() if name != "recipe" and len(chosen[name]) > 1]
        try:
            asked = comparison.ask(recipe, **arguments)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from error
        parts.append(Part("-".join([Path(asked.recipe).stem, *varied]), asked))
    names = [part.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path} asks twice for {twice}; name each recipe and each value once")
    return parts


def create(path: Path, out: Path | None = None) -> Path:
    """Make the directory of a study file, with one for each comparison in it; nothing has run yet."""
    parts = read(path)
    folder = out or studies.default_path("studies", path.stem)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty directory; choose another --out for this study")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / COPY)
        for part in parts:
            comparison.create(part.asked, folder / part.name)
        write_json(folder / PARTS, {"format": FORMAT, "parts": [part.name for part in parts]})
    except OSError as error:
        raise UsageError(f"cannot make the study directory {folder}: {error.strerror}; choose another --out") from error
    return folder


def go_on(
    folder: Path,
    *,
    show: Callable[[str], None] = lambda line: None,
    progress: Callable[[str], None] = lambda line: None,
    made: Callable[[Made], None] = lambda part: None,
) -> list[Made]:
    """Make the runs that a directory of ``create`` lacks, comparison after comparison.

    ``made`` gets each comparison as soon as it is there. One that fails does not take the others along.
    """
    names = _parts(folder)
    ended = []
    for number, name in enumerate(names, 1):
        show(f"comparison {number} of {len(names)}: {name}")
        try:
            found = Made(name, comparison.go_on(folder / name, show=show, progress=progress))
        except Interrupted:
            raise
        except KmgpuError as error:
            show(f"    {str(error).splitlines()[0]}")
            found = Made(name, None, error)
        ended.append(found)
        made(found)
    return ended


def _parts(folder: Path) -> list[str]:
    try:
        record = read_json(folder / PARTS)
        version, parts = record["format"], record["parts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder / PARTS} cannot be read ({error}); start a new study") from error
    if version != FORMAT:
        raise UsageError(f"{folder / PARTS} has format {version!r}, this kmgpu reads {FORMAT}; start a new study")
    return parts


def _wishes(path: Path) -> dict[str, Any]:
    """Return what a file says, its keys checked."""
    try:
        wishes = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise UsageError(f"cannot read the study file {path}: {said}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the study file {path} is not TOML: {error}") from error
    known = ["recipe", *_defaults()]
    for name in wishes:
        if name not in known:
            raise UsageError(f"{path} has {name!r}{nearest(name, known)}; it may have {', '.join(known)}")
    if "recipe" not in wishes:
        raise UsageError(f'{path} names no recipe; give one, such as recipe = "digits_cnn"')
    for name in ("settings", "python"):
        if not isinstance(wishes.get(name, {}), Mapping):
            raise UsageError(f"{path}: {name} is {wishes[name]!r}; it is a table, [{name}]")
    return wishes


def _defaults() -> dict[str, Any]:
    """Return the options of a comparison, and what they are if left out."""
    parameters = list(inspect.signature(comparison.compare).parameters.values())[1:]
    return {known.name: known.default for known in parameters if known.name not in NOT_IN_FILES}


def _listed(path: Path, name: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UsageError(f"{path}: {name} is an empty list; give at least one value, or leave it out")
    return values


def _recipe(path: Path, name: Any) -> str:
    """Return a recipe's name, or its file as seen from the study file."""
    if not isinstance(name, str):
        raise UsageError(f"{path}: a recipe is {name!r}; it is a name or a file, as text")
    return str(path.parent / name) if name.endswith(".py") else name


def _settings_of(recipe: str, settings: Mapping[str, Any], recipes: list[str]) -> dict[str, Any]:
    """Return the settings of one recipe: those of all, and those of the table with its name."""
    stems = {Path(name).stem for name in recipes}
    shared = {name: value for name, value in settings.items() if not (name in stems and isinstance(value, Mapping))}
    return {**shared, **(settings.get(recipe) or {})}
