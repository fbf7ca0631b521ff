"""What makes a number doubtful: slow windows, throttled devices, runs that drift, processes that stand apart.

What is flagged is shown and counted like the rest; nothing is ever taken out.
"""

from __future__ import annotations

import math
import statistics as means
from collections.abc import Mapping, Sequence
from typing import Any

from kmgpu.report.runs import Run
from kmgpu.report.statistics import Block, percentile
from kmgpu.report.trace import Trace

FENCES = 3  # times the distance of the quartiles above the upper one: Tukey's outer fence
FAR = 0.2  # and at least so much above the median
DRIFT = 0.05  # between the medians of the first and the last third of a run
APART = 3.5  # scaled median deviations (Iglewicz and Hoaglin 1993)
APART_LEAST = 0.05
GROWTH = 0.1  # of memory, from the first steady step to the last
WAITING = 0.05  # part of the time from which waiting for data is told
INPUT_BOUND = 0.2  # and from which a run measures its reading
SLOWING = {
    "power cap", "software thermal slowdown", "hardware thermal slowdown", "hardware slowdown", "power brake",
}  # fmt: skip


def slow_windows(trace: Trace) -> list[int]:
    """Return the places of the steady windows whose steps took far longer than the others'."""
    times = trace.step_seconds
    if len(times) < 4:
        return []
    median, low, high = means.median(times), percentile(times, 25), percentile(times, 75)
    fence = max(high + FENCES * (high - low), median * (1 + FAR))
    return [place for place, seconds in enumerate(times) if seconds > fence]


def slow_share(trace: Trace) -> float | None:
    """Return the part of the steady time that was lost in slow windows; None where there is no steady window."""
    times, windows = trace.step_seconds, trace.steady
    if not times:
        return None
    median = means.median(times)
    lost = sum(windows[place]["seconds"] - median * windows[place]["steps"] for place in slow_windows(trace))
    return lost / sum(window["seconds"] for window in windows)


def throttled(trace: Trace) -> tuple[int, list[str]] | None:
    """Return how many steady windows saw a device slowed down, and why; None where no device told its clocks."""
    told = [
        (record["time"], set(device["throttle_reasons"]))
        for record in trace.monitored
        for device in record["devices"]
        if device.get("throttle_reasons") is not None
    ]
    if not told:
        return None
    reasons: dict[str, None] = {}
    count = 0
    for window in trace.steady:
        began = window["time"] - window["seconds"]
        seen = set().union(*(why for when, why in told if began <= when <= window["time"] + 1)) & SLOWING
        count += bool(seen)
        reasons |= dict.fromkeys(sorted(seen))
    return count, list(reasons)


def drift(trace: Trace) -> float | None:
    """Return by how much the last third of a run's steps took longer than the first, as a part; None if too short."""
    times = trace.step_seconds
    third = len(times) // 3
    if third < 3:
        return None
    return means.median(times[-third:]) / means.median(times[:third]) - 1


def memory_growth(trace: Trace) -> float | None:
    """Return by how much resident memory grew from the first steady window to the end, as a part; None if unknown."""
    if not trace.steady:
        return None
    began, ended = trace.steady[0]["time"], trace.windows[-1]["time"]
    seen = [memory for when, memory in memory_over_time(trace) if began <= when <= ended and memory]
    return seen[-1] / seen[0] - 1 if len(seen) >= 3 else None


def memory_over_time(trace: Trace) -> list[tuple[float, int]]:
    """Return (time, resident bytes of all processes) as the monitor saw it."""
    return [(record["time"], sum(each["rss_bytes"] for each in record["processes"])) for record in trace.monitored]


def apart(speeds: Mapping[Block, float]) -> list[Block]:
    """Return the blocks whose process stands far apart from the other processes of its cell."""
    logs = {block: math.log(speed) for block, speed in speeds.items()}
    if len(logs) < 4:
        return []
    middle = means.median(logs.values())
    deviation = 1.4826 * means.median(abs(value - middle) for value in logs.values())
    return [
        block for block, value in logs.items() if abs(value - middle) > max(APART * deviation, math.log1p(APART_LEAST))
    ]


def overlapping(runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return the runs that began before the one before them was over, each with that one."""
    timed: list[tuple[Any, Run]] = [(run.outcome["launched_time"], run) for run in runs if _timed(run)]
    timed.sort(key=lambda pair: pair[0])
    ordered = [run for _, run in timed]
    return [
        (mine, after)
        for mine, after in zip(ordered, ordered[1:], strict=False)
        if after.outcome["launched_time"] < mine.outcome["ended"]
    ]


def _timed(run: Run) -> bool:
    return run.outcome.get("launched_time") is not None and run.outcome.get("ended") is not None


def unsteady(trace: Trace) -> float | None:
    """Return the drift of a run that is more than DRIFT and more than its windows scatter; None for a steady one."""
    change, times = drift(trace), trace.step_seconds
    if change is None:
        return None
    third = len(times) // 3
    spread = (percentile(times, 84) - percentile(times, 16)) / 2 / means.median(times)
    scatter = 1.2533 * spread * math.sqrt(2 / third)  # standard error of a difference of two medians
    return change if abs(change) > max(DRIFT, 3 * scatter) else None


def remarks(run: Run, trace: Trace) -> list[str]:
    """Return what is doubtful about one run, a sentence each without its name."""
    said = []
    slow, share = slow_windows(trace), slow_share(trace)
    if slow and share is not None and share > 0.02:
        said.append(f"{len(slow)} of {len(trace.steady)} windows were far slower than the rest ({share:.0%} of time)")
    clocks = throttled(trace)
    if clocks is not None and clocks[0]:
        said.append(f"{clocks[0]} of {len(trace.steady)} windows saw a throttled device ({', '.join(clocks[1])})")
    change = unsteady(trace)
    if change is not None:
        word = "slower" if change > 0 else "faster"
        said.append(f"its steps became {abs(change):.0%} {word} from the first third to the last: it was not steady")
    grown = memory_growth(trace)
    if grown is not None and grown > GROWTH:
        said.append(f"its memory grew by {grown:.0%} while it trained")
    return said
