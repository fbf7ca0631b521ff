"""The live view: what a run is doing now, in a few lines at the foot of a terminal, below the lines that stay."""

from __future__ import annotations

import textwrap
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from kmgpu.errors import counted
from kmgpu.follow import number

WINDOWS = 10  # that speed and input stall are taken over
LOSS_WINDOWS = 3  # that the loss is: of more it would lag behind that of the epochs
REFRESH_SECONDS = 0.25
MOST_DEVICES = 8  # shown one by one
MUCH = 1.05  # times what is used now: a peak that is worth a word
GIB, MIB = 2**30, 2**20


class State:
    """What the records of a run say of its present."""

    def __init__(self) -> None:
        self.title = ""
        self.phase = "starting"
        self.launched: float | None = None
        self.start: dict[str, Any] = {}
        self.epoch = 0
        self.step = 0  # done, over the whole run
        self.metrics: dict[str, Any] = {}  # of the last epoch
        self.monitor: dict[str, Any] = {}
        self.peaks: dict[tuple[str, int], int] = {}  # bytes of each process and device, as the monitor has seen them
        self.checkpoint: dict[str, Any] = {}  # the last one
        self.windows: deque[dict[str, Any]] = deque(maxlen=WINDOWS)
        self._first: tuple[int, float] | None = None  # steps done and time, at the end of the first window

    def add(self, record: dict[str, Any]) -> None:
        kind = record["event"]
        if kind == "launch":
            job = record["job"]
            self.launched = record["time"]
            self.title = f"{job['backend']} on {counted(job['devices'], 'device')}"
        elif kind == "start":
            self.start, self.phase = record, "first step"
        elif kind == "window":
            self.phase = "training"
            self.epoch, self.step = record["epoch"], record["step"] + record["steps"]
            if not record["compiling"]:
                self.windows.append(record)
            self._first = self._first or (self.step, record["time"])
        elif kind == "epoch":
            self.metrics = record["metrics"]
        elif kind == "checkpoint":
            self.checkpoint = record
        elif kind == "monitor":
            self.monitor = record
            used = [(("process", each["process"]), each["rss_bytes"]) for each in record["processes"]]
            used += [(("device", each["device"]), each["memory_used_bytes"] or 0) for each in record["devices"]]
            for name, size in used:
                self.peaks[name] = max(self.peaks.get(name, 0), size)
        elif kind == "end":
            self.phase = "ending"

    @property
    def total_steps(self) -> int | None:
        each, epochs = self.start.get("steps_per_epoch"), self.start.get("epochs")
        return each * epochs if each and epochs else None

    @property
    def loss(self) -> float | None:
        losses = [loss for window in list(self.windows)[-LOSS_WINDOWS:] for loss in window["losses"]]
        return sum(losses) / len(losses) if losses else None

    @property
    def samples_per_second(self) -> float | None:
        seconds = sum(window["seconds"] for window in self.windows)
        return sum(window["samples"] for window in self.windows) / seconds if seconds else None

    @property
    def stall(self) -> float | None:
        """The part of the time that the devices waited for data; None where events do not say."""
        waits = [window["waiting_seconds"] for window in self.windows if "waiting_seconds" in window]
        seconds = sum(window["seconds"] for window in self.windows)
        return sum(waits) / seconds if waits and seconds else None

    def seconds_left(self, now: float) -> float | None:
        """How long the rest takes if it goes on as since the first step, evaluations and pauses included."""
        if self._first is None or self.total_steps is None or self.step <= self._first[0]:
            return None
        each = (now - self._first[1]) / (self.step - self._first[0])
        return max(0.0, (self.total_steps - self.step) * each)


class Screen:
    """Shows lines that stay, and below them, as long as it is open, what the records of a run say of its present.

    It has no thread: it is drawn when records come, at most four times a second; the monitor's come once a second.
    """

    name = "live"

    def __init__(self, console: Console):
        self._console = console
        self._state = State()
        self._drawn = 0.0
        self._live = Live(
            console=console, auto_refresh=False, transient=True,
            get_renderable=lambda: render(self._state, time.time(), console.width),
        )  # fmt: skip

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._state.phase = ""
        self._live.stop()

    def show(self, line: str) -> None:
        """Print a line above the view, broken where the terminal is too narrow for it."""
        text = broken(line, max(20, self._console.width))
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def __call__(self, record: dict[str, Any]) -> None:
        self._state.add(record)
        if time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._live.refresh()
            self._drawn = time.monotonic()

    def close(self) -> None:
        self._state.phase = ""
        self._live.refresh()


def render(state: State, now: float, width: int) -> RenderableType:
    """Return the lines of the view, none wider than the terminal."""
    if not state.phase:
        return Text("")
    lines: list[RenderableType] = []
    if state.total_steps:
        lines.append(_bars(state))
    lines += [_line(parts) for parts in _packed(_progress(state, now), width)]
    metrics = [f"{name} {number(value)}" for name, value in state.metrics.items()]
    if metrics:
        lines += [_line(parts, "dim") for parts in _packed(["last epoch", *metrics], width)]
    lines += [_line(parts, "dim") for parts in _packed(device_parts(state.monitor, state.peaks), width)]
    return Group(*lines)


def broken(line: str, width: int) -> str:
    """Return a line in as many as it takes, broken between its fields (two spaces) if it has any, else its words."""
    if len(line) <= width:
        return line
    if "  " in line.strip():
        return "\n    ".join("  ".join(parts) for parts in _packed(line.split("  "), width - 4))
    parts = textwrap.wrap(line, width, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(parts)


def _bars(state: State) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(ratio=1)
    table.add_column(no_wrap=True, justify="right")
    each, epochs = state.start["steps_per_epoch"], state.start["epochs"]
    epoch = min(state.step // each, epochs - 1)
    done = state.step - epoch * each
    for name, counter, completed, total in (
        ("epoch", f"{epoch + 1}/{epochs}", state.step, each * epochs),
        ("step", f"{done}/{each}", done, each),
    ):
        bar = ProgressBar(total=total, completed=completed)
        table.add_row(name, counter, bar, f"{completed / total:.0%}".replace("%", " %"))
    return table


def _progress(state: State, now: float) -> list[str]:
    if state.phase != "training":
        waited = "" if state.launched is None else f": {state.title}, {duration(now - state.launched)}"
        return [f"{state.phase}{waited}"]
    parts = []
    if not state.total_steps:  # a stream does not say how long it is
        parts.append(f"epoch {state.epoch + 1}/{state.start['epochs']}  step {state.step}")
    if state.loss is not None:
        parts.append(f"loss {number(state.loss)}")
    if state.samples_per_second is not None:
        parts.append(f"{state.samples_per_second:,.0f} samples/s")
    if state.stall is not None:
        parts.append(f"waits for data {state.stall:.0%}".replace("%", " %"))
    if state.checkpoint:
        step, ago = int(state.checkpoint["checkpoint"].partition("-")[2]), now - state.checkpoint["time"]
        parts.append(f"checkpoint at step {step}, {duration(max(0.0, ago))} ago")
    left = state.seconds_left(now)
    if left is not None:
        parts.append(f"{duration(left)} left")
    return parts


def device_parts(monitor: dict[str, Any], peaks: Mapping[tuple[str, int], int] = {}) -> list[str]:
    """Return how each device, or else each process on the CPU, is used."""
    if not monitor:
        return []
    devices = [
        device_part(device, len(monitor["devices"]), peaks.get(("device", device["device"]), 0))
        for device in monitor["devices"]
    ]
    parts = devices or [
        process_part(process, peaks.get(("process", process["process"]), 0)) for process in monitor["processes"]
    ]
    if len(parts) > MOST_DEVICES:
        parts = [_in_sum(monitor)]
    if not devices:
        parts.append(f"load {monitor['load_average']:.1f}")
    return parts


def device_part(device: dict[str, Any], devices: int, peak: int = 0) -> str:
    """Return what is known of a GPU in a few words; more of them where it is the only one."""
    used, total = device["memory_used_bytes"], device["memory_total_bytes"]
    words = [f"GPU {device['device']}"]
    words += [f"{device['utilization_percent']} %"] if device["utilization_percent"] is not None else []
    words += [f"{used / GIB:.1f}/{total / GIB:.1f} GiB"] if used is not None and total is not None else []
    words += [f"(peak {peak / GIB:.1f})"] if used and peak > MUCH * used else []
    words += [f"{device['temperature_celsius']} °C"] if device["temperature_celsius"] is not None else []
    words += [f"{device['power_watts']:.0f} W"] if device["power_watts"] is not None else []
    if devices == 1 and device["sm_clock_mhz"] is not None:
        words.append(f"{device['sm_clock_mhz']} MHz")
    words += [reason for reason in device["throttle_reasons"] or [] if reason != "idle"]
    return " ".join(words)


def process_part(process: dict[str, Any], peak: int = 0) -> str:
    memory = process["rss_bytes"]
    most = f" (peak {_size(peak)})" if memory and peak > MUCH * memory else ""
    return f"process {process['process']}: CPU {process['cpu_percent']:.0f} % {_size(memory)}{most}"


def _size(memory: int) -> str:
    return f"{memory / GIB:.1f} GiB" if memory >= GIB else f"{memory / MIB:.0f} MiB"


def duration(seconds: float) -> str:
    """Return ``7 s``, ``3:07`` (minutes) or ``2:03:07`` (hours)."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _in_sum(monitor: dict[str, Any]) -> str:
    if monitor["devices"]:
        used = [device["utilization_percent"] or 0 for device in monitor["devices"]]
        memory = sum(device["memory_used_bytes"] or 0 for device in monitor["devices"])
        return f"{len(used)} GPUs: {min(used)} to {max(used)} %, {memory / GIB:.1f} GiB"
    processes = monitor["processes"]
    percent = sum(process["cpu_percent"] for process in processes)
    memory = sum(process["rss_bytes"] for process in processes)
    return f"{len(processes)} processes: CPU {percent:.0f} % {memory / GIB:.1f} GiB"


def _packed(parts: Sequence[str], width: int) -> list[list[str]]:
    """Group parts into lines that fit."""
    lines: list[list[str]] = [[]]
    for part in parts:
        if lines[-1] and len("  ".join([*lines[-1], part])) > width:
            lines.append([])
        lines[-1].append(part)
    return lines


def _line(parts: Sequence[str], style: str = "") -> Text:
    return Text("  ".join(parts), style=style, no_wrap=True, overflow="ellipsis")
