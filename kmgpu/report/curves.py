"""Curves of a run for figures: losses and metrics over steps and time, memory and use of devices over time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kmgpu.report import flags
from kmgpu.report.runs import Run
from kmgpu.report.statistics import validation
from kmgpu.report.trace import Trace

POINTS = 120  # of a curve at most; more are averaged


@dataclass(frozen=True)
class Curve:
    """One line of a figure: of the first run of a cell that ended well."""

    quantity: str  # "loss", "metric", "memory" or "utilization"
    name: str  # of the metric, or what is used
    backend: str
    devices: int
    steps: tuple[int, ...]  # empty for what is seen over time only
    seconds: tuple[float, ...]  # since training began, or since the launch for what the monitor sees
    values: tuple[float, ...]


def of_run(run: Run, trace: Trace) -> list[Curve]:
    """Return all curves of a run that have points."""
    return [curve for curve in (_loss(run, trace), _metric(run, trace), *_monitored(run, trace)) if curve.values]


def _loss(run: Run, trace: Trace) -> Curve:
    points = [
        (window["step"] + offset + 1, window["time"] - window["seconds"] * (1 - (offset + 1) / window["steps"]), loss)
        for window in trace.windows
        for offset, loss in enumerate(window["losses"])
    ]
    began = trace.start or (points[0][1] if points else 0.0)
    thin = _thin([(step, when - began, loss) for step, when, loss in points if math.isfinite(loss)])
    return _curve("loss", "training loss", run, [(round(step), when, loss) for step, when, loss in thin])


def _metric(run: Run, trace: Trace) -> Curve:
    name = validation(run)[0]
    ends = {window["epoch"]: window["step"] + window["steps"] for window in trace.windows}
    began = trace.start or 0.0
    points = [
        (ends.get(epoch["epoch"], 0), epoch["time"] - began, epoch["metrics"][name])
        for epoch in trace.epochs
        if name is not None and math.isfinite(epoch["metrics"].get(name, math.nan))
    ]
    return _curve("metric", name or "", run, points)


def _monitored(run: Run, trace: Trace) -> Iterable[Curve]:
    began = run.outcome.get("launched_time") or (trace.monitored[0]["time"] if trace.monitored else 0.0)
    memory = [(0, when - began, seen / 2**20) for when, seen in flags.memory_over_time(trace)]
    cores = [(0, record["time"] - began, _sum(record["processes"], "cpu_percent") / 100) for record in trace.monitored]
    device = [
        (0, record["time"] - began, used)
        for record in trace.monitored
        for used in [_mean([each.get("utilization_percent") for each in record["devices"]])]
        if used is not None
    ]
    yield _curve("memory", "resident MiB of all processes", run, _thin(memory))
    yield _curve("utilization", "cores in use", run, _thin(cores))
    yield _curve("utilization", "GPU utilisation, percent", run, _thin(device))


def _curve(quantity: str, name: str, run: Run, points: Sequence[tuple[int, float, float]]) -> Curve:
    timed = quantity in ("memory", "utilization")
    return Curve(
        quantity, name, run.job.backend, run.job.devices, () if timed else tuple(step for step, _, _ in points),
        tuple(round(when, 3) for _, when, _ in points), tuple(float(f"{value:.6g}") for _, _, value in points),
    )  # fmt: skip


def _thin(points: Sequence[tuple[float, float, float]]) -> list[tuple[int, float, float]]:
    """Return at most POINTS points: means of as many neighbours as it takes, and their last place."""
    each = -(-len(points) // POINTS) or 1
    groups = [points[place : place + each] for place in range(0, len(points), each)]
    return [(int(group[-1][0]), group[-1][1], sum(value for *_, value in group) / len(group)) for group in groups]


def _sum(records: Sequence[dict], name: str) -> float:
    return sum(record[name] for record in records)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
