"""Follow a run by its events: what a person is told of each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kmgpu import records
from kmgpu.rundir import RunDir


class Follower:
    """Reads the events of a run as they come, and shows lines for them."""

    def __init__(self, rundir: RunDir, show: Callable[[str], None]):
        self._path, self._show = rundir.events_file, show
        self._read = 0
        self._rate = Rate()

    def read(self) -> None:
        """Show what is new."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self._read += whole
        for line in content[:whole].splitlines():
            event = records.loads(line.decode())
            self._rate.add(event)
            for text in lines(event, self._rate):
                self._show(text)


class Rate:
    """Samples per second of the current epoch, without the steps that compile."""

    def __init__(self) -> None:
        self.epochs = 0
        self._samples, self._seconds = 0, 0.0

    def add(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self.epochs = event["epochs"]
        if event["event"] == "window" and not event["compiling"]:
            self._samples += event["samples"]
            self._seconds += event["seconds"]

    def take(self) -> float | None:
        """Return the rate since the last call, or None if every step compiled."""
        rate = self._samples / self._seconds if self._seconds else None
        self._samples, self._seconds = 0, 0.0
        return rate


def lines(event: dict[str, Any], rate: Rate) -> list[str]:
    """Return what a person is told of an event: a few lines at the start, one for each note and epoch."""
    kind = event["event"]
    if kind == "start":
        return start_lines(event)
    if kind == "note":
        return [f"note: {event['text']}"]
    if kind == "window" and event["step"] == 0:
        return [f"first step done, {event['seconds']:.1f} s with its compilation"]
    if kind == "epoch":
        speed = rate.take()
        metrics = "  ".join(f"{name} {_number(value)}" for name, value in event["metrics"].items())
        pace = f"  {speed:,.0f} samples/s" if speed else ""
        width = len(str(rate.epochs))
        return [f"epoch {event['epoch'] + 1:>{width}}/{rate.epochs}  {metrics}  {event['seconds']:.1f} s{pace}"]
    return []


def start_lines(event: dict[str, Any]) -> list[str]:
    """Return the lines that state what is run and how."""
    count = len(event["devices"])
    if event["device_kind"] == "cpu":
        kind = "virtual CPU device" + ("s" if count > 1 else "") + ": no GPU is used"
    else:
        kind = f"GPU{'s' if count > 1 else ''}: {', '.join(event['devices'])}"
    shares = sorted(set(event["per_device_batch"]), reverse=True)
    rate = event["learning_rate"]
    precision = ", ".join(f"{name} {_switch(value)}" for name, value in event["precision"].items())
    return [
        f"{count} {kind}",
        f"{event['framework']}, strategy {event['strategy']}, track {event['track']}",
        f"global batch {event['batch_size']}, {' or '.join(map(str, shares))} per device, "
        f"{event['steps_per_epoch']} steps per epoch, {event['epochs']} epochs, {event['rows']:,} samples",
        f"learning rate {rate if isinstance(rate, str) else format(rate, '.6g')}, {precision}, "
        f"{event['parameters']:,} parameters, initial weights {event['initial_weights'][:12]}",
    ]


def _switch(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
