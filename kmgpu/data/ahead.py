"""Reading ahead: a thread that reads the next items while the last ones are computed."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
DEPTH = 4  # items that wait to be asked for


class Ahead(Generic[Item]):
    """The items of a generator in their order, up to ``DEPTH`` of them read before they are asked for.

    What reading raises is raised where the item would have come. ``waited`` is the seconds that callers have waited.
    """

    def __init__(self, items: Generator[Item, None, None]):
        self.waited = 0.0
        self._items = items
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(DEPTH)
        self._stopped = False
        self._thread = threading.Thread(target=self._read, name="kmgpu-ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        began = time.perf_counter()
        kind, value = self._queue.get()
        self.waited += time.perf_counter() - began
        if kind == "item":
            return value
        self._queue.put((kind, value))  # asked again, it says so again
        raise StopIteration if kind == "end" else value

    def close(self) -> None:
        """Stop reading; the generator is closed when this returns."""
        self._stopped = True
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=0.01)

    def _read(self) -> None:
        try:
            for item in self._items:
                self._queue.put(("item", item))
                del item  # else it lives until the next one is read
                if self._stopped:
                    break
            self._items.close()
        except BaseException as error:
            self._queue.put(("error", error))
        else:
            self._queue.put(("end", None))


def mapped(pool: Executor, function: Callable[[Any], Item], values: Iterable[Any], most: int) -> Iterator[Item]:
    """Yield ``function`` of each value in order, computed in a pool, at most ``most`` of them begun beforehand."""
    remaining = iter(values)
    waiting = [pool.submit(function, value) for value in islice(remaining, most)]
    try:
        while waiting:
            item = waiting.pop(0).result()
            waiting += [pool.submit(function, value) for value in islice(remaining, 1)]
            yield item
            del item
    finally:
        for future in waiting:
            future.cancel()
