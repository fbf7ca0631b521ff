"""Launch: exits as they come, orderly stops, and the first cause of a failure. Fake workers, no framework."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from test_keeper import BOUND, FAMILY, SLEEP, living, wait_for

from kmgpu.errors import Interrupted, OutOfMemory, RunFailed, UsageError, essence
from kmgpu.launch import (
    Command,
    Exit,
    Launch,
    describe,
    environment_difference,
    first_failure,
    interrupts,
    local_environment,
    tail,
)
from kmgpu.rundir import RunDir, write_json

STUBBORN = FAMILY + "READY; time.sleep(600)"
SAYS_ASKED = FAMILY + "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'asked')); READY; time.sleep(600)"
REPORT = """
import json, sys, time, traceback
def report(error, kind="Exception", **more):
    name = f"{type(error).__name__}: " if kind == "Exception" else ""
    text = json.dumps({"time": time.time(), "kind": kind, "message": f"{name}{error}", "traceback": "", **more})
    open(ERROR, "w").write(text)
"""

# An orchestrator to send signals to: its worker's family ignores SIGTERM.
ORCHESTRATOR = """
import contextlib, json, os, signal, sys, time
from pathlib import Path
from kmgpu.errors import KmgpuError
from kmgpu.launch import Command, Launch, interrupts

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background of a script
folder, spec = Path(sys.argv[1]), json.loads(sys.argv[2])
commands = [
    Command(argv, dict(os.environ), folder / f"process-{process}.log") for process, argv in enumerate(spec["argvs"])
]
guard = interrupts() if spec["guarded"] else contextlib.nullcontext()
try:
    with guard, Launch.start(commands, grace=spec["grace"], scratch=folder / "scratch") as launch:
        if spec["forks"] and os.fork() == 0:
            (folder / "forked").write_text(str(os.getpid()))
            time.sleep(600)
        launch.wait()
except KmgpuError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.fixture
def rundir(tmp_path) -> RunDir:
    (tmp_path / "scratch").mkdir()
    return RunDir(tmp_path)


def command(rundir: RunDir, process: int, source: str) -> Command:
    """A worker that runs Python source, in which READY makes a file and ERROR is the name of its report."""
    source = source.replace("READY", f"open({str(ready_file(rundir, process))!r}, 'w').close()")
    source = source.replace("ERROR", repr(str(rundir.error_file(process))))
    environment = {"KMGPU_TEST": str(rundir.path)}
    return Command([sys.executable, "-I", "-S", "-c", source], environment, rundir.log_file(process))


def ready_file(rundir: RunDir, process: int) -> Path:
    return rundir.path / f"ready-{process}"


def wait_ready(rundir: RunDir, *processes: int) -> None:
    for process in processes:
        wait_for(ready_file(rundir, process).exists, f"worker {process} does not start")


def launch(rundir: RunDir, *sources: str, grace: float = 5.0) -> Launch:
    commands = [command(rundir, process, source) for process, source in enumerate(sources)]
    return Launch.start(commands, grace=grace, scratch=rundir.path / "scratch")


def failure_of(rundir: RunDir, *sources: str):
    """Run to the end; return the first failure."""
    with launch(rundir, *sources) as processes:
        processes.wait()
    assert_nothing_is_left(rundir)
    return first_failure(rundir, processes.exits)


def assert_nothing_is_left(rundir: RunDir) -> None:
    assert living(f"KMGPU_TEST={rundir.path}") == []
    assert not (rundir.path / "scratch").exists()


def test_exits_come_as_they_happen(rundir):
    with launch(rundir, "pass", SLEEP) as processes:
        assert processes.poll(0.0) == []
        (exit,) = processes.poll(BOUND)
        assert (exit.process, exit.code, exit.signal, exit.asked) == (0, 0, None, False)
        assert processes.running == (1,)
        assert processes.poll(0.05) == []
        assert os.path.exists(f"/proc/{processes.pids[1]}")
        processes.stop()
        (exit,) = processes.poll(BOUND)
        assert (exit.process, exit.code, exit.signal, exit.asked) == (1, None, signal.SIGTERM, True)
        assert processes.running == ()
        assert processes.poll(BOUND) == []
    assert_nothing_is_left(rundir)


def test_a_normal_end_leaves_no_daemon(rundir):
    assert failure_of(rundir, FAMILY, "pass") is None


def test_a_worker_that_raises_is_named_with_what_it_raised(rundir):
    raises = REPORT + "print('step 1', flush=True)\nreport(ValueError('bad row 5'))\nraise ValueError('bad row 5')"
    failure = failure_of(rundir, STUBBORN, raises)
    assert (failure.process, failure.code, failure.signal, failure.kind) == (1, 1, None, "Exception")
    error = failure.to_error()
    assert type(error) is RunFailed
    assert str(error) == f"process 1 of 2 failed: ValueError: bad row 5; its log: {rundir.log_file(1)}"


def test_a_reason_of_many_lines_is_told_in_one(rundir):
    said = "Exception encountered when calling Bad.call().\n\n\x1b[1mboom\x1b[0m\n\nArguments received: ..."
    record = {"time": 1.0, "kind": "ValueError", "message": said, "where": "mine.py, line 7"}
    write_json(rundir.error_file(0), record)
    error = first_failure(rundir, exits(1)).to_error()
    assert str(error) == (
        "process 0 of 1 failed in mine.py, line 7: ValueError: Exception encountered when calling Bad.call(): boom; "
        f"its log: {rundir.log_file(0)}"
    )
    write_json(rundir.error_file(0), {**record, "kind": "OutOfMemory", "message": "no memory\nat all"})
    assert str(first_failure(rundir, exits(1)).to_error()) == "no memory"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("one\ntwo", "one"),
        ("Graph execution error:\n\nDetected at node Add\nmore", "Graph execution error: Detected at node Add"),
        ("Exception encountered when calling A.call().\nCould not infer. Error:\n\nboom", "{}: boom"),
        ("only this:", "only this:"),
        ("", ""),
    ],
)
def test_the_essence_of_a_message_is_one_line(message, line):
    assert essence(message) == line.format("Exception encountered when calling A.call()")


def test_a_worker_that_was_killed_is_named_though_a_peer_reports_the_lost_connection(rundir):
    victim = "import os, signal, time; print('last words', flush=True); READY; time.sleep(600)"
    peer = REPORT + (
        "import os\n"
        f"while not os.path.exists({str(rundir.path / 'killed')!r}): time.sleep(0.01)\n"
        "report(RuntimeError('connection closed by peer'))\nsys.exit(1)"
    )
    with launch(rundir, peer, victim) as processes:
        wait_ready(rundir, 1)
        os.kill(processes.pids[1], signal.SIGKILL)
        (rundir.path / "killed").touch()
        processes.wait()
    assert_nothing_is_left(rundir)
    error = first_failure(rundir, processes.exits).to_error()
    assert str(error) == (f"process 1 of 2 was killed by SIGKILL; its log: {rundir.log_file(1)}\n    last words")


def test_a_worker_that_just_exits_is_named_with_its_code(rundir):
    failure = failure_of(rundir, STUBBORN, "import os; os._exit(3)")
    assert str(failure.to_error()) == f"process 1 of 2 ended with exit code 3; its log: {rundir.log_file(1)}"


def test_a_program_that_cannot_be_started_is_named(rundir):
    missing = Command(["/no/such/python"], {}, rundir.log_file(0))
    with Launch.start([missing]) as processes:
        processes.wait()
    assert "cannot start /no/such/python: " in str(first_failure(rundir, processes.exits).to_error())


def test_a_log_that_cannot_be_written_is_an_error_before_anything_starts(rundir):
    with pytest.raises(FileNotFoundError):
        Launch.start([Command(["true"], {}, rundir.path / "absent" / "log")], scratch=rundir.path / "scratch")
    assert_nothing_is_left(rundir)


def test_an_error_of_ours_comes_back_as_itself_and_without_the_log(rundir):
    failure = failure_of(rundir, REPORT + "report(ValueError('no setting x'), 'UsageError'); sys.exit(2)")
    error = failure.to_error()
    assert type(error) is UsageError
    assert str(error) == "no setting x"


def exits(*codes: int | None, asked: bool = False) -> list[Exit]:
    """Exits in order of time, 100 seconds apart; None is a SIGSEGV."""
    return [
        Exit(process, code, None if code is not None else signal.SIGSEGV, 100.0 * process, asked)
        for process, code in enumerate(codes)
    ]


def test_the_earliest_report_is_the_cause_whatever_the_order_of_exits(rundir):
    write_json(rundir.error_file(0), {"time": 9.0, "kind": "Exception", "message": "late"})
    write_json(rundir.error_file(1), {"time": 8.0, "kind": "OutOfMemory", "message": "early"})
    assert first_failure(rundir, exits(1, 1)).process == 1
    assert isinstance(first_failure(rundir, exits(1, 1)).to_error(), OutOfMemory)


def test_a_secondary_report_counts_only_without_another_cause(rundir):
    write_json(rundir.error_file(0), {"time": 0.0, "kind": "Exception", "message": "lost", "secondary": True})
    assert first_failure(rundir, exits(1, None)).signal == "SIGSEGV"
    assert first_failure(rundir, exits(1, 0)).process == 0


def test_a_process_that_was_asked_to_stop_is_no_cause_without_a_report(rundir):
    assert first_failure(rundir, exits(1, None, asked=True)) is None
    assert first_failure(rundir, exits(0, 0)) is None
    write_json(rundir.error_file(1), {"time": 0.0, "kind": "Exception", "message": "hung after its report"})
    assert first_failure(rundir, exits(1, None, asked=True)).process == 1


def test_a_report_that_was_cut_short_is_none(rundir):
    rundir.error_file(0).write_text('{"time": 1')
    assert first_failure(rundir, exits(5)).code == 5


def test_the_tail_of_a_log_is_what_was_last_visible(tmp_path):
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_bytes(b"\n".join(b"line %d" % line for line in range(20)) + b"\n10 %\r50 %\r100 %\r\nlast \xff\n\n")
    assert tail(log, 3) == ["line 19", "100 %", "last \N{REPLACEMENT CHARACTER}"]
    assert len(tail(log)) == 15


def test_an_exception_in_the_orchestrator_leaves_nothing(rundir):
    with pytest.raises(ZeroDivisionError), launch(rundir, STUBBORN, STUBBORN, grace=0.2):
        wait_ready(rundir, 0, 1)
        1 / 0  # noqa: B018
    assert_nothing_is_left(rundir)


def test_a_launch_that_is_dropped_without_close_leaves_nothing(rundir):
    processes = launch(rundir, STUBBORN, grace=0.2)
    wait_ready(rundir, 0)
    keeper = processes._keeper
    keeper.stdin.close()  # what the collection of the object does
    keeper.wait(BOUND)
    assert_nothing_is_left(rundir)
    processes.close()
    processes.close()


def test_the_death_of_the_keeper_is_a_failure_that_leaves_no_worker(rundir):
    with launch(rundir, "READY; " + SLEEP) as processes:
        wait_ready(rundir, 0)
        processes._keeper.kill()
        with pytest.raises(RunFailed, match="the keeper of the processes stopped"):
            processes.wait()
    wait_for(lambda: not living(f"KMGPU_TEST={rundir.path}"), "a worker outlives the keeper")
    assert_nothing_is_left(rundir)


def test_two_launches_at_once_do_not_touch_each_other(tmp_path):
    first, second = RunDir(tmp_path / "first"), RunDir(tmp_path / "second")
    for rundir in (first, second):
        (rundir.path / "scratch").mkdir(parents=True)
    with launch(first, STUBBORN) as survivor:
        with launch(second, STUBBORN, "raise SystemExit(3)") as failing:
            wait_ready(first, 0)
            failing.wait()
        assert_nothing_is_left(second)
        assert survivor.poll(0.05) == [] and survivor.running == (0,)
        assert len(living(f"KMGPU_TEST={first.path}")) == 3
        survivor.stop(signal.SIGKILL)
        assert survivor.wait()[0].signal == signal.SIGKILL
    assert_nothing_is_left(first)


def test_processes_outlive_the_thread_that_started_them(rundir):
    started = []
    thread = threading.Thread(target=lambda: started.append(launch(rundir, "READY; " + SLEEP)))
    with_handlers = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join(BOUND)
    with started[0] as processes:
        wait_ready(rundir, 0)
        assert processes.poll(0.2) == [] and processes.running == (0,)
    assert signal.getsignal(signal.SIGTERM) == with_handlers
    assert_nothing_is_left(rundir)


@pytest.fixture
def orchestrator(rundir):
    """Start ORCHESTRATOR with a worker for each source; return when all are there."""
    started = []

    def start(*sources: str, grace: float, guarded: bool = True, forks: bool = False) -> subprocess.Popen[str]:
        argvs = [command(rundir, process, source).argv for process, source in enumerate(sources)]
        spec = {"argvs": argvs, "grace": grace, "guarded": guarded, "forks": forks}
        process = subprocess.Popen(
            [sys.executable, "-c", ORCHESTRATOR, str(rundir.path), json.dumps(spec)],
            env={"KMGPU_TEST": str(rundir.path), "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        wait_ready(rundir, *range(len(sources)))
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_orchestrator_stops_in_order_and_leaves_nothing(rundir, orchestrator, number):
    process = orchestrator(STUBBORN, STUBBORN, grace=0.3)
    process.send_signal(number)
    said, complaints = process.communicate(timeout=BOUND)
    assert said == f"the run was stopped by {number.name}\n"
    assert complaints == ""
    assert process.returncode == 128 + number
    assert_nothing_is_left(rundir)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_second_interrupt_does_not_wait_for_the_grace(rundir, orchestrator, guarded):
    process = orchestrator(SAYS_ASKED, STUBBORN, grace=600.0, guarded=guarded)
    process.send_signal(signal.SIGINT)
    wait_for(lambda: rundir.log_file(0).read_text() == "asked", "the worker was not asked to stop")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=BOUND)
    assert process.returncode == (130 if guarded else -signal.SIGINT)
    assert_nothing_is_left(rundir)


@pytest.mark.parametrize("forks", [False, True])
def test_a_killed_orchestrator_leaves_nothing(rundir, orchestrator, forks):
    process = orchestrator(STUBBORN, STUBBORN, grace=0.3, forks=forks)
    forked = []
    if forks:  # a child that holds the life pipe open
        wait_for(lambda: (rundir.path / "forked").exists(), "no fork")
        forked = [int((rundir.path / "forked").read_text())]
    process.kill()
    try:
        wait_for(lambda: living(f"KMGPU_TEST={rundir.path}") == forked, "something is left")
    finally:
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=BOUND)
    assert not (rundir.path / "scratch").exists()


def test_interrupts_restores_the_handlers_and_leaves_them_alone_in_a_thread():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    inside = []

    def look() -> None:
        with interrupts():
            inside.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(BOUND)
    assert inside == [before]
    with pytest.raises(Interrupted) as caught, interrupts():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(BOUND)
    assert caught.value.exit_code == 143
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_variables_of_other_launchers_do_not_reach_a_local_worker():
    names = "SLURM_PROCID RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR TORCHELASTIC_RUN_ID TF_CONFIG OMPI_COMM_WORLD_RANK"
    base = {name: "7" for name in [*names.split(), "PMI_RANK", "PMIX_RANK", "PATH", "MY_RANK"]}
    assert local_environment(base, {"RANK": "0"}) == {"PATH": "7", "MY_RANK": "7", "RANK": "0"}


def test_a_described_command_runs_by_hand():
    base = {"PATH": os.environ["PATH"], "GONE": "1", "SAME": "1"}
    environment = {"PATH": os.environ["PATH"], "SAME": "1", "NEW": "it's $HOME"}
    argv = [sys.executable, "-I", "-S", "-c", "import os; print(os.environ['NEW'], 'GONE' in os.environ)"]
    difference = environment_difference(base, environment)
    assert difference == {"GONE": None, "NEW": "it's $HOME"}
    line = describe(argv, difference)
    assert subprocess.run(line, shell=True, env=base, capture_output=True, text=True).stdout == "it's $HOME False\n"
    assert describe(["python", "-m", "a b"], {}) == "python -m 'a b'"
