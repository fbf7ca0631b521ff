"""A run directory: the only thing between the orchestrator and its workers (docs/run-directory.md)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.errors import UsageError
from kmgpu.job import Job


@dataclass(frozen=True)
class RunDir:
    """Names of the files of one run, and how they are read and written."""

    path: Path

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    @property
    def environment_file(self) -> Path:
        return self.path / "environment.json"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def monitor_file(self) -> Path:
        return self.path / "monitor.jsonl"

    @property
    def outcome_file(self) -> Path:
        return self.path / "outcome.json"

    @property
    def model_file(self) -> Path:
        return self.path / "model.keras"

    @property
    def weights_file(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def initial_weights_file(self) -> Path:
        return self.path / "initial_weights.safetensors"

    def log_file(self, process: int) -> Path:
        return self.path / f"process-{process}.log"

    def error_file(self, process: int) -> Path:
        """Where a worker says why it stops: {"time", "kind", "message", "traceback"}."""
        return self.path / f"error-{process}.json"

    @classmethod
    def create(cls, path: Path, job: Job) -> RunDir:
        """Make the directory with its job.json; refuses one that already holds a run."""
        rundir = cls(Path(path))
        if rundir.job_file.exists():
            raise UsageError(f"{path} already holds a run; choose another --out (`kmgpu train --force` replaces it)")
        if rundir.path.exists() and not rundir.path.is_dir():
            raise UsageError(f"{path} is a file; --out names a directory")
        if rundir.path.exists() and any(rundir.path.iterdir()):
            raise UsageError(f"{path} is a directory with other files in it; choose an empty or a new one as --out")
        try:
            rundir.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot make the run directory {path}: {error.strerror}; choose another --out") from error
        write_json(rundir.job_file, job.to_json())
        return rundir

    def job(self) -> Job:
        return Job.from_json(read_json(self.job_file))

    def outcome(self) -> dict[str, Any] | None:
        return read_json(self.outcome_file) if self.outcome_file.exists() else None

    def events(self) -> list[dict[str, Any]]:
        """All whole events; a last line that was cut by a kill is left out."""
        return _read_lines(self.events_file)

    def monitored(self) -> list[dict[str, Any]]:
        """All whole records of the monitor, in order."""
        return _read_lines(self.monitor_file)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [records.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


class EventWriter:
    """Appends events, each with its wall-clock time, one JSON line per event; a file has one writer."""

    def __init__(self, path: Path):
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed by close()

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """Append an event and return it."""
        record = {"event": event, "time": time.time(), **fields}
        self._file.write(records.dumps(record) + "\n")
        return record

    def close(self) -> None:
        self._file.close()


def write_json(path: Path, record: Any) -> None:
    """Write a whole file or none: to a neighbour first, then renamed."""
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    neighbour.write_text(records.dumps(record, indent=1) + "\n", encoding="utf-8")
    neighbour.replace(path)


def read_json(path: Path) -> Any:
    return records.loads(path.read_text(encoding="utf-8"))
