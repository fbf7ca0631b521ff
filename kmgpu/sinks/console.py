"""The sink console: the lines that `kmgpu train` prints without a terminal."""

from __future__ import annotations

from typing import Any

from kmgpu.follow import Lines


class Sink:
    """Prints the lines for a person."""

    name = "console"

    def __init__(self) -> None:
        self._lines = Lines(lambda line: print(line, flush=True))

    def __call__(self, record: dict[str, Any]) -> None:
        self._lines(record)
