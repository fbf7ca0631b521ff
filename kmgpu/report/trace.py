"""The course of one run: its windows, its epochs and what the monitor saw, as the files have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kmgpu.report.runs import Run
from kmgpu.rundir import RunDir


@dataclass(frozen=True)
class Trace:
    """What events.jsonl and monitor.jsonl say, in order; ``problem`` says why there is nothing."""

    start: float | None  # when the model was built and training began
    windows: tuple[dict[str, Any], ...]
    epochs: tuple[dict[str, Any], ...]
    checkpoints: tuple[dict[str, Any], ...]
    monitored: tuple[dict[str, Any], ...]
    problem: str = ""

    @property
    def steady(self) -> list[dict[str, Any]]:
        """The windows without a compilation."""
        return [window for window in self.windows if not window["compiling"]]

    @property
    def step_seconds(self) -> list[float]:
        """Seconds per step of each steady window."""
        return [window["seconds"] / window["steps"] for window in self.steady]


def read(run: Run) -> Trace:
    """Read the course of a run; one whose files cannot be read has none, and says so."""
    rundir = RunDir(run.path)
    try:
        events, monitored = rundir.events(), rundir.monitored()
        known = ("window", "epoch", "checkpoint")
        kinds = {kind: tuple(event for event in events if event["event"] == kind) for kind in known}
        start = next((float(event["time"]) for event in events if event["event"] == "start"), None)
        trace = Trace(start, kinds["window"], kinds["epoch"], kinds["checkpoint"], tuple(monitored))
        _ = trace.step_seconds, [(window["time"], window["losses"]) for window in trace.windows]
        _ = [(record["time"], record["processes"], record["devices"]) for record in monitored]
        return trace
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        return Trace(None, (), (), (), (), f"{run.name}: its course cannot be read ({said})")
