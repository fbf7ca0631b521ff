"""What same math costs: the same recipe on the same devices, beside what each framework does by itself.

The two tracks compute different things, so they are compared in time alone, and only within one backend and number of
devices: no run of one track is ranked among those of the other.
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

TITLE = "What same math costs: ms per step, beside those as shipped, where each framework keeps its own habits."
HEADER = ("backend", "devices", "same-math", "as-shipped", "costs", "95 %")


@dataclass(frozen=True)
class Price:
    """Median seconds of a step on both tracks; None where a track did not get so far, and why."""

    backend: str
    strategy: str
    devices: int
    same_math_seconds: float | None
    as_shipped_seconds: float | None
    reason: str = ""
    paired: Ratio | None = None

    @property
    def ratio(self) -> float | None:
        """How many times as long a step takes on the track same-math, over the blocks; None if unknown."""
        return None if self.paired is None else self.paired.value

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, one for each of HEADER."""
        cost = "not known" if self.ratio is None else f"{self.ratio:.2f} times"
        low, high = (self.paired.low, self.paired.high) if self.paired else (None, None)
        interval = "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
        times = _ms(self.same_math_seconds), _ms(self.as_shipped_seconds)
        return (self.backend, str(self.devices), *times, cost, interval)

    def to_json(self) -> dict[str, Any]:
        low, high = (self.paired.low, self.paired.high) if self.paired else (None, None)
        known = {key: value for key, value in vars(self).items() if key != "paired"}
        return {**known, "ratio": self.ratio, "ratio_low": low, "ratio_high": high}


def prices(same_math: Sequence[Run], as_shipped: Sequence[Run]) -> list[Price]:
    """Return one price for each backend, strategy and number of devices, in the order of the rows of a table."""
    shipped = {(row.backend, row.strategy, row.devices): row for row in statistics.rows(as_shipped)}
    cells = statistics.cells(same_math), statistics.cells(as_shipped)
    found = []
    for row in statistics.rows(same_math):
        key = (row.backend, row.strategy, row.devices)
        other = shipped[key].step_seconds
        failed = [run for run in as_shipped if not run.ok and _key(run) == key]
        reason = "" if other is not None or not failed else (failed[0].reason or failed[0].status).splitlines()[0]
        mine, beside = (statistics.by_block(known[key], statistics.step_seconds) for known in cells)
        found.append(Price(*key, row.step_seconds, other, reason, ratios.paired(mine, beside)))
    return found


def _key(run: Run) -> tuple[str, str, int]:
    return run.job.backend, run.job.strategy, run.job.devices


def terminal(found: Sequence[Price]) -> RenderableType:
    """Return what rich prints; it fits 80 columns."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in HEADER:
        table.add_column(name, justify="left" if name == "backend" else "right")
    for price in found:
        table.add_row(*map(Text, price.cells))
    return Group(Text(TITLE), Text(), table, *(Text(said, style="yellow") for said in _unknown(found)))


def markdown(found: Sequence[Price]) -> str:
    """Return the prices as a part of a Markdown document."""
    lines = [f"## {TITLE.partition(':')[0]}", "", TITLE, "", "| " + " | ".join(HEADER) + " |"]
    lines += ["|---|---:|---:|---:|---:|---:|", *("| " + " | ".join(price.cells) + " |" for price in found)]
    unknown = _unknown(found)
    return "\n".join(lines + (["", *(f"- {said}" for said in unknown)] if unknown else [])) + "\n"


def _unknown(found: Sequence[Price]) -> list[str]:
    return [f"{price.backend} on {price.devices} as shipped: {price.reason}" for price in found if price.reason]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.2f}"
