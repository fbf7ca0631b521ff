"""Runs as reports read them: the job, the outcome and the environment of a run directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.errors import UsageError
from kmgpu.job import Job
from kmgpu.rundir import RunDir, read_json

UNFINISHED = "unfinished"  # the status of a run without outcome.json: it is still running, or all of it was killed


@dataclass(frozen=True)
class Run:
    """One run directory, read. ``outcome`` of an unfinished run is what its events say so far."""

    path: Path
    job: Job
    outcome: dict[str, Any]
    environment: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def status(self) -> str:
        return self.outcome["status"]

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def reason(self) -> str:
        return self.outcome.get("reason") or ""

    @property
    def start(self) -> dict[str, Any]:
        """The facts of the start event; empty where the run stopped before it."""
        return self.outcome.get("start") or {}

    @property
    def history(self) -> list[dict[str, float]]:
        return self.outcome.get("history") or []

    @property
    def hashes(self) -> dict[str, Any]:
        return self.outcome.get("hashes") or {}


def load(path: Path) -> Run:
    """Read one run directory; raises UsageError with one sentence where it cannot be read."""
    rundir = RunDir(Path(path))
    if not rundir.job_file.is_file():
        raise UsageError(f"{path} is not a run directory: it has no job.json")
    try:
        job = rundir.job()
        outcome = rundir.outcome() or {"status": UNFINISHED, **records.fold(rundir.events())}
        environment = read_json(rundir.environment_file) if rundir.environment_file.exists() else {}
        outcome["status"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # cut, edited, or of another version
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} cannot be read as a run: {said}") from error
    return Run(rundir.path, job, outcome, environment)


def load_all(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs that can be read, and one sentence for each that cannot."""
    runs, sentences = [], []
    for path in paths:
        try:
            runs.append(load(path))
        except UsageError as error:
            sentences.append(str(error))
    return runs, sentences


def find(roots: Iterable[Path]) -> list[Path]:
    """Return the run directories under some folders, also those that a study or a part of one holds, by name."""
    patterns = ("*/job.json", "*/*/job.json")
    found = [job for root in roots for pattern in patterns for job in Path(root).glob(pattern)]
    parts = (study.parent for root in roots for study in Path(root).glob("*/*/study.json"))
    return sorted(job.parent for job in [*found, *(job for part in parts for job in part.glob("*/job.json"))])


def named(known: Sequence[Run], names: Iterable[str]) -> list[Run]:
    """Return the runs with these paths or names; a study's path stands for all its runs. Raises UsageError."""
    chosen: list[Run] = []
    for name in names:
        word, path = name.rstrip("/").removeprefix("./"), Path(name).resolve()
        found = [run for run in known if path in (run.path.resolve(), run.path.resolve().parent)]
        if not found and (path / "job.json").exists():  # made with --out, elsewhere
            found = [load(Path(name))]
        found = found or [run for run in known if run.name == word]
        if not found:
            raise UsageError(f"no run {name!r} in ./runs, ./studies and ./parity; `kmgpu runs` lists them")
        if found[0].name == word and len(found) > 1:  # each study has its torch-ddp-1-r0
            raise UsageError(f"{len(found)} runs are named {name!r}; give the path of one, as `kmgpu runs` lists it")
        chosen += [run for run in found if run not in chosen]
    return chosen
