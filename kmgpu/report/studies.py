"""Studies as reports read them, and the tables that they fall into: runs that may stand beside each other.

A study is a directory with study.json, or the loose runs of a folder. Only what is on the disk counts: who wrote it,
and in which order, does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu.errors import NotComparable, UsageError
from kmgpu.report import backing, comparable, runs, sound
from kmgpu.report.backing import Proof
from kmgpu.report.machines import machine
from kmgpu.report.parity import ParityResult
from kmgpu.report.runs import Run
from kmgpu.rundir import read_json

LOOSE = "runs"  # the name of what belongs to no study
FORMAT = 1  # of study.json


@dataclass(frozen=True)
class Study:
    """One study, read: what was asked (study.json), its runs, and what backs it."""

    name: str
    path: Path
    asked: dict[str, Any]
    runs: tuple[Run, ...]
    proof: Proof
    check: ParityResult | None
    problems: tuple[str, ...]  # what could not be read, a sentence each
    fitted: tuple[Run, ...] = ()  # by Keras's own fit, for their time alone

    @property
    def scaling(self) -> str:
        return self.asked.get("scaling", "strong")


@dataclass(frozen=True)
class Table:
    """Runs of one study that are equal in all that is not compared: same recipe, conditions and machine."""

    label: str  # what tells it from the study's other tables; empty for the only one
    conditions: dict[str, Any]
    runs: tuple[Run, ...]
    problem: str  # why its cells must not be ranked all the same; empty if they may


def load(paths: Iterable[Path]) -> tuple[list[Study], list[str]]:
    """Return the studies in these directories, and a sentence for each that is none or cannot be read.

    A folder stands for the studies and runs in it; runs that belong to no study become one of their own.
    """
    found: list[Study] = []
    loose: list[Path] = []
    said: list[str] = []
    for path in paths:
        studies, here = _look(path)
        if not studies and not here:
            said.append(f"{path} holds no run, no study and no report of kmgpu")
        loose += here
        for study in studies:
            try:
                found.append(_study(study))
            except UsageError as error:
                said.append(str(error))
    if loose:
        names: dict[str, Path] = {}
        for path in loose:
            if names.setdefault(path.name, path) != path:
                said.append(f"{path} has the name of {names[path.name]}, and is left out; give its folder another name")
        known, sentences = _read(names.values())
        said += sentences
        trained = tuple(run for run in known if run.job.mode == "train")
        if known and not trained:
            said.append(f"{loose[0].parent} holds runs, and none of them trained")
        if trained:
            found.append(Study(LOOSE, loose[0].parent, {}, trained, backing.skipped("these are single runs"), None, ()))
    return found, said


def _read(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs whose records can be read and make sense, and a sentence for each other."""
    known, sentences = runs.load_all(paths)
    found = [(run, sound.problem(run)) for run in known]
    return [run for run, said in found if not said], [*sentences, *(said for _, said in found if said)]


def _look(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the directories of studies and of single runs that a path stands for."""
    if (path / "job.json").is_file():
        return [], [path]
    if (path / "study.json").is_file():
        return [path], []
    inside = sorted(child for child in path.iterdir() if child.is_dir()) if path.is_dir() else []
    studies = [child for child in inside if (child / "study.json").is_file() and not _is_parity(child)]
    singles = [child for child in inside if (child / "job.json").is_file()]
    deeper = [] if studies or singles else [grown for child in inside for grown in _look_once(child)]
    return studies + deeper, singles


def _look_once(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.glob("*/study.json") if not _is_parity(file.parent))


def _is_parity(path: Path) -> bool:
    try:
        return read_json(path / "study.json").get("kind") == "parity"
    except backing.UNREADABLE:
        return False


def _study(path: Path) -> Study:
    try:
        asked = read_json(path / "study.json")
        if asked.get("format") != FORMAT:
            raise ValueError(f"study.json has format {asked.get('format')!r}, this kmgpu reads {FORMAT}")
    except backing.UNREADABLE as error:
        raise UsageError(f"{path} cannot be read as a study: {error}") from error
    if asked.get("kind") == "parity":
        raise UsageError(f"{path} is a parity check, which has a report of its own: parity.md")
    scaling, names = asked.get("scaling", "strong"), asked.get("runs") or []
    if scaling not in ("strong", "weak") or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"{path} cannot be read as a study: scaling is {scaling!r}, runs are {names!r:.60}")
    directories = sorted(child for child in path.iterdir() if (child / "job.json").is_file())
    empty = [
        f"{name} holds no run: it was not started, or its directory is gone"
        for name in names
        if not (path / name / "job.json").is_file()
    ]
    known, sentences = _read(directories)
    known.sort(key=lambda run: (run.outcome.get("launched_time") or 0.0, run.name))
    proof, check = backing.of_study(path)
    problems = [sentence.replace(f"{path}/", "") for sentence in sentences]
    fitted = tuple(run for run in known if run.job.mode == "fit")
    trained = tuple(run for run in known if run not in fitted)
    return Study(path.name, path, asked, trained, proof, check, (*problems, *empty), fitted)


def tables(study: Study) -> list[Table]:
    """Return the tables of a study, in the order in which their first runs were made."""
    groups: dict[str, list[Run]] = {}
    conditions: dict[str, dict[str, Any]] = {}
    for run in study.runs:
        known = _conditions(run, study.scaling)
        key = json.dumps(known, sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
        conditions[key] = known
    differing = [
        name
        for name in next(iter(conditions.values()), {})
        if len({json.dumps(known[name], sort_keys=True, default=str) for known in conditions.values()}) > 1
    ]
    found = []
    for key, members in groups.items():
        label = ", ".join(_said(name, conditions[key][name]) for name in differing)
        found.append(Table(label, conditions[key], tuple(members), _problem(members, study.scaling)))
    return found


def _problem(members: Sequence[Run], scaling: str) -> str:
    """Return how the runs of a table differ in what must be equal; runs of different seeds are not compared."""
    for seed in dict.fromkeys(run.job.seed for run in members):
        try:
            comparable.check([run for run in members if run.ok and run.job.seed == seed], scaling)
        except NotComparable as error:
            return str(error)
    return ""


def _conditions(run: Run, scaling: str) -> dict[str, Any]:
    """Return what puts a run into one table or another, from its job and its machine alone: failed ones have that."""
    job = run.job
    batch = job.batch_size
    if scaling == "weak" and batch is not None:
        batch = batch // job.devices
    return {
        "recipe": job.recipe_name,
        "settings": job.settings,
        "batch": batch,
        "epochs": job.epochs,
        "max_steps": job.max_steps,
        "track": job.track,
        "precision": job.precision,
        "deterministic": job.deterministic,
        "randomness": job.randomness,
        "devices": machine(run),
    }


def _said(name: str, value: Any) -> str:
    if name in ("devices", "track", "recipe"):
        return str(value)
    if name == "settings":
        return ", ".join(f"{key}={setting}" for key, setting in value.items()) or "the recipe's settings"
    return f"{name} {'of the recipe' if value is None else value}"
