"""Start the processes of a run, follow their exits, stop them, and say which failed first and why."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from kmgpu.errors import BY_NAME, Interrupted, KmgpuError, RunFailed, essence
from kmgpu.rundir import RunDir, read_json

GRACE_AFTER_FAILURE_SECONDS = 1.0  # when one process has failed, its peers may wait for it in a collective for ever

# What a scheduler or another launcher has set must not alter a local run: frameworks read these by themselves.
FOREIGN_PREFIXES = ("SLURM_", "TORCHELASTIC_", "OMPI_", "PMI_", "PMIX_")
FOREIGN_NAMES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"),
    "KERAS_TORCH_DEVICE",  # the run says which devices Keras uses
)

_open_launches: weakref.WeakSet[Launch] = weakref.WeakSet()


@dataclass(frozen=True)
class Command:
    """One process of a run; ``environment`` is the whole of it, ``log`` takes its output and its errors."""

    argv: list[str]
    environment: dict[str, str]
    log: Path


@dataclass(frozen=True)
class Exit:
    """How a process ended: with a code or by a signal, at ``time`` (time.time()).

    ``asked`` is true if it had been asked to stop before: because another one failed, or by ``Launch.stop``.
    """

    process: int
    code: int | None
    signal: int | None
    time: float
    asked: bool = False


class Launch:
    """The processes of one run, held by a keeper (kmgpu/keeper.py), which outlives any death of this process.

    Use it as a context manager: at its end nothing of the run is left, neither processes nor the scratch directory.
    A process that fails makes the keeper stop the others, without being told. Works from any thread.
    """

    def __init__(self, keeper: subprocess.Popen[bytes], processes: int, scratch: Path | None) -> None:
        self.pids: dict[int, int] = {}  # process -> process id
        self.exits: list[Exit] = []  # all so far, in their order
        self._processes = processes
        self._keeper = keeper
        self._scratch = scratch
        self._received = b""
        self._returned = 0  # how many of the exits poll has returned
        self._closed = False
        _open_launches.add(self)

    @classmethod
    def start(cls, commands: Sequence[Command], *, grace: float = 5.0, scratch: Path | None = None) -> Launch:
        """Start one process per command; ``grace`` is the seconds between SIGTERM and SIGKILL when they are stopped.

        ``scratch`` is a private directory that is removed, with all in it, when the processes are gone. Raises
        OSError if a log cannot be written; a program that cannot be started ends with code 127 and says so in its log.
        """
        spec = {
            "commands": [
                {"argv": command.argv, "environment": command.environment, "log": str(command.log.absolute())}
                for command in commands
            ],
            "grace": grace,
            "grace_after_failure": min(grace, GRACE_AFTER_FAILURE_SECONDS),
            "scratch": None if scratch is None else str(scratch.absolute()),
        }
        try:
            for command in commands:
                command.log.open("ab").close()
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("keeper.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # a Ctrl-C of the terminal is the orchestrator's to handle
            )
        except BaseException:
            _remove(scratch)
            raise
        launch = cls(keeper, len(commands), scratch)
        try:
            launch._send(json.dumps(spec).encode() + b"\n")
            while len(launch.pids) < len(commands):
                launch._follow(1.0)
        except BaseException:
            launch.close()
            raise
        return launch

    @property
    def running(self) -> tuple[int, ...]:
        """The processes that have not ended."""
        ended = {exit.process for exit in self.exits}
        return tuple(process for process in range(self._processes) if process not in ended)

    def poll(self, timeout: float) -> list[Exit]:
        """Return the next exits, after at most ``timeout`` seconds; empty at once if all processes have ended."""
        deadline = time.monotonic() + timeout
        while self.running and len(self.exits) == self._returned:
            left = deadline - time.monotonic()
            self._follow(max(0.0, left))
            if left <= 0:
                break
        new = self.exits[self._returned :]
        self._returned += len(new)
        return new

    def wait(self) -> list[Exit]:
        """Wait until all processes have ended; return all exits, in their order."""
        while self.running:
            self.poll(60.0)
        return self.exits

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the processes to stop, and kill what is left after the grace; SIGKILL kills at once. Does not wait."""
        self._send(b"K" if number == signal.SIGKILL else b"T")

    def close(self) -> None:
        """Stop what still runs and return when nothing of the run is left. A Ctrl-C meanwhile kills at once."""
        interrupt = None
        while not self._closed:
            try:
                if self.running and interrupt is None:
                    self.stop()
                while self._receive(0.5):
                    pass
                self._keeper.wait()
                _remove(self._scratch)  # the keeper has done it, unless it was killed
                self._closed = True
            except KeyboardInterrupt as error:
                interrupt = error
                self.stop(signal.SIGKILL)
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            if pipe is not None:
                pipe.close()
        _open_launches.discard(self)
        if interrupt is not None:
            raise interrupt

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, message: bytes) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the keeper has ended, or this launch is closed
            while message:
                message = message[self._keeper.stdin.write(message) :]

    def _follow(self, timeout: float) -> None:
        if not self._receive(timeout):
            raise RunFailed(f"the keeper of the processes stopped (code {self._keeper.wait()}), and they with it")

    def _receive(self, timeout: float) -> bool:
        """Take in what the keeper has said, waiting for it; return False if the keeper has ended."""
        assert self._keeper.stdout is not None
        events = select.poll()
        events.register(self._keeper.stdout, select.POLLIN)
        if not events.poll(timeout * 1000):
            return self._keeper.poll() is None  # a forked child of this process can hold the pipe open
        chunk = os.read(self._keeper.stdout.fileno(), 1 << 16)
        *lines, self._received = (self._received + chunk).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if event.pop("event") == "start":
                self.pids[event["process"]] = event["pid"]
            else:
                self.exits.append(Exit(**event))
        return bool(chunk)


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted, after an orderly stop; a second one kills the processes at once.

    Put it around ``with Launch.start(...)``. In another than the main thread it installs nothing.
    """
    received: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1 and _open_launches:  # raising here would disturb the stop that is under way
            for launch in list(_open_launches):
                launch.stop(signal.SIGKILL)
        else:
            raise KeyboardInterrupt

    previous: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for caught in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(caught) not in (signal.SIG_IGN, None):
                    previous[caught] = signal.signal(caught, handle)
        yield
    except KeyboardInterrupt:
        number = signal.Signals(received[0] if received else signal.SIGINT)
        raise Interrupted(f"the run was stopped by {number.name}", number) from None
    finally:
        for caught, handler in previous.items():
            signal.signal(caught, handler)


def local_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a local worker: ``base`` without what other launchers set, then ``extra``."""
    kept = {
        name: value
        for name, value in base.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }
    return {**kept, **extra}


def environment_difference(base: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return what must be set in ``base`` to get ``environment``; None for what must be unset."""
    changed: dict[str, str | None] = {name: None for name in base if name not in environment}
    return {**changed, **{name: value for name, value in environment.items() if base.get(name) != value}}


def describe(argv: Sequence[str], environment_difference: Mapping[str, str | None] | None = None) -> str:
    """Return a line that runs ``argv`` by hand in a POSIX shell, with variables set, or unset where they are None."""
    changes = environment_difference or {}
    unset = [word for name, value in changes.items() if value is None for word in ("-u", name)]
    assigned = [f"{name}={value}" for name, value in changes.items() if value is not None]
    return shlex.join([*(["env", *unset, *assigned] if changes else []), *argv])


@dataclass(frozen=True)
class Failure:
    """The process that failed first, and why."""

    process: int
    processes: int  # of the run
    code: int | None
    signal: str | None  # "SIGKILL"
    kind: str | None  # class name of the error that the process reported; None if it reported none
    message: str
    tail: list[str]  # last lines of the log
    log: Path

    def to_error(self) -> KmgpuError:
        """Return the error that a worker meant, whose message says all; else RunFailed.

        Its message has the last lines of the log where the process reported no reason.
        """
        if self.kind in BY_NAME:
            return BY_NAME[self.kind](self.message)
        sentence = f"process {self.process} of {self.processes} {self.message}; its log: {self.log}"
        tail = [] if self.kind is not None else self.tail  # a reason says more than the last lines do
        return RunFailed("\n".join([sentence, *(f"    {line}" for line in tail)]))


def first_failure(rundir: RunDir, exits: Sequence[Exit]) -> Failure | None:
    """Return the first cause among all exits of a run (``Launch.exits`` after its close), or None.

    That is the earliest report of an error (error-R.json) or exit without a report. A process that ended without a
    report because it was asked to stop is no cause; one that reports ``secondary`` (it only lost a peer) is one if
    there is no other.
    """
    found = []
    for exit in exits:
        report = _read_report(rundir.error_file(exit.process))
        if exit.code == 0 or (report is None and exit.asked):
            continue
        moment = exit.time - _NOTICE_SECONDS if report is None else report["time"]
        found.append((bool(report and report.get("secondary")), moment, exit, report))
    if not found:
        return None
    _, _, exit, report = min(found, key=lambda cause: cause[:2])
    log = rundir.log_file(exit.process)
    name = None if exit.signal is None else _signal_name(exit.signal)
    message = f"ended with exit code {exit.code}" if name is None else f"was killed by {name}"
    if report is not None:
        plain = report["kind"] in BY_NAME
        ours = plain and report["kind"] != "OutOfMemory"  # which has the framework's words
        said = report["message"] if ours else essence(report["message"])
        said = "; ".join([said, *report.get("notes", ())])
        detail = said if report["kind"] == "Exception" else f"{report['kind']}: {said}"
        where = f" in {report['where']}" if report.get("where") else ""
        message = said if plain else f"failed{where}: {detail}"
    kind = None if report is None else report["kind"]
    return Failure(exit.process, len(exits), exit.code, name, kind, message, tail(log), log)


_NOTICE_SECONDS = 0.05  # how late, on a busy machine, an exit may be seen; reports bear their own time


def tail(path: Path, lines: int = 15) -> list[str]:
    """Return the last lines of a log, of a progress bar what was last visible; empty if there is no log."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - (1 << 16)))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    visible = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    return visible[-lines:] if text.strip() else []


def _remove(scratch: Path | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def _read_report(path: Path) -> dict[str, Any] | None:
    try:
        report = read_json(path)
        return report if {"time", "kind", "message"} <= report.keys() else None
    except (OSError, ValueError):
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal
