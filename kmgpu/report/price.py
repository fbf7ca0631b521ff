"""What same math costs: the same recipe on the same devices, beside what the framework, and Keras's fit, do by itself.

The tracks compute different things, so they are compared in time alone, and only within one backend and number of
devices: no run of one track is ranked among those of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kmgpu.report import ratios, statistics
from kmgpu.report.ratios import Ratio
from kmgpu.report.runs import Run

if TYPE_CHECKING:
    from rich.console import RenderableType

@dataclass(frozen=True)
class Beside:
    """What runs of the track same-math are put beside."""

    track: str
    title: str
    takes: str  # the heading of the ratio


BESIDE = (
    Beside(
        "as-shipped",
        "What same math costs: ms per step, beside those as shipped, where each framework keeps its own habits.",
        "costs",
    ),
    Beside(
        "keras-fit",
        "Keras's own fit: ms per step in same math, beside those of model.fit with nothing of Keras replaced.",
        "kmgpu takes",
    ),
)


@dataclass(frozen=True)
class Price:
    """Median seconds of a step in same math and beside it; None where a track did not get so far, and why."""

    backend: str
    strategy: str
    devices: int
    beside: str  # the track of the other runs
    same_math_seconds: float | None
    beside_seconds: float | None
    reason: str = ""
    paired: Ratio | None = None

    @property
    def ratio(self) -> float | None:
        """How many times as long a step takes in same math, over the blocks; None if unknown."""
        return None if self.paired is None else self.paired.value

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, one for each of ``header``."""
        cost = "not known" if self.ratio is None else f"{self.ratio:.2f} times"
        low, high = (self.paired.low, self.paired.high) if self.paired else (None, None)
        interval = "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
        times = _ms(self.same_math_seconds), _ms(self.beside_seconds)
        return (self.backend, str(self.devices), *times, cost, interval)

    def to_json(self) -> dict[str, Any]:
        low, high = (self.paired.low, self.paired.high) if self.paired else (None, None)
        known = {key: value for key, value in vars(self).items() if key != "paired"}
        return {**known, "ratio": self.ratio, "ratio_low": low, "ratio_high": high}


def header(beside: Beside) -> tuple[str, ...]:
    """Return the headings of a table."""
    return ("backend", "devices", "same-math", beside.track, beside.takes, "95 %")


def prices(runs: Sequence[Run]) -> list[Price]:
    """Return a price for each backend, strategy and number of devices that ran on track same-math and on another."""
    of_track = {track: [run for run in runs if run.job.track == track] for track in ("same-math", *_tracks())}
    same_math = of_track["same-math"]
    return [price for track in _tracks() for price in _prices(track, same_math, of_track[track])]


def _tracks() -> tuple[str, ...]:
    return tuple(beside.track for beside in BESIDE)


def _prices(track: str, same_math: Sequence[Run], others: Sequence[Run]) -> list[Price]:
    rows = {(row.backend, row.strategy, row.devices): row for row in statistics.rows(others)}
    cells = statistics.cells(same_math), statistics.cells(others)
    found = []
    for row in statistics.rows(same_math):
        key = (row.backend, row.strategy, row.devices)
        if key not in rows:
            continue
        other = rows[key].step_seconds
        failed = [run for run in others if not run.ok and _key(run) == key]
        reason = "" if other is not None or not failed else (failed[0].reason or failed[0].status).splitlines()[0]
        mine, beside = (statistics.by_block(known[key], statistics.step_seconds) for known in cells)
        found.append(Price(*key, track, row.step_seconds, other, reason, ratios.paired(mine, beside)))
    return found


def _key(run: Run) -> tuple[str, str, int]:
    return run.job.backend, run.job.strategy, run.job.devices


def groups(found: Sequence[Price]) -> list[tuple[Beside, list[Price]]]:
    """Return the prices by what they are put beside."""
    grouped = [(beside, [price for price in found if price.beside == beside.track]) for beside in BESIDE]
    return [(beside, group) for beside, group in grouped if group]


def terminal(found: Sequence[Price]) -> RenderableType:
    """Return what rich prints; it fits 80 columns."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for beside, group in groups(found):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for name in header(beside):
            table.add_column(name, justify="left" if name == "backend" else "right")
        for price in group:
            table.add_row(*map(Text, price.cells))
        said = [Text(sentence, style="yellow") for sentence in _unknown(group)]
        parts += [*([Text()] if parts else []), Text(beside.title), Text(), table, *said]
    return Group(*parts)


def markdown(found: Sequence[Price]) -> str:
    """Return the prices as a part of a Markdown document."""
    parts = []
    for beside, group in groups(found):
        lines = [f"## {beside.title.partition(':')[0]}", "", beside.title, "", "| " + " | ".join(header(beside)) + " |"]
        lines += ["|---|---:|---:|---:|---:|---:|", *("| " + " | ".join(price.cells) + " |" for price in group)]
        unknown = _unknown(group)
        parts.append("\n".join(lines + (["", *(f"- {said}" for said in unknown)] if unknown else [])) + "\n")
    return "\n".join(parts)


def _unknown(found: Sequence[Price]) -> list[str]:
    return [f"{price.backend} on {price.devices}, {price.beside}: {price.reason}" for price in found if price.reason]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
