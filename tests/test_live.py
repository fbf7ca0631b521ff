"""The live view says what a run does, fits its terminal, and leaves it as it was."""

from __future__ import annotations

import contextlib
import io
import itertools

import pytest
from rich.console import Console

from kmgpu import live, screens
from kmgpu.errors import Interrupted

GPU = {
    "utilization_percent": 87, "memory_used_bytes": 10.2 * 2**30, "memory_total_bytes": 80 * 2**30,
    "temperature_celsius": 61, "power_watts": 312.4, "sm_clock_mhz": 1980, "memory_clock_mhz": 2619,
    "throttle_reasons": ["idle"],
}  # fmt: skip
UNKNOWN = dict.fromkeys(GPU)
METRICS = {"loss": 1.7754, "accuracy": 0.8065, "val_loss": 1.4941, "val_accuracy": 0.7694}
LAUNCH = {"event": "launch", "time": 0.0, "path": "/run", "job": {"backend": "torch", "devices": 2}}
START = {"event": "start", "time": 7.0, "steps_per_epoch": 23, "epochs": 20}


def window(step, time, **more):
    common = {"event": "window", "epoch": 0, "steps": 1, "samples": 64, "seconds": 0.02, "losses": [2.0]}
    return {**common, "step": step, "time": time, "compiling": step == 0, **more}


def monitor(processes=0, devices=(), load=2.1):
    said = [{"process": number, "pid": 1, "cpu_percent": 97.3, "rss_bytes": 421 * 2**20} for number in range(processes)]
    gpus = [{"device": number, **device} for number, device in enumerate(devices)]
    return {"event": "monitor", "time": 9.0, "load_average": load, "processes": said, "devices": gpus}


def shown(records, now=10.0, width=80):
    """The lines of the view after some records."""
    state = live.State()
    for record in records:
        state.add(record)
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(live.render(state, now, width))
    return console.export_text().rstrip("\n").splitlines()


def middle(*more):
    """Records of a run in its third epoch."""
    return [LAUNCH, START, window(0, 7.0), window(45, 8.0), {"event": "epoch", "metrics": METRICS}, *more]


def test_before_the_first_step_the_view_says_what_it_waits_for():
    assert shown([LAUNCH], now=3.4) == ["starting: torch on 2 devices, 3 s"]
    assert shown([LAUNCH, START], now=67.0)[-1] == "first step: torch on 2 devices, 1:07"


def test_the_last_checkpoint_and_peaks_of_memory_are_shown():
    used = monitor(1)
    used["processes"][0]["rss_bytes"] = 900 * 2**20
    kept = {"event": "checkpoint", "checkpoint": "step-00000046", "time": 5.0}
    lines = shown(middle(used, kept, monitor(1)), width=120)
    assert "checkpoint at step 46, 5 s ago" in "\n".join(lines)
    assert lines[-1].startswith("process 0: CPU 97 % 421 MiB (peak 900 MiB)")


def test_in_training_there_are_two_bars_and_the_numbers_of_the_last_windows():
    epoch, step, progress, metrics, processes = shown(middle(monitor(2)))
    assert epoch.split()[:2] == ["epoch", "3/20"] and epoch.endswith("10 %")
    assert step.split()[:2] == ["step", "0/23"] and step.endswith("0 %")
    assert progress == "loss 2.0000  3,200 samples/s  27 s left"
    assert metrics == "last epoch  loss 1.7754  accuracy 0.8065  val_loss 1.4941  val_accuracy 0.7694"
    assert processes == "process 0: CPU 97 % 421 MiB  process 1: CPU 97 % 421 MiB  load 2.1"


def test_the_loss_is_that_of_the_last_three_windows():
    later = [window(46 + number, 9.0, losses=[float(number)]) for number in range(10)]
    assert "loss 8.0000" in "\n".join(shown(middle(*later)))


def test_a_stream_has_no_bars_since_nobody_knows_its_length():
    stream = {**START, "steps_per_epoch": None}
    (progress,) = shown([LAUNCH, stream, window(0, 7.0), window(45, 8.0, epoch=1)])
    assert progress == "epoch 2/20  step 46  loss 2.0000  3,200 samples/s"


def test_steps_that_compile_are_in_no_speed():
    assert "samples/s" not in "".join(shown([LAUNCH, START, window(0, 7.0)]))


def test_the_input_stall_is_told_where_events_have_it():
    assert "waits for data 25 %" in "".join(shown(middle(window(46, 9.0, seconds=0.02, waiting_seconds=0.01))))
    assert "waits" not in "".join(shown(middle()))


def test_the_time_left_of_a_resumed_run_counts_from_where_it_resumed():
    said = shown([LAUNCH, START, window(200, 8.0), window(299, 9.0)], now=9.0)
    assert "  1 s left" in "\n".join(said), "160 of 460 steps are left, at 99 a second"


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_each_gpu_is_told_as_far_as_it_is_known(devices):
    said = " ".join(shown(middle(monitor(1, [GPU] * devices))))
    assert said.count("87 % 10.2/80.0 GiB 61 °C 312 W") == devices and ("1980 MHz" in said) == (devices == 1)
    assert "idle" not in said and "load" not in said
    assert shown(middle(monitor(1, [UNKNOWN] * devices)))[-1].endswith(f"GPU {devices - 1}")


def test_many_devices_are_summed_up():
    assert shown(middle(monitor(1, [GPU] * 16)))[-1] == "16 GPUs: 87 to 87 %, 163.2 GiB"
    assert shown(middle(monitor(16)))[-1] == "16 processes: CPU 1557 % 6.6 GiB  load 2.1"


@pytest.mark.parametrize(
    ("width", "devices"),
    list(itertools.product((40, 60, 80, 120), ([], [GPU], [{**GPU, "throttle_reasons": ["power cap"]}] * 8))),
)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(width, devices):
    lines = shown(middle(monitor(2, devices)), width=width)
    assert max(map(len, lines)) <= width
    assert width < 60 or "…" not in "".join(lines)


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 60 columns, as a text that is written."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    written = io.StringIO()
    written.isatty = lambda: True
    monkeypatch.setenv("COLUMNS", "60")
    return written


@contextlib.contextmanager
def chosen(terminal):
    with contextlib.redirect_stdout(terminal), screens.choose() as screen:
        yield screen


HIDE, SHOW, ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


@pytest.mark.parametrize("error", [None, Interrupted("stopped", 2), KeyboardInterrupt()])
def test_the_terminal_is_as_before_however_the_run_ends(terminal, error):
    try:
        with chosen(terminal) as screen:
            (view,) = screen.sinks
            for record in middle(monitor(2)):
                view._drawn = 0.0
                view(record)
            screen.show("a line that stays")
            if error is not None:
                raise error
    except (Interrupted, KeyboardInterrupt) as raised:
        assert raised is error
    text = terminal.getvalue()
    assert text.count(HIDE) == text.count(SHOW) == 1 and text.rindex(SHOW) > text.rindex("epoch")
    assert "a line that stays\n" in text and text.rindex(ERASE) > text.rindex("samples/s")


def test_long_lines_are_broken_between_fields_or_words(terminal):
    line = "epoch  1/20  loss 2.1756  accuracy 0.4544  val_loss 2.0113"
    with chosen(terminal) as screen:
        screen.show(f"{line}  val_accuracy 0.7389  0.7 s")
        screen.show("a note of more than sixty characters, which has words and no fields")
        screen.show("the run is in " + "x" * 90)
    text = terminal.getvalue()
    assert f"{line.removesuffix('  val_loss 2.0113')}\n    val_loss 2.0113  val_accuracy 0.7389  0.7 s\n" in text
    assert "which has words and no\n    fields\n" in text
    assert f"    {'x' * 90}\n" in text, "a path can be copied"


def test_no_color_is_respected(terminal, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    with chosen(terminal) as screen:
        for record in middle(monitor(2)):
            screen.sinks[0]._drawn = 0.0
            screen.sinks[0](record)
    assert "\x1b[38;" not in terminal.getvalue() and "\x1b[3" not in terminal.getvalue()


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TTY_INTERACTIVE": "0"}])
def test_a_terminal_that_cannot_move_gets_lines(terminal, monkeypatch, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with chosen(terminal) as screen:
        assert not screen.sinks
        screen.show("a line")
    assert terminal.getvalue() == "a line\n"


def test_a_pipe_gets_lines_though_colours_are_forced(terminal, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.isatty = lambda: False
    with chosen(terminal) as screen:
        assert not screen.sinks
