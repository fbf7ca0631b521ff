"""The keeper by itself: whatever dies, nothing of the run is left. Fake workers, no framework."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KEEPER = Path(__file__).parents[1] / "kmgpu" / "keeper.py"
BOUND = 10.0  # seconds; generous, for a busy machine

# A worker that is hard to get rid of: it ignores SIGTERM, has a child, and a daemon that left session and parent.
FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    time.sleep(600)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
"""
SLEEP = "import time; time.sleep(600)"


class Kept:
    """A keeper with its workers: each an argv, or Python source in which READY makes the file ``ready-PROCESS``."""

    def __init__(self, folder: Path, *sources: str | list[str], grace: float = 5.0, grace_after_failure: float = 0.3):
        self.folder = folder
        self.token = f"KMGPU_TEST={folder}"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        (self.scratch / "file").write_text("private")
        spec = {
            "commands": [
                {
                    "argv": self.argv(process, source),
                    "environment": {"KMGPU_TEST": str(folder)},
                    "log": str(folder / f"process-{process}.log"),
                }
                for process, source in enumerate(sources)
            ],
            "grace": grace,
            "grace_after_failure": grace_after_failure,
            "scratch": str(self.scratch),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        self.write(json.dumps(spec).encode() + b"\n")

    def argv(self, process: int, source: str | list[str]) -> list[str]:
        if isinstance(source, list):
            return source
        ready = f"open({str(self.folder / f'ready-{process}')!r}, 'w').close()"
        return [sys.executable, "-I", "-S", "-c", source.replace("READY", ready)]

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def event(self) -> dict:
        """The next line that the keeper says."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([self.process.stdout], [], [], BOUND)[0], "the keeper says nothing"
            byte = self.process.stdout.read(1)
            assert byte, "the keeper has ended"
            line += byte
        return json.loads(line)

    def events(self) -> list[dict]:
        """All that the keeper still says, until its end."""
        assert self.process.stdout is not None
        self.process.wait(BOUND)
        return [json.loads(line) for line in self.process.stdout.read().splitlines()]

    def ready(self, process: int) -> None:
        wait_for(lambda: (self.folder / f"ready-{process}").exists(), f"worker {process} does not start")

    def assert_nothing_is_left(self) -> None:
        self.process.wait(BOUND)
        assert living(self.token) == []
        assert not self.scratch.exists()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
        self.process.wait(3 * BOUND)


@pytest.fixture
def keep(tmp_path):
    kept = []

    def start(*sources: str | list[str], **options: float) -> Kept:
        kept.append(Kept(tmp_path, *sources, **options))
        return kept[-1]

    yield start
    for each in kept:
        each.close()


def living(token: str) -> list[int]:
    """Process ids of all that have the token in their environment and are no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                has_token = token.encode() in (entry / "environ").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if has_token and state not in "ZX":
                found.append(int(entry.name))
    return found


def wait_for(condition, complaint: str) -> None:
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, complaint
        time.sleep(0.01)


def test_starts_and_exits_are_reported_with_their_processes(keep):
    kept = keep("print('hello')", "import sys; print('ouch', file=sys.stderr)")
    events = kept.events()
    starts = [event for event in events if event["event"] == "start"]
    exits = sorted((event for event in events if event["event"] == "exit"), key=lambda event: event["process"])
    assert [event["process"] for event in starts] == [0, 1]
    assert [(event["process"], event["code"], event["signal"], event["asked"]) for event in exits] == [
        (0, 0, None, False),
        (1, 0, None, False),
    ]
    assert all(abs(event["time"] - time.time()) < BOUND for event in events)
    assert (kept.folder / "process-0.log").read_text() == "hello\n"
    assert (kept.folder / "process-1.log").read_text() == "ouch\n"
    assert kept.process.returncode == 0
    kept.assert_nothing_is_left()


def test_an_exit_is_reported_while_others_run(keep):
    kept = keep("pass", SLEEP)
    events = [kept.event() for _ in range(3)]
    assert (events[-1]["event"], events[-1]["process"], events[-1]["code"]) == ("exit", 0, 0)
    assert kept.process.poll() is None
    kept.write(b"T")
    assert kept.event()["process"] == 1
    kept.assert_nothing_is_left()


def test_a_worker_that_fails_ends_the_others_in_spite_of_sigterm(keep):
    kept = keep("READY; " + SLEEP, FAMILY + "READY; time.sleep(600)", grace=600.0)
    kept.ready(0)
    kept.ready(1)
    pids = [kept.event()["pid"] for _ in range(2)]
    os.kill(pids[0], signal.SIGKILL)
    exits = kept.events()
    assert [(event["process"], event["signal"], event["asked"]) for event in exits] == [(0, 9, False), (1, 9, True)]
    kept.assert_nothing_is_left()


def test_a_worker_with_an_exit_code_ends_the_others(keep):
    kept = keep(SLEEP, "raise SystemExit(3)")
    exits = [event for event in kept.events() if event["event"] == "exit"]
    assert [(event["process"], event["code"], event["asked"]) for event in exits] == [(1, 3, False), (0, None, True)]
    assert exits[1]["signal"] == signal.SIGTERM
    kept.assert_nothing_is_left()


def test_a_program_that_does_not_exist_ends_with_127_and_says_so(keep):
    kept = keep(["/no/such/program"])
    assert kept.events()[-1]["code"] == 127
    assert "cannot start /no/such/program" in (kept.folder / "process-0.log").read_text()
    kept.assert_nothing_is_left()


def test_the_end_of_all_workers_ends_their_children_and_daemons(keep):
    kept = keep(FAMILY)
    assert kept.events()[-1]["code"] == 0
    kept.assert_nothing_is_left()


def test_a_request_to_stop_lets_a_worker_finish_its_work(keep):
    source = (
        "import signal, sys, time\n"
        "def finish(*_): time.sleep(0.3); print('saved', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, finish)\nREADY\ntime.sleep(600)"
    )
    kept = keep(source, FAMILY + "READY; time.sleep(600)", grace=1.0)
    kept.ready(0)
    kept.ready(1)
    kept.write(b"T")
    exits = [event for event in kept.events() if event["event"] == "exit"]
    assert [(event["process"], event["code"], event["signal"]) for event in exits] == [(0, 0, None), (1, None, 9)]
    assert (kept.folder / "process-0.log").read_text() == "saved\n"
    kept.assert_nothing_is_left()


def test_a_request_to_kill_does_not_wait_for_the_grace(keep):
    kept = keep(FAMILY + "READY; time.sleep(600)", grace=600.0)
    kept.ready(0)
    kept.write(b"T")
    kept.write(b"K")
    kept.assert_nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_the_keeper_stops_the_workers(keep, number):
    kept = keep(FAMILY + "READY; time.sleep(600)", grace=0.3)
    kept.ready(0)
    kept.process.send_signal(number)
    kept.assert_nothing_is_left()


def test_the_end_of_the_life_pipe_stops_the_workers_though_nobody_listens(keep):
    kept = keep(FAMILY + "READY; time.sleep(600)", grace=0.3)
    kept.ready(0)
    kept.process.stdout.close()
    kept.process.stdin.close()
    kept.assert_nothing_is_left()


def test_the_death_of_the_keeper_takes_the_workers_along(keep):
    kept = keep("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); READY; " + SLEEP)
    kept.ready(0)
    kept.process.kill()
    wait_for(lambda: living(kept.token) == [], "a worker outlives the keeper")


def test_workers_have_default_signals_and_no_descriptors_of_the_keeper(keep):
    kept = keep(["/bin/sh", "-c", "grep Sig /proc/self/status; ls -l /proc/self/fd"])
    kept.events()
    log = (kept.folder / "process-0.log").read_text()
    masks = {line.split()[0]: int(line.split()[1], 16) for line in log.splitlines() if line[:6] in ("SigIgn", "SigBlk")}
    standard = (1 << 31) - 1  # signals 1 to 31; 32 and 33 are the C library's own, and nobody can set them
    assert masks["SigIgn:"] & standard == masks["SigBlk:"] & standard == 0, log
    assert "0 -> /dev/null" in log
    assert "pipe:" not in log and "socket:" not in log, log
