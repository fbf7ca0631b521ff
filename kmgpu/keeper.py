"""Run all processes of one run and leave none of them behind: ``python -I -S keeper.py``, standard library only.

Whatever dies first, a worker or the orchestrator, by whichever signal, the keeper stops the rest, kills every
descendant that is left, and removes the run's scratch directory.

Standard input is the life pipe. Its first line is the spec, as JSON: {"commands": [{"argv", "environment", "log"}],
"grace", "grace_after_failure", "scratch"}. Later, "T" asks to stop (SIGTERM, then SIGKILL after ``grace`` seconds), "K"
to kill at once, and its end says that the orchestrator is gone.

Standard output says what happens, one JSON object per line: {"event": "start", "process", "pid", "time"} and
{"event": "exit", "process", "code", "signal", "asked", "time"}; ``asked`` is true if the keeper had asked it to stop.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
LIFE_PIPE = 0
GIVE_UP_SECONDS = 10.0  # a process in uninterruptible sleep, or of another user, cannot be killed

_libc = ctypes.CDLL(None)


def main() -> None:
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the run become children of the keeper, daemons too
    wake = _wake_on_signals()
    line, requests = _read_line()
    if not line:
        return
    spec = json.loads(line)
    keeper = Keeper(spec["grace"], spec["grace_after_failure"])
    try:
        keeper.start(spec["commands"])
        if requests:
            keeper.obey(requests)
        keeper.watch(wake)
    finally:
        keeper.sweep(wake)
        if spec["scratch"] is not None:
            import shutil  # here because it would double the time to start

            shutil.rmtree(spec["scratch"], ignore_errors=True)


class Keeper:
    """The processes of one run, from their start until none is left."""

    def __init__(self, grace: float, grace_after_failure: float) -> None:
        self.grace = grace
        self.grace_after_failure = grace_after_failure
        self.running: dict[int, int] = {}  # process id -> process of the run
        self.failed = False
        self.deadline: float | None = None  # when to kill; set as soon as the processes were asked to stop

    def start(self, commands: list[dict[str, Any]]) -> None:
        for process, command in enumerate(commands):
            pid = _start(command)
            self.running[pid] = process
            _say(event="start", process=process, pid=pid, time=time.time())

    def watch(self, wake: int) -> None:
        """Return when all processes have ended, or when those that were asked to stop have had their time."""
        events = select.poll()
        for descriptor in (wake, LIFE_PIPE, *_orchestrator()):
            events.register(descriptor, select.POLLIN)
        while self.running and (self.deadline is None or time.monotonic() < self.deadline):
            timeout = None if self.deadline is None else max(0.0, self.deadline - time.monotonic()) * 1000
            for descriptor, _ in events.poll(timeout):
                if descriptor == wake:
                    if any(number in STOP_SIGNALS for number in os.read(wake, 512)):
                        self.stop(self.grace)
                    continue
                requests = os.read(LIFE_PIPE, 512) if descriptor == LIFE_PIPE else b""
                if not requests:
                    events.unregister(descriptor)
                self.obey(requests)
            self.reap()
            if self.failed:
                self.stop(self.grace_after_failure)

    def obey(self, requests: bytes) -> None:
        """Do what came through the life pipe; nothing came if the orchestrator is gone."""
        self.stop(self.grace)
        if b"K" in requests:
            self.deadline = time.monotonic()

    def stop(self, grace: float) -> None:
        """Ask the processes to stop. The first reason to stop sets the time that they have."""
        if self.deadline is not None:
            return
        self.reap()  # so that a process that ended by itself does not pass for one that was stopped
        self.deadline = time.monotonic() + grace
        for pid in self.running:  # not their groups: a worker may need its data-loader children to end in order
            _kill(pid, signal.SIGTERM)

    def reap(self) -> bool:
        """Report the processes that have ended; return True if the keeper has no children at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            if pid not in self.running:
                continue  # a descendant whose own parent ended before
            code = os.waitstatus_to_exitcode(status)
            self.failed = self.failed or code != 0
            _say(
                event="exit",
                process=self.running.pop(pid),
                code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                asked=self.deadline is not None,
                time=time.time(),
            )

    def sweep(self, wake: int) -> None:
        """Kill until there are no children: with each one that dies, its own children become the keeper's."""
        give_up = time.monotonic() + GIVE_UP_SECONDS
        while not self.reap():
            self.deadline = time.monotonic()
            children = _children()
            if time.monotonic() > give_up:
                print(f"kmgpu: these processes could not be killed: {children}", file=sys.stderr)
                return
            for pid in children:
                _kill(pid, signal.SIGKILL)
            if select.select([wake], [], [], 0.05)[0]:
                os.read(wake, 512)


def _start(command: dict[str, Any]) -> int:
    """Start one process in a session of its own, killed if the keeper should be; return its process id."""
    keeper = os.getpid()
    # A signal that reached the child while it still has the keeper's handlers would wake the keeper instead.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        return pid
    try:
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != keeper:  # it died before prctl
            os._exit(127)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():  # Python ignores SIGPIPE, nohup SIGHUP; a program inherits that
            with contextlib.suppress(OSError):  # SIGKILL, SIGSTOP
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execvpe(command["argv"][0], command["argv"], command["environment"])
    except BaseException as error:
        os.write(2, f"cannot start {command['argv'][0]}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _say(**event: Any) -> None:
    with contextlib.suppress(OSError):  # nobody reads once the orchestrator is gone
        os.write(1, (json.dumps(event) + "\n").encode())


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _wake_on_signals() -> int:
    """Return a descriptor from which the number of each signal can be read, one byte each."""
    read_end, write_end = os.pipe()
    for descriptor in (read_end, write_end):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (*STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the thread that started the keeper may have blocked some
    return read_end


def _read_line() -> tuple[bytes, bytes]:
    """Return the first line of the life pipe, empty if it ended before, and what has come after it."""
    received = b""
    while b"\n" not in received:
        chunk = os.read(LIFE_PIPE, 1 << 16)
        if not chunk:
            return b"", b""
        received += chunk
    line, _, rest = received.partition(b"\n")
    return line, rest


def _orchestrator() -> list[int]:
    """Return a descriptor that becomes readable when the orchestrator dies, if the kernel has pidfds (Linux 5.3).

    The life pipe says the same, unless a child that the orchestrator forked without exec holds its write end open.
    """
    try:
        return [os.pidfd_open(os.getppid())]
    except (AttributeError, OSError):
        return []


def _children() -> list[int]:
    """Return the process ids of the keeper's children (/proc/PID/task/*/children is not in every kernel)."""
    keeper, children = os.getpid(), []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:
            continue  # it has just ended
        if int(stat.rpartition(b")")[2].split()[1]) == keeper:
            children.append(int(name))
    return children


if __name__ == "__main__":
    main()
