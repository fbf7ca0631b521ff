"""Where the time of a run went, from its launch to its end, and that of a step, as far as the records tell."""

from __future__ import annotations

import statistics as means
from collections.abc import Sequence
from dataclasses import dataclass

from kmgpu.report.runs import Run
from kmgpu.report.trace import Trace

PARTS = (
    "starting (imports, data, model)", "compiling (first steps of a size)", "steps: computing and exchanging",
    "steps: waiting for data", "evaluation", "callbacks and checkpoints", "the rest",
)  # fmt: skip
NOTE = "Computing and exchanging between devices are not told apart: no twin without synchronisation was run."


@dataclass(frozen=True)
class Breakdown:
    """Seconds of each of PARTS, as medians over the runs of a cell; and milliseconds of a step."""

    backend: str
    devices: int
    seconds: tuple[float, ...]  # one for each of PARTS
    step_computing: float  # seconds of a steady step without those of waiting
    step_waiting: float


def of_cell(runs: Sequence[Run], traces: Sequence[Trace]) -> Breakdown | None:
    """Return where the time of a cell's runs went; None where no run tells."""
    told = [
        (_seconds(run, trace), _step(trace)) for run, trace in zip(runs, traces, strict=True) if run.ok and trace.steady
    ]
    known = [(seconds, step) for seconds, step in told if seconds is not None]
    if not known:
        return None
    seconds = tuple(round(means.median(each[part] for each, _ in known), 4) for part in range(len(PARTS)))
    computing, waiting = (means.median(step[part] for _, step in known) for part in (0, 1))
    return Breakdown(runs[0].job.backend, runs[0].job.devices, seconds, computing, waiting)


def _seconds(run: Run, trace: Trace) -> list[float] | None:
    launched, ended = run.outcome.get("launched_time"), run.outcome.get("ended")
    if launched is None or ended is None or trace.start is None:
        return None
    waiting = sum(window.get("waiting_seconds", 0.0) for window in trace.steady)
    parts = [
        trace.start - launched,
        sum(window["seconds"] for window in trace.windows if window["compiling"]),
        sum(window["seconds"] for window in trace.steady) - waiting,
        waiting,
        sum(epoch.get("evaluation_seconds", 0.0) for epoch in trace.epochs),
        sum(epoch.get("callback_seconds", 0.0) for epoch in trace.epochs)
        + sum(written.get("waited_seconds", 0.0) for written in trace.checkpoints),
    ]
    return [*parts, max(0.0, ended - launched - sum(parts))]


def _step(trace: Trace) -> tuple[float, float]:
    steps = sum(window["steps"] for window in trace.steady)
    waiting = sum(window.get("waiting_seconds", 0.0) for window in trace.steady) / steps
    return max(0.0, means.median(trace.step_seconds) - waiting), waiting
