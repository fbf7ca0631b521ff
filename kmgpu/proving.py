"""Parity: several backends and numbers of devices take the same steps, and each is compared with one reference cell.

A directory holds ``study.json`` (what was asked), one run directory for each cell, and ``parity.json`` and
``parity.md`` (what came out).
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import backends as table
from kmgpu import study, training
from kmgpu.errors import Interrupted, KmgpuError, RunFailed, UsageError, nearest
from kmgpu.job import Job
from kmgpu.report import matrix
from kmgpu.report import parity as report
from kmgpu.report.parity import ParityResult
from kmgpu.report.verdicts import TOLERANCE
from kmgpu.rundir import RunDir, write_json

TRUTHS = "parity"  # folder in the reference's run directory: its state and results, step by step


@dataclass(frozen=True)
class Check:
    """A parity check whose directory is made: its cells, and which of them is the reference."""

    path: Path
    home: Path  # the reference's run directory
    rundirs: tuple[RunDir, ...]


def parity(
    recipe: str | os.PathLike[str],
    *,
    backends: Sequence[str] = table.BACKENDS,
    devices: Sequence[int] = (1, 2, 4),
    steps: int = 20,
    dtype: str = "float32",
    settings: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    python: Mapping[str, str] | None = None,
    device_kind: str = "auto",
    keep_random: bool = False,
    track: str = "same-math",
    randomness: str = "native",
    loss_gather: str = "auto",
    out: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> ParityResult:
    """Compare every backend on every number of devices with the first backend on one device; return the verdicts.

    ``batch_size`` is global. Cells of one backend share their processes. A cell that does not run is kept and shown;
    if the reference does not run there is nothing to compare, and its error is raised. Raises UsageError or
    MissingEnvironment before anything starts.
    """
    check = prepare(
        recipe, backends=backends, devices=devices, steps=steps, dtype=dtype, settings=settings,
        batch_size=batch_size, seed=seed, python=python, device_kind=device_kind, keep_random=keep_random, track=track,
        randomness=randomness, loss_gather=loss_gather, out=out, show=show,
    )  # fmt: skip
    launch([check], backends, show)
    return conclude(check.path)


def prepare(
    recipe: str | os.PathLike[str],
    *,
    backends: Sequence[str],
    devices: Sequence[int],
    steps: int,
    dtype: str,
    settings: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    python: Mapping[str, str] | None = None,
    device_kind: str = "auto",
    keep_random: bool = False,
    track: str = "same-math",
    randomness: str = "native",
    loss_gather: str = "auto",
    out: str | os.PathLike[str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> Check:
    """Make the directory of a check, as ``parity`` is asked for one."""
    study.check_grid(backends, devices)
    study.check_count("--steps", steps)
    if steps is None or dtype not in TOLERANCE:
        known = list(TOLERANCE)
        raise UsageError(f"--dtype is {dtype!r}{nearest(str(dtype), known)}; it is {' or '.join(known)}")
    reference, *others = cells = grid(backends, devices)
    if not others:
        raise UsageError(
            f"there is nothing to compare {reference[0]} on 1 device with; name more --backends or --devices"
        )
    options = {"steps": steps, "dtype": dtype, "reference": None, "keep_random": keep_random}
    jobs = [
        training.make_job(
            recipe, backend=backend, devices=count, device_kind=device_kind, batch_size=batch_size, seed=seed,
            settings=settings, python=python, track=track, randomness=randomness, loss_gather=loss_gather,
            mode="parity", precision=dtype, options=options,
        )
        for backend, count in cells
    ]  # fmt: skip
    names = [_name(job) for job in jobs]
    asked = {
        "kind": "parity", "recipe": jobs[0].recipe, "recipe_name": jobs[0].recipe_name, "backends": list(backends),
        "devices": list(devices), "settings": jobs[0].settings, "batch_size": batch_size, "seed": seed,
        "device_kind": jobs[0].device_kind, "track": track, "randomness": randomness,
        "loss_gather": loss_gather, **options,
        "python": {job.backend: job.python for job in jobs},
        "reference": names[0],
        "cells": [
            {"name": name, "backend": job.backend, "strategy": job.strategy, "devices": job.devices}
            for name, job in zip(names[1:], jobs[1:], strict=True)
        ],
    }  # fmt: skip
    path = study.create(Path(out) if out is not None else study.default_path("parity", jobs[0].recipe_name), asked)
    show(
        f"{jobs[0].recipe_name}: {len(others)} cells against {reference[0]} on 1 device, {steps} steps in {dtype}, "
        f"into {path}"
    )
    if 1 not in devices:
        show(f"{reference[0]} on 1 device is the reference, so it runs too; --devices does not name it")
    home = path / names[0]
    rundirs = [
        RunDir.create(path / name, _reference(job, devices) if name == names[0] else _against(home, job))
        for name, job in zip(names, jobs, strict=True)
    ]
    return Check(path, home, tuple(rundirs))


def launch(checks: Sequence[Check], backends: Sequence[str], show: Callable[[str], None] = lambda line: None) -> None:
    """Run the cells of checks, those of one backend together."""
    homes = {check.home for check in checks}
    rundirs = [rundir for check in checks for rundir in check.rundirs]
    try:
        for backend in backends:
            _launch([rundir for rundir in rundirs if rundir.job().backend == backend], homes, show)
    finally:
        for home in homes:
            shutil.rmtree(home / TRUTHS, ignore_errors=True)  # some copies of the model for every step


def grid(backends: Sequence[str], devices: Sequence[int]) -> list[tuple[str, int]]:
    """Return (backend, devices) of every cell, the reference first: the first backend on one device, asked for or not.

    Cells of one backend are together and in rising order, as they share their processes.
    """
    cells = [(backend, count) for backend in backends for count in sorted(devices)]
    reference = (backends[0], 1)
    return [reference, *(cell for cell in cells if cell != reference)]


def conclude(path: Path) -> ParityResult:
    """Judge the cells of a directory, and write parity.json and parity.md."""
    result = report.read(path)
    write_json(path / "parity.json", matrix.to_json(result))
    (path / "parity.md").write_text(result.markdown(), encoding="utf-8")
    return result


def _name(job: Job) -> str:
    return f"{job.backend}-{job.strategy}-{job.devices}"


def _reference(job: Job, devices: Sequence[int]) -> Job:
    """Return the job of the reference, which computes for each number of devices what a recipe makes depend on it."""
    return dataclasses.replace(job, options={**job.options, "as_devices": sorted({1, *devices})})


def _against(home: Path, job: Job) -> Job:
    """Return a job that starts from the reference's weights, which are written by the time it runs."""
    weights = RunDir(home.absolute()).initial_weights_file
    options = {**job.options, "reference": str(home.absolute())}
    return dataclasses.replace(job, initial_weights=str(weights), options=options)


def _launch(waiting: Sequence[RunDir], homes: set[Path], show: Callable[[str], None]) -> None:
    """Run the cells of one backend in as few launches as it takes: one that fails ends its launch for all behind it."""
    while waiting:
        started = time.monotonic()
        counts = list(dict.fromkeys(rundir.job().devices for rundir in waiting))
        job = waiting[0].job()
        show(f"{job.backend} {job.strategy} on {_devices(counts)}")
        error = _run(waiting, show)
        failed = next((number for number, rundir in enumerate(waiting) if not _ended_well(rundir)), None)
        if failed is None:
            show(f"    done after {time.monotonic() - started:.1f} s")
            return
        guilty = waiting[failed]
        if guilty.path in homes:
            raise error or RunFailed(f"the reference did not run; see {guilty.path}")
        show(f"    {guilty.path.name} failed: {_reason(guilty)}")
        if not guilty.events_file.exists():  # its process did not come to the first cell: nor will another
            return
        waiting = [_again(rundir) for rundir in waiting[failed + 1 :] if not _ended_well(rundir)]


def _run(rundirs: Sequence[RunDir], show: Callable[[str], None]) -> KmgpuError | None:
    try:
        training.run(rundirs, show=lambda line: show(f"    {line}"))
    except Interrupted:
        raise
    except KmgpuError as error:
        return error
    return None


def _ended_well(rundir: RunDir) -> bool:
    return (rundir.outcome() or {}).get("status") == "ok"


def _reason(rundir: RunDir) -> str:
    return ((rundir.outcome() or {}).get("reason") or "nobody knows why").splitlines()[0]


def _again(rundir: RunDir) -> RunDir:
    """Return the directory of a cell that did not get its turn, as it was before."""
    job = rundir.job()
    shutil.rmtree(rundir.path)
    return RunDir.create(rundir.path, job)


def _devices(counts: Sequence[int]) -> str:
    *most, last = map(str, counts)
    return f"{', '.join(most)} and {last} devices" if most else f"{last} device{'s' if last != '1' else ''}"

