"""The grid of a study: which runs are made, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kmgpu import backends as table

KERAS_FIT = "keras-fit"  # a track that only studies have: Keras's own fit, timed


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    backend: str
    strategy: str
    devices: int
    batch_size: int | None  # global; None is what the recipe says
    repeat: int
    track: str = "same-math"

    @property
    def name(self) -> str:
        track = "" if self.track == "same-math" else f"-{self.track}"
        return f"{self.backend}-{self.strategy}-{self.devices}{track}-r{self.repeat}"


def grid(
    backends: Sequence[str], devices: Sequence[int], *, repeats: int = 1, scaling: str = "strong",
    batch_size: int | None = None, tracks: Sequence[str] = ("same-math",),
) -> list[Cell]:  # fmt: skip
    """Return the runs of a study in the order in which they are made.

    Backends alternate. Each repeat is a block with every cell once. Every other block goes backwards, so that a machine
    that warms up favours nobody, and each pair of blocks begins with another cell, so that nobody always comes after
    the same one's heat. Strong scaling holds the global batch; weak scaling multiplies ``batch_size``, which it needs,
    by the devices.
    """
    cells = []
    for repeat in range(repeats):
        once = [
            Cell(backend, table.find(backend).name, count, batch, repeat, track)
            for count in devices
            for batch in [batch_size * count if scaling == "weak" and batch_size is not None else batch_size]
            for backend in backends
            for track in tracks
            if track != KERAS_FIT or count == 1 or table.find(backend).fits_on_several
        ]
        first = repeat // 2 % len(once)
        once = once[first:] + once[:first]
        cells += once if repeat % 2 == 0 else once[::-1]
    return cells
