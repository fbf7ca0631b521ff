"""The sink wandb: a Weights & Biases run of the project kmgpu; offline, unless WANDB_MODE says otherwise.

``wandb sync`` sends an offline run later. The same run directory has the same id, so a replay is no second run.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import wandb

from kmgpu.sinks.scalars import Scalars

AXES = ("step", "epoch", "seconds")


class Sink:
    """Logs the points of a run, each against its own axis, with job and start as the configuration."""

    name = "wandb"

    def __init__(self) -> None:
        self._run: Any = None
        self._scalars = Scalars()

    def __call__(self, record: dict[str, Any]) -> None:
        kind = record["event"]
        if kind == "launch":
            self._begin(record)
        elif kind == "start":
            self._run.config.update({"start": record})
        points = self._scalars.of(record)
        if points:
            axis = points[0].name.partition("/")[0]
            self._run.log({axis: points[0].step, **{point.name: point.value for point in points}})
        if kind == "outcome":
            self._run.summary.update({"status": record["status"], "reason": record["reason"]})

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _begin(self, record: dict[str, Any]) -> None:
        job = record["job"]
        self._run = wandb.init(
            project="kmgpu",
            id=hashlib.sha256(record["path"].encode()).hexdigest()[:16],
            name=Path(record["path"]).name,
            group=Path(job["recipe"]).stem,
            config={"job": job},
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, save_code=False),
        )
        for axis in AXES:
            self._run.define_metric(axis)
            self._run.define_metric(f"{axis}/*", step_metric=axis)
