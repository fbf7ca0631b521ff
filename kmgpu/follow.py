"""Follow a run: hand its records to sinks, as they come or again, and say what a person is told of each of them.

Records are the events of the run and, around them, what the orchestrator knows: ``launch`` first, ``monitor`` once a
second, ``outcome`` last. A sink is a function of a record; it may have a ``close``. docs/run-directory.md says what
is in a record.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kmgpu import records
from kmgpu.errors import KmgpuError, counted, first_line
from kmgpu.job import Job
from kmgpu.rundir import RunDir

Sink = Callable[[dict[str, Any]], None]
EPOCH_LINES = 50  # so many lines for the epochs of a run, and beyond that at most one each so many seconds:
LINE_SECONDS = 60.0  # and of checkpoints one each so many
TOLD_STALL = 0.05  # part of an epoch's time spent waiting for data, above which its line says so


class Follower:
    """Reads the records of a run as they come, shows lines for them, and hands them to sinks.

    A sink that raises is left out from then on, and a record says so: what it writes is not worth a run.
    """

    def __init__(self, rundir: RunDir, show: Callable[[str], None], sinks: Sequence[Sink] = ()):
        self._path = rundir.events_file
        self._lines, self._sinks = Lines(show), list(sinks)
        self._read = 0

    def read(self) -> None:
        """Hand on what is new in the events."""
        if not self._path.exists():
            return
        with open(self._path, "rb") as file:
            file.seek(self._read)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self._read += whole
        for line in content[:whole].splitlines():
            self.hand(records.loads(line.decode()))

    def hand(self, record: dict[str, Any]) -> None:
        """Show a record's lines and give it to every sink."""
        self._lines(record)
        for sink in list(self._sinks):
            try:
                sink(record)
            except BrokenPipeError:  # nobody reads what is printed any more
                raise
            except Exception as error:
                self._leave_out(sink, error)

    def close(self) -> None:
        """Close the sinks; nothing is handed on any more."""
        for sink in list(self._sinks):
            try:
                if hasattr(sink, "close"):
                    sink.close()
            except Exception as error:
                self._leave_out(sink, error)
        self._sinks.clear()

    def _leave_out(self, sink: Sink, error: Exception) -> None:
        self._sinks.remove(sink)
        with contextlib.suppress(Exception):
            if hasattr(sink, "close"):
                sink.close()
        said = {"sink": name_of(sink), "reason": first_line(error)}
        self.hand({"event": "sink_failed", "time": time.time(), **said})


def launch_record(rundir: RunDir, job: Job, launched: float) -> dict[str, Any]:
    """Return the first record of a run: where it is and what it is to do."""
    return {"event": "launch", "time": launched, "path": str(rundir.path.absolute()), "job": job.to_json()}


def outcome_record(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return the last record of a run: how it ended."""
    kept = {name: outcome.get(name) for name in ("status", "reason", "epochs", "steps")}
    return {"event": "outcome", "time": outcome.get("ended"), **kept}


def history(rundir: RunDir) -> Iterator[dict[str, Any]]:
    """Yield the records of a run that is over, or as far as it has come, in the order of their times."""
    events = sorted([*rundir.events(), *rundir.monitored()], key=lambda record: record["time"])
    outcome = rundir.outcome() or {}
    launched = outcome.get("launched_time") or (events[0]["time"] if events else time.time())
    yield launch_record(rundir, rundir.job(), launched)
    yield from events
    if outcome:
        yield outcome_record(outcome)


def replay(rundir: RunDir, sinks: Sequence[Sink]) -> None:
    """Hand the records of a run to sinks once more. Raises KmgpuError if one of them fails."""
    for sink in sinks:
        try:
            for record in history(rundir):
                sink(record)
            if hasattr(sink, "close"):
                sink.close()
        except (BrokenPipeError, KmgpuError):
            raise
        except Exception as error:
            raise KmgpuError(f"the sink {name_of(sink)} failed ({first_line(error)}) on {rundir.path}") from error


def name_of(sink: Sink) -> str:
    """Return the name of a sink, or of the function that it is."""
    return str(getattr(sink, "name", None) or getattr(sink, "__name__", type(sink).__name__))


class Lines:
    """A sink that shows the lines for a person, of the epochs of a long run only some, and of its checkpoints."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show
        self._rate = Rate()
        self._held: dict[str, dict[str, Any]] = {}  # the last epoch and the last checkpoint, if they were not shown
        self._shown_times = {"epoch": 0.0, "checkpoint": 0.0}

    def __call__(self, record: dict[str, Any]) -> None:
        self._rate.add(record)
        kind = record["event"]
        if kind in self._shown_times and not self._is_due(record):
            self._held[kind] = record
            return
        if kind in ("end", "outcome"):
            for held in sorted(self._held.values(), key=lambda record: record["time"]):  # the last ones, as it is now
                self._tell(held)
        self._tell(record)

    def _is_due(self, record: dict[str, Any]) -> bool:
        late = record["time"] - self._shown_times[record["event"]] >= LINE_SECONDS
        if record["event"] == "checkpoint":
            return late
        every = -(-self._rate.epochs // EPOCH_LINES) or 1
        number = record["epoch"] + 1
        return number == 1 or number % every == 0 or number == self._rate.epochs or late

    def _tell(self, record: dict[str, Any]) -> None:
        if record["event"] in self._shown_times:
            self._held.pop(record["event"], None)
            self._shown_times[record["event"]] = record["time"]
        for text in lines(record, self._rate):
            self._show(text)


class Rate:
    """Samples per second of the current epoch, without the steps that compile."""

    def __init__(self) -> None:
        self.epochs = 0
        self.windows = 0
        self._samples, self._seconds = 0, 0.0

    def add(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self.epochs = event["epochs"]
        self.windows += event["event"] == "window"
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
    if kind == "sink_failed":
        return [f"note: {complaint(event)}"]
    if kind == "checkpoint":
        return [f"checkpoint {event['checkpoint']}"]
    if kind == "window" and rate.windows == 1:  # also of a run that goes on at another step
        return [f"first step done, {event['seconds']:.1f} s with its compilation"]
    if kind == "epoch":
        speed = rate.take()
        metrics = "  ".join(f"{name} {number(value)}" for name, value in event["metrics"].items())
        pace = f"  {speed:,.0f} samples/s" if speed else ""
        width = len(str(rate.epochs))
        stall = event.get("waiting_seconds", 0.0) / event["seconds"] if event["seconds"] else 0.0
        waits = f"  waits for data {stall:.0%}".replace("%", " %") if stall > TOLD_STALL else ""
        place = f"{event['epoch'] + 1:>{width}}/{rate.epochs}"
        return [f"epoch {place}  {metrics}  {event['seconds']:.1f} s{pace}{waits}"]
    return []


def complaint(event: dict[str, Any]) -> str:
    """Return what a person is told of a sink that failed."""
    return f"the sink {event['sink']} failed ({event['reason']}); the run goes on without it"


def start_lines(event: dict[str, Any]) -> list[str]:
    """Return the lines that state what is run and how."""
    count = len(event["devices"])
    if event["device_kind"] == "cpu":
        devices = f"{counted(count, 'virtual CPU device')}: no GPU is used"
    else:
        devices = f"{counted(count, 'GPU')}: {', '.join(event['devices'])}"
    shares = sorted(set(event["per_device_batch"]), reverse=True)
    rate, steps, rows = event["learning_rate"], event["steps_per_epoch"], event["rows"]
    before = event.get("resumed")
    random = ", portable randomness" if event.get("randomness") == "portable" else ""
    precision = ", ".join(f"{name} {_switch(value)}" for name, value in event["precision"].items())
    numerics = [f"{name.replace('_', ' ')} {_switch(value)}" for name, value in event.get("numerics", {}).items()]
    if event.get("deterministic"):
        numerics.append("deterministic")
    return [
        devices,
        f"{event['framework']}, strategy {event['strategy']}, track {event['track']}{random}",
        f"global batch {event['batch_size']}, {' or '.join(map(str, shares))} per device, "
        f"{'unknown steps' if steps is None else counted(steps, 'step')} per epoch, "
        f"{counted(event['epochs'], 'epoch')}, {'batches of a stream' if rows is None else counted(rows, 'sample')}",
        f"learning rate {rate if isinstance(rate, str) else format(rate, '.6g')}, {precision}, "
        f"{counted(event['parameters'], 'parameter')}, initial weights {event['initial_weights'][:12]}",
        *([", ".join(numerics)] if numerics else []),
        *_policy_lines(event, count),
        *([_resumed(before)] if before else []),
        *([f"learning rate {event['rate_rule']}"] if event.get("rate_rule") else []),
    ]


def _policy_lines(event: dict[str, Any], devices: int) -> list[str]:
    """Return what of a recipe's policies is not the usual, one line each."""
    said = []
    if event.get("gradient_reduction", "mean") == "sum":
        said.append(f"gradients are summed over the devices, not averaged: {devices} times that of the global batch")
    if event.get("batch_norm", "global") == "replica":
        said.append("BatchNorm takes its statistics of each device's rows, not of the global batch")
    if event.get("accumulate", 1) > 1:
        said.append(f"each update accumulates the gradients of {event['accumulate']} batches")
    return said


def _resumed(before: dict[str, Any]) -> str:
    devices = f"{before['devices']} device{'s' if before['devices'] > 1 else ''}"
    return (
        f"goes on from {before['checkpoint']}: epoch {before['epoch'] + 1}, {counted(before['step'], 'step')} done, "
        f"with {before['framework']} on {devices}"
    )


def _switch(value: Any) -> str:
    return str(value) if not isinstance(value, bool) else "on" if value else "off"


def number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if value == 0 or not abs(value) < 1e-3 else f"{value:.3g}"
