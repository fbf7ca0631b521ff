"""Whether the timed runs themselves computed the same: their losses, step by step, beside those of the first cell.

Weights and samples are equal, so the first loss is equal up to rounding; later ones part slowly, as rounding grows.
This needs no parity check, and stops a ranking by itself where losses are of another size altogether.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kmgpu.report.statistics import Key
from kmgpu.report.trace import Trace

EARLY = 10  # steps that are compared one by one
FIRST = {
    "float32": 1e-4,
    "float64": 1e-9,
    "tf32": 1e-2,
    "float16": 5e-2,
    "bfloat16": 5e-2,
}  # of the first loss, relative
FAR = 0.2  # between the mean losses of the early steps: dropout that draws other numbers stays below this


@dataclass(frozen=True)
class Agreement:
    """Losses of one cell beside those of the reference cell, as relative differences; None where there are none."""

    backend: str
    strategy: str
    devices: int
    first: float | None  # of the first step
    early: float | None  # the largest of the first EARLY steps
    mean: float | None  # of the means over these steps
    final: float | None  # of the means over the last EARLY steps
    doubt: str  # why it must not be ranked; empty if nothing speaks against it


def compare(traces: Mapping[Key, Sequence[Trace]], precision: str, draws_alike: bool) -> list[Agreement]:
    """Return one agreement for each cell but the first, whose first run is the reference.

    ``draws_alike`` is whether all cells draw the same random numbers; else only a gross difference is a doubt.
    """
    losses = {key: _losses(found[0]) for key, found in traces.items() if found and _losses(found[0])}
    if not losses:
        return []
    home = min(losses, key=lambda key: key[2])
    return [_against(key, losses[key], losses[home], home, precision, draws_alike) for key in losses if key != home]


def _against(
    key: Key, mine: Sequence[float], reference: Sequence[float], home: Key, precision: str, draws_alike: bool
) -> Agreement:
    pairs = list(zip(mine, reference, strict=False))
    apart = [_relative(loss, other) for loss, other in pairs]
    early = pairs[:EARLY]
    mean = _relative(sum(loss for loss, _ in early), sum(other for _, other in early))
    last = pairs[-EARLY:]
    final = _relative(sum(loss for loss, _ in last), sum(other for _, other in last))
    doubt = ""
    reached = f"from that of {home[0]} on {home[2]}"
    if not mean <= FAR:
        doubt = f"its losses part by {mean:.0%} {reached} in the first {len(early)} steps: it computes something else"
    elif draws_alike and not apart[0] <= FIRST.get(precision, FAR):
        doubt = f"its first loss parts by {apart[0]:.1e} {reached}, with equal weights and samples: not rounding"
    return Agreement(*key, apart[0], max(apart[:EARLY]), mean, final, doubt)


def _losses(trace: Trace) -> list[float]:
    return [loss for window in trace.windows for loss in window["losses"]]


def _relative(mine: float, other: float) -> float:
    if not (math.isfinite(mine) and math.isfinite(other)):
        return 0.0 if str(mine) == str(other) else math.inf
    return abs(mine - other) / max(abs(other), 1e-12)
