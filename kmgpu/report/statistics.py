"""The numbers of a comparison: one row for each backend and number of devices.

The process is the statistical unit: steps of one process share its luck, so times are first summed up within a run
(median, 5th and 95th percentile over its windows), and then the median is taken over the repeats. Windows with a
compilation are left out; they are in the time to the first step.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kmgpu.report.runs import Run


@dataclass(frozen=True)
class Row:
    """One backend and strategy on one number of devices; None is what no run of the row could say."""

    backend: str
    strategy: str
    devices: int
    batch_size: int | None
    runs: int  # that ended well; the numbers are over these
    failed: int
    step_seconds: float | None
    step_seconds_p5: float | None
    step_seconds_p95: float | None
    samples_per_second: float | None
    speedup: float | None  # in samples per second, over one device of the same backend and strategy
    first_step_seconds: float | None  # from launch to the end of the first step
    peak_bytes: float | None  # sum over the processes: resident set on CPU, allocator on GPU
    final_loss: float | None
    validation_name: str | None
    validation: float | None


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows, in the order in which backends appear in the runs, by number of devices."""
    cells: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.job.backend, run.job.strategy, run.job.devices), []).append(run)
    order = list(dict.fromkeys(key[:2] for key in cells))
    found = [_row(cells[key]) for key in sorted(cells, key=lambda key: (order.index(key[:2]), key[2]))]
    alone = {(row.backend, row.strategy): row.samples_per_second for row in found if row.devices == 1}
    return [_with_speedup(row, alone.get((row.backend, row.strategy))) for row in found]


def without_speedup(rows: Sequence[Row], unproved: Collection[tuple[str, int]]) -> list[Row]:
    """Return rows in which no (backend, devices) that is not proved has a speed-up, nor one that is measured by it."""
    return [
        dataclasses.replace(row, speedup=None)
        if (row.backend, row.devices) in unproved or (row.backend, 1) in unproved
        else row
        for row in rows
    ]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, linear between neighbours (NumPy's default, without NumPy)."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def step_seconds(run: Run) -> float | None:
    """Return the median seconds of a steady step, or None where every window held a compilation."""
    times = _times(run).get("step_seconds")
    return statistics.median(times) if times else None


def samples_per_second(run: Run) -> float | None:
    """Return the mean samples of a steady step over the median seconds of one."""
    seconds, steps = step_seconds(run), _times(run).get("steady_steps")
    return _times(run)["steady_samples"] / steps / seconds if seconds and steps else None


def stall(run: Run) -> float | None:
    """Return the part of the steady time that process 0 waited for data."""
    times = _times(run)
    seconds = times.get("steady_seconds")
    return times.get("waiting_seconds", 0.0) / seconds if seconds else None


def first_step_seconds(run: Run) -> float | None:
    """Return the seconds from launch to the end of the first step: imports, data, compilation."""
    launched, first = run.outcome.get("launched_time"), _times(run).get("first_step_time")
    return first - launched if launched is not None and first is not None else None


def peak_bytes(run: Run) -> float | None:
    """Return the sum of the processes' peaks; None unless every process told its own."""
    peaks = run.outcome.get("peak_bytes")
    return sum(peaks) if peaks and None not in peaks else None


def validation(run: Run) -> tuple[str | None, float | None]:
    """Return name and last value of the validation metric: an accuracy if there is one, else the loss."""
    last = run.history[-1] if run.history else {}
    names = [name for name in last if name.startswith("val_")]
    best = next((name for name in names if "acc" in name), "val_loss" if "val_loss" in names else None)
    return (best, last[best]) if best else (None, None)


def _row(cell: Sequence[Run]) -> Row:
    good = [run for run in cell if run.ok]
    job = cell[0].job
    return Row(
        backend=job.backend,
        strategy=job.strategy,
        devices=job.devices,
        batch_size=next((run.start["batch_size"] for run in cell if "batch_size" in run.start), job.batch_size),
        runs=len(good),
        failed=len(cell) - len(good),
        step_seconds=_over(good, step_seconds),
        step_seconds_p5=_over(good, lambda run: _spread(run, 5)),
        step_seconds_p95=_over(good, lambda run: _spread(run, 95)),
        samples_per_second=_over(good, samples_per_second),
        speedup=None,
        first_step_seconds=_over(good, first_step_seconds),
        peak_bytes=_over(good, peak_bytes),
        final_loss=_over(good, lambda run: run.history[-1].get("loss") if run.history else None),
        validation_name=validation(good[0])[0] if good else None,
        validation=_over(good, lambda run: validation(run)[1]),
    )


def _with_speedup(row: Row, alone: float | None) -> Row:
    if row.samples_per_second is None or not alone:
        return row
    return dataclasses.replace(row, speedup=row.samples_per_second / alone)


def _over(runs: Sequence[Run], number: Callable[[Run], float | None]) -> float | None:
    """The median of a number over the runs that have it."""
    values = [value for value in map(number, runs) if value is not None]
    return statistics.median(values) if values else None


def _spread(run: Run, percent: float) -> float | None:
    times = _times(run).get("step_seconds")
    return percentile(times, percent) if times else None


def _times(run: Run) -> dict[str, Any]:
    return run.outcome.get("timings") or {}
