"""The sink tensorboard: event files in RUN/tensorboard, by TensorBoard's own writer."""

from __future__ import annotations

import shutil
import sys
import time
import types
from pathlib import Path
from typing import Any

# The module's presence tells TensorBoard to use its own file functions in place of TensorFlow's, which would otherwise
# be imported wherever it is installed (tensorboard/compat/__init__.py, seen in 2.21).
sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))

from tensorboard.summary import Writer  # noqa: E402

from kmgpu.sinks.scalars import Scalars  # noqa: E402

FLUSH_SECONDS = 10.0


class Sink:
    """Writes the points of a run, in place of what an earlier one wrote for it."""

    name = "tensorboard"

    def __init__(self) -> None:
        self._writer: Any = None
        self._scalars = Scalars()
        self._flushed = time.monotonic()

    def __call__(self, record: dict[str, Any]) -> None:
        if record["event"] == "launch":
            folder = Path(record["path"], "tensorboard")
            shutil.rmtree(folder, ignore_errors=True)
            self._writer = Writer(str(folder))
        for point in self._scalars.of(record):
            self._writer.add_scalar(point.name, point.value, point.step, wall_time=point.time)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
