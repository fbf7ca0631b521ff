"""When a step on shares is compared with the step on the whole batch again, after the check before the first step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kmgpu.backends.adapter import Adapter
from kmgpu.data.feed import Update

FIRST = 16  # updates before the first comparison in training
RARER = 4  # times as many updates before each next one, so that what a comparison costs fades away in a long run


class Rechecks:
    """A layer may look at other rows only after some steps, in some data, or once a callback has changed it.

    So steps are compared after 16 updates, 64, 256 and so on, at batches of a new size, after a callback has changed
    something, and where a run goes on from a checkpoint.
    """

    def __init__(self, record: Callable[..., Any], resumed: bool = False):
        self._record = record
        self._next = 0 if resumed else FIRST
        self._last = 0  # update that was compared
        self._changes = 0

    def before(self, adapter: Adapter, update: Update, number: int, new_size: bool, changes: int) -> float:
        """Compare, if it is time for it, before an update is trained; return the seconds it took."""
        due = number >= self._next or (new_size and number > 0) or changes != self._changes
        if not due or adapter.devices == 1:
            return 0.0
        began = time.perf_counter()
        why = adapter.tools.recheck(adapter, update)
        if why is not None:
            since = f"steps {self._last} to {number - 1} may have been off by as much" if number else "from the start"
            self._record(
                "note",
                text=f"from step {number} on each device computes the whole batch, which is exact but no faster "
                f"({since}): {why}",
            )
        self._next = max(FIRST, RARER * number) if number >= self._next else self._next
        self._last, self._changes = number, changes
        return time.perf_counter() - began
