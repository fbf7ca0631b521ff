"""Windows: the updates between two readings of the clock, and between two looks at anything else."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kmgpu.worker.run import Update

WINDOW = 10  # steps


class Window:
    """Updates that are trained one after the other, and the seconds it took to read their data."""

    def __init__(self, compiling: bool):
        self.updates: list[Update] = []
        self.reading = 0.0
        self.compiling = compiling


def windows(source: Iterator[Update], seen: set[int]) -> Iterator[Window]:
    """Group updates; one of a size not seen before is alone, since a framework may compile for it."""
    window = Window(compiling=False)
    clock = time.perf_counter()
    for update in source:
        reading = time.perf_counter() - clock
        size = update[0].update_size
        new = size not in seen
        if window.updates and (new or len(window.updates) == WINDOW):
            yield window
            window = Window(compiling=False)
        seen.add(size)
        window.updates.append(update)
        window.compiling = new
        window.reading += reading
        if new:
            yield window
            window = Window(compiling=False)
        clock = time.perf_counter()
    if window.updates:
        yield window
