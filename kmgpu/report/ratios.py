"""Ratios of speeds with their intervals, and when a ratio is a difference.

The process is the unit, and runs of one repeat are a block: they were made beside each other, on a machine in one mood.
The logarithm of a ratio is averaged over blocks, and its interval is Student's (log-t). A bootstrap of five values
covers 84 % where it says 95 % (docs/report.md has the measurement), which is why there is none here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kmgpu.report import student

CONFIDENCE = 0.95
TIE = 0.02  # a difference that may be below this is a tie, however sure it is that there is one
FEW_BLOCKS = 5  # below this many processes for each cell, a study is a first look


@dataclass(frozen=True)
class Ratio:
    """A ratio of two positive quantities over blocks; an interval needs two blocks."""

    value: float  # geometric mean over the blocks
    low: float | None
    high: float | None
    blocks: int
    p: float | None  # how likely so much is by chance where the ratio is really within TIE of 1

    @property
    def wide(self) -> float | None:
        """How far the interval reaches from the value, as a factor less 1: 0.05 for +-5 %."""
        return None if self.high is None else self.high / self.value - 1


def of_logs(logs: Sequence[float]) -> Ratio | None:
    """Return the ratio whose logarithms these are, one for each block; None without any."""
    if not logs:
        return None
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), None, None, len(logs), None)
    error = statistics.stdev(logs, mean) / math.sqrt(len(logs))
    reach = student.quantile(CONFIDENCE, len(logs) - 1) * error
    beyond = max(0.0, abs(mean) - math.log1p(TIE))  # p <= 5 % is an interval that lies beyond TIE
    p = student.two_sided(beyond / error if error else math.inf if beyond else 0.0, len(logs) - 1)
    return Ratio(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), len(logs), p)


def paired(mine: Mapping[Any, float], other: Mapping[Any, float]) -> Ratio | None:
    """Return mine over other in the blocks that both have; None where there is none."""
    return of_logs([math.log(mine[block] / other[block]) for block in mine if block in other])


def level(values: Sequence[float]) -> Ratio | None:
    """Return the geometric mean of a cell's own values with its interval; ``p`` means nothing here."""
    return of_logs([math.log(value) for value in values])


def holm(chances: Sequence[float | None]) -> list[float | None]:
    """Return p values corrected for their number (Holm 1979): all are right at once with the same confidence."""
    known = sorted((p, place) for place, p in enumerate(chances) if p is not None)
    corrected: list[float | None] = [None] * len(chances)
    most = 0.0
    for rank, (p, place) in enumerate(known):
        most = max(most, min(1.0, (len(known) - rank) * p))
        corrected[place] = most
    return corrected


@dataclass(frozen=True)
class Judged:
    """A ratio of speeds, judged among all comparisons of a study."""

    ratio: Ratio
    p: float | None  # corrected for their number
    word: str  # "faster", "slower", "tie" or "unknown": with one block nobody knows
    why: str = ""  # of a tie, or of what is unknown


def judge(found: Sequence[Ratio]) -> list[Judged]:
    """Return for each ratio whether it is a difference: its interval, widened for them all, lies beyond TIE."""
    return [_judged(ratio, p) for ratio, p in zip(found, holm([ratio.p for ratio in found]), strict=True)]


def _judged(ratio: Ratio, p: float | None) -> Judged:
    if p is None or ratio.low is None or ratio.high is None:
        return Judged(ratio, None, "unknown", "one process for each, so nobody knows how much is chance")
    if p <= 1 - CONFIDENCE:
        return Judged(ratio, p, "faster" if ratio.value > 1 else "slower")
    if ratio.low <= 1 <= ratio.high:
        return Judged(ratio, p, "tie", "inside the interval")
    if ratio.low < 1 + TIE and ratio.high > 1 / (1 + TIE):
        small = abs(math.log(ratio.value)) < math.log1p(TIE)
        return Judged(ratio, p, "tie", f"under {TIE:.0%}" if small else f"it may be under {TIE:.0%}")
    return Judged(ratio, p, "tie", "not beyond chance among so many comparisons")


def spread(groups: Sequence[Mapping[Any, float]]) -> float | None:
    """Return the noise of a machine: how much a speed scatters from one process to the next, as a part of itself.

    ``groups`` are the speeds of each cell by block. What a whole block has in common (a slow quarter of an hour) is
    taken out, as it is out of a paired ratio. None unless some cell has two processes.
    """
    groups = [group for group in groups if group]
    logs = {(cell, block): math.log(value) for cell, group in enumerate(groups) for block, value in group.items()}
    cells, blocks = {cell for cell, _ in logs}, {block for _, block in logs}
    full = [block for block in blocks if all((cell, block) in logs for cell in cells)]
    degrees = (len(cells) - 1) * (len(full) - 1)
    if not groups:
        return None
    if degrees < 1:  # one cell, or no block that all have: nothing to take out
        freedom = sum(len(group) - 1 for group in groups)
        within = [
            (logs[cell, block] - statistics.fmean(math.log(value) for value in group.values())) ** 2
            for cell, group in enumerate(groups)
            for block in group
        ]
        return math.sqrt(sum(within) / freedom) if freedom > 0 else None
    of_cell = {cell: statistics.fmean(logs[cell, block] for block in full) for cell in cells}
    of_block = {block: statistics.fmean(logs[cell, block] for cell in cells) for block in full}
    mean = statistics.fmean(of_cell.values())
    rest = [(logs[cell, block] - of_cell[cell] - of_block[block] + mean) ** 2 for cell in cells for block in full]
    return math.sqrt(sum(rest) / degrees)


def smallest(noise: float, blocks: int) -> float | None:
    """Return the smallest difference that this many blocks see in most cases, as a part; None for one block.

    Beyond TIE it is as large as the t of the confidence and that of four in five cases together.
    """
    if blocks < 2:
        return None
    reach = student.quantile(CONFIDENCE, blocks - 1) + student.quantile(0.6, blocks - 1)
    return math.expm1(math.log1p(TIE) + reach * noise * math.sqrt(2 / blocks))
