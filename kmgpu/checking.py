"""Look at a recipe before a run: build it on each backend, take two steps, and say what there is to know."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kmgpu import backends as table
from kmgpu import study, training
from kmgpu.errors import Interrupted, KmgpuError
from kmgpu.report.check import Cell, CheckResult
from kmgpu.rundir import RunDir


def check(
    recipe: str | os.PathLike[str],
    *,
    backends: Sequence[str] = table.BACKENDS,
    devices: int = 2,
    settings: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    precision: str = "float32",
    python: Mapping[str, str] | None = None,
    device_kind: str = "auto",
    show: Callable[[str], None] = lambda line: None,
) -> CheckResult:
    """Return what a recipe is made of, and what two of its steps gave on 1 and on ``devices`` of each backend.

    What does not run is part of the result. Nothing is kept on disk. Raises UsageError or MissingEnvironment before
    anything starts.
    """
    counts = sorted({1, devices})
    study.check_grid(backends, counts)
    jobs = [
        training.make_job(
            recipe, backend=backend, devices=count, device_kind=device_kind, batch_size=batch_size, settings=settings,
            precision=precision, python=python, mode="check",
        )
        for backend in backends
        for count in counts
    ]  # fmt: skip
    folder = Path(tempfile.mkdtemp(prefix="kmgpu-check-"))
    try:
        rundirs: list[RunDir] = []
        for backend in backends:
            show(f"{backend} on {' and '.join(map(str, counts))} device{'s' if counts != [1] else ''}")
            drawn = [rundir.initial_weights_file for rundir in rundirs if rundir.initial_weights_file.exists()]
            initial = str(drawn[0]) if drawn else None  # the first backend draws them for all
            own = [dataclasses.replace(job, initial_weights=initial) for job in jobs if job.backend == backend]
            started = [RunDir.create(folder / f"{job.backend}-{job.devices}", job) for job in own]
            _run(started)
            rundirs += started
        cells = [_cell(rundir) for rundir in rundirs]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return CheckResult(jobs[0].recipe_name, jobs[0].settings, jobs[0].device_kind, cells)


def _run(rundirs: Sequence[RunDir]) -> None:
    """Run the cells of a backend together; where one fails, those after it run by themselves."""
    try:
        training.run(rundirs)
    except Interrupted:
        raise
    except KmgpuError:
        done = [rundir for rundir in rundirs if (rundir.outcome() or {}).get("status") == "ok"]
        rest = rundirs[len(done) + 1 :]
        if rest:
            job = rest[0].job()
            shutil.rmtree(rest[0].path)
            _run([RunDir.create(rest[0].path, job), *rest[1:]])


def _cell(rundir: RunDir) -> Cell:
    job, outcome = rundir.job(), rundir.outcome() or {}
    file = rundir.path / "check.json"
    found = json.loads(file.read_text(encoding="utf-8")) if outcome.get("status") == "ok" else None
    return Cell(job.backend, job.devices, found, outcome.get("reason"))
