"""The numbers of a comparison: one row for each backend and number of devices.

The process is the statistical unit: steps of one process share its luck, so times are first summed up within a run
(median, 5th and 95th percentile over its windows), and then the median is taken over the repeats. Windows with a
compilation are left out; they are in the time to the first step. Runs of one repeat are a block, made beside each
other: ratios, and so speed-ups, are taken within blocks (ratios.py).
"""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kmgpu.report import ratios
from kmgpu.report.ratios import Ratio
from kmgpu.report.runs import Run

Key = tuple[str, str, int]  # backend, strategy, devices: a cell of a table
Block = tuple[int, int]  # seed, repeat


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
    samples_per_second_low: float | None  # 95 % interval over the processes; None for one of them
    samples_per_second_high: float | None
    speedup: float | None  # in samples per second, over one device of the same backend and strategy, within blocks
    speedup_low: float | None
    speedup_high: float | None
    stall: float | None  # part of the steady time in which the run waited for its data
    first_step_seconds: float | None  # from launch to the end of the first step
    peak_bytes: float | None  # sum over the processes: resident set on CPU, allocator on GPU
    final_loss: float | None
    validation_name: str | None
    validation: float | None


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the rows, in the order in which backends appear in the runs, by number of devices."""
    found = cells(runs)
    return [_row(key, cell, speedup(found, key)) for key, cell in found.items()]


def cells(runs: Sequence[Run]) -> dict[Key, list[Run]]:
    """Return the runs by cell, in the order of the rows."""
    found: dict[Key, list[Run]] = {}
    for run in runs:
        found.setdefault((run.job.backend, run.job.strategy, run.job.devices), []).append(run)
    order = list(dict.fromkeys(key[:2] for key in found))
    return {key: found[key] for key in sorted(found, key=lambda key: (order.index(key[:2]), key[2]))}


def by_block(cell: Sequence[Run], number: Callable[[Run], float | None]) -> dict[Block, float]:
    """Return a number of each run of a cell that has it and ended well, by its block.

    The repeat is at the end of a run's name, where studies write it (``-r3``), or else its place among its cell's.
    """
    found: dict[Block, float] = {}
    for place, run in enumerate(cell):
        named = re.search(r"-r(\d+)$", run.name)
        value = number(run) if run.ok else None
        if value is not None:
            found[run.job.seed, int(named[1]) if named else place] = value
    return found


def speeds(cell: Sequence[Run]) -> dict[Block, float]:
    """Return the samples per second of each run of a cell, by its block."""
    return by_block(cell, samples_per_second)


def speedup(found: dict[Key, list[Run]], key: Key) -> Ratio | None:
    """Return a cell's speed over that of one device of the same backend and strategy, if there is one."""
    alone = found.get((*key[:2], 1))
    if alone is None:
        return None
    if key[2] == 1:
        return Ratio(1.0, None, None, len(speeds(alone)), None) if speeds(alone) else None
    return ratios.paired(speeds(found[key]), speeds(alone))


def without_speedup(rows: Sequence[Row], unproved: Collection[tuple[str, int]]) -> list[Row]:
    """Return rows in which no (backend, devices) that is not proved has a speed-up, nor one that is measured by it."""
    return [
        dataclasses.replace(row, speedup=None, speedup_low=None, speedup_high=None)
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


def _row(key: Key, cell: Sequence[Run], speedup: Ratio | None) -> Row:
    good = [run for run in cell if run.ok]
    backend, strategy, devices = key
    speed = ratios.level(list(speeds(cell).values()))
    return Row(
        backend=backend,
        strategy=strategy,
        devices=devices,
        batch_size=next((run.start["batch_size"] for run in cell if "batch_size" in run.start), cell[0].job.batch_size),
        runs=len(good),
        failed=len(cell) - len(good),
        step_seconds=_over(good, step_seconds),
        step_seconds_p5=_over(good, lambda run: _spread(run, 5)),
        step_seconds_p95=_over(good, lambda run: _spread(run, 95)),
        samples_per_second=_over(good, samples_per_second),
        samples_per_second_low=speed.low if speed else None,
        samples_per_second_high=speed.high if speed else None,
        speedup=speedup.value if speedup else None,
        speedup_low=speedup.low if speedup else None,
        speedup_high=speedup.high if speedup else None,
        stall=_over(good, stall),
        first_step_seconds=_over(good, first_step_seconds),
        peak_bytes=_over(good, peak_bytes),
        final_loss=_over(good, lambda run: run.history[-1].get("loss") if run.history else None),
        validation_name=validation(good[0])[0] if good else None,
        validation=_over(good, lambda run: validation(run)[1]),
    )


def _over(runs: Sequence[Run], number: Callable[[Run], float | None]) -> float | None:
    """The median of a number over the runs that have it."""
    values = [value for value in map(number, runs) if value is not None]
    return statistics.median(values) if values else None


def _spread(run: Run, percent: float) -> float | None:
    times = _times(run).get("step_seconds")
    return percentile(times, percent) if times else None


def _times(run: Run) -> dict[str, Any]:
    return run.outcome.get("timings") or {}
