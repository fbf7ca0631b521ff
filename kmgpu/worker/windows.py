"""Windows: the updates between two readings of the clock, and between two looks at anything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kmgpu.data.ahead import Ahead
from kmgpu.data.feed import Update

WINDOW = 10  # steps


class Window:
    """Updates that are trained one after the other; each is asked for when the one before is on its way."""

    def __init__(self, updates: Iterator[Update], compiling: bool, waited: float):
        self._updates = updates
        self.compiling = compiling
        self.waited = waited  # seconds for its first update, which was asked for before

    def __iter__(self) -> Iterator[Update]:
        return self._updates


def windows(source: Ahead[Update], seen: set[Any], room: Callable[[], int]) -> Iterator[Window]:
    """Group updates; one of a form not seen before is alone, since a framework may compile for it.

    ``room`` says how many updates the next window may have at most.
    """
    held: list[Update] = []  # read, and in no window yet
    while True:
        before = source.waited
        update = held.pop() if held else next(source, None)
        if update is None:
            return
        new = _form(update) not in seen
        seen.add(_form(update))
        most = 1 if new else min(WINDOW, room())
        yield Window(_members(update, source, held, seen, most), new, source.waited - before)


def _members(update: Update, source: Ahead[Update], held: list[Update], seen: set[Any], most: int) -> Iterator[Update]:
    yield update
    for _ in range(most - 1):
        following = next(source, None)
        if following is None:
            return
        if _form(following) not in seen:
            held.append(following)
            return
        yield following


def _form(update: Update) -> tuple[int, str]:
    return update[0].update_size, update[0].form
