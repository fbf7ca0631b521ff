"""Which framework is faster: every pair of one table on the same number of devices, judged, and in plain words."""

from __future__ import annotations

import statistics as means
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kmgpu.errors import counted
from kmgpu.report import ratios, statistics
from kmgpu.report.ratios import Judged, Ratio
from kmgpu.report.runs import Run
from kmgpu.report.statistics import Key

USELESS = 10  # from one end of an interval to the other, as a factor: its numbers would only distract


@dataclass(frozen=True)
class Comparison:
    """Two backends on the same number of devices; ``judged.ratio`` is how many times as fast mine is as the other."""

    mine: Key
    other: Key
    judged: Judged

    @property
    def devices(self) -> int:
        return self.mine[2]


def compare(tables: Sequence[Sequence[Run]], unproved: Collection[tuple[str, int]] = ()) -> list[list[Comparison]]:
    """Return all comparisons of each table, the faster cell first, corrected for the number of all of them.

    Cells that parity does not back are in none.
    """
    pairs = [(number, *pair) for number, runs in enumerate(tables) for pair in _pairs(runs, unproved)]
    judged = ratios.judge([ratio for _, _, _, ratio in pairs])
    found: list[list[Comparison]] = [[] for _ in tables]
    for (number, mine, other, _), verdict in zip(pairs, judged, strict=True):
        found[number].append(Comparison(mine, other, verdict))
    return found


def _pairs(runs: Sequence[Run], unproved: Collection[tuple[str, int]]) -> list[tuple[Key, Key, ratios.Ratio]]:
    speeds = {key: statistics.speeds(cell) for key, cell in statistics.cells(runs).items()}
    known = [key for key, speed in speeds.items() if speed and (key[0], key[2]) not in unproved]
    known.sort(key=lambda key: (key[2], -means.median(speeds[key].values())))
    found = []
    for place, mine in enumerate(known):
        for other in known[place + 1 :]:
            ratio = ratios.paired(speeds[mine], speeds[other]) if other[2] == mine[2] else None
            if ratio is not None:
                found.append((mine, other, ratio))
    return found


def sentences(found: Sequence[Comparison]) -> list[str]:
    """Return one sentence for each number of devices: who is fastest, and how sure that is."""
    said = []
    for devices in dict.fromkeys(comparison.devices for comparison in found):
        here = [comparison for comparison in found if comparison.devices == devices]
        said.append(_sentence(here[0].mine, here, _short([key for pair in here for key in (pair.mine, pair.other)])))
    return said


def _sentence(first: Key, here: Sequence[Comparison], short: Mapping[Key, str]) -> str:
    others = [comparison for comparison in here if comparison.mine == first]
    where, me = f"On {counted(first[2], 'device')}", short[first]
    tied = [short[comparison.other] for comparison in others if comparison.judged.word == "tie"]
    clauses = "; ".join(_clause(comparison, short[comparison.other]) for comparison in others)
    if all(comparison.judged.word == "unknown" for comparison in others):
        blocks = "one process for each, so nobody knows how much of it is chance"
        return f"{where} {me} measured the fastest ({blocks}): {clauses}."
    if not tied:
        return f"{where} {me} is the fastest: {clauses}."
    if len(tied) == len(others):
        return f"{where} {me} and {' and '.join(tied)} tie: {me} is {clauses}."
    return f"{where} {me} and {' and '.join(tied)} tie for the fastest: {me} is {clauses}."


def _clause(comparison: Comparison, other: str) -> str:
    ratio, word = comparison.judged.ratio, comparison.judged.word
    interval = f" ({_interval(ratio)})" if ratio.low is not None else ""
    why = f", a tie: {comparison.judged.why}" if word == "tie" else ""
    return f"{times(ratio.value)} as fast as {other}{interval}{why}"


def _interval(ratio: Ratio) -> str:
    assert ratio.low is not None and ratio.high is not None
    if ratio.high / ratio.low > USELESS:
        return f"{ratio.blocks} repeats are too few to tell more on a machine that scatters so"
    return f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"


def times(value: float) -> str:
    """Return a ratio in words, with as many digits as it has."""
    return f"{value:.2f} times" if value < 10 else f"{value:.1f} times"


def _short(keys: Collection[Key]) -> dict[Key, str]:
    """Return a name for each cell: its backend, and the strategy where a backend has several."""
    strategies: dict[str, set[str]] = {}
    for key in keys:
        strategies.setdefault(key[0], set()).add(key[1])
    return {key: key[0] if len(strategies[key[0]]) == 1 else f"{key[0]} {key[1]}" for key in keys}
