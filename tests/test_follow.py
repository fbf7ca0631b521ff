"""Records of a run come to its sinks in order, as they happen and again; a sink that fails ends nothing."""

from __future__ import annotations

import fake_runs
import pytest

from kmgpu import follow
from kmgpu.errors import KmgpuError
from kmgpu.rundir import EventWriter, RunDir

START = {
    "devices": ["cpu:0"], "device_kind": "cpu", "framework": "torch 2", "strategy": "ddp", "track": "same-math",
    "batch_size": 4, "per_device_batch": [4], "steps_per_epoch": 1, "rows": 1, "learning_rate": 0.1,
    "precision": {"dtype": "float32"}, "parameters": 1, "initial_weights": "0" * 64,
}  # fmt: skip


def epoch_lines(epochs: int, seconds: float, told: int | None = None) -> list[str]:
    """The lines of a run of many epochs, of which only ``told`` come before its end."""
    said: list[str] = []
    lines = follow.Lines(said.append)
    lines({"event": "start", "time": 0.0, **START, "epochs": epochs})
    for epoch in range(told or epochs):
        time = 1000.0 + epoch * seconds
        lines({"event": "epoch", "time": time, "epoch": epoch, "seconds": seconds, "metrics": {"loss": 1.0}})
    lines({"event": "end", "time": 2000.0})
    return [line for line in said if line.startswith("epoch ")]


@pytest.fixture
def rundir(tmp_path):
    return fake_runs.write(tmp_path / "run", fake_runs.job())


def test_events_are_handed_on_once_and_only_whole(tmp_path):
    rundir, seen = RunDir(tmp_path), []
    follower = follow.Follower(rundir, lambda line: None, [seen.append])
    follower.read()
    events = EventWriter(rundir.events_file)
    events.write("note", text="one")
    with open(rundir.events_file, "a") as file:
        file.write('{"event": "note", "ti')
    follower.read()
    follower.read()
    with open(rundir.events_file, "a") as file:
        file.write('me": 1.0, "text": "two"}\n')
    follower.read()
    assert [record["text"] for record in seen] == ["one", "two"]


def test_checkpoints_have_a_line_a_minute_and_the_last_one_has_one_at_the_end():
    lines: list[str] = []
    tell = follow.Lines(lines.append)
    for step, time in ((1, 100.0), (2, 101.0), (3, 159.0), (4, 160.0), (5, 161.0)):
        tell({"event": "checkpoint", "checkpoint": f"step-{step:08d}", "time": time})
    assert lines == ["checkpoint step-00000001", "checkpoint step-00000004"]
    tell({"event": "epoch", "epoch": 6, "time": 160.5, "seconds": 1.0, "metrics": {"loss": 0.5}})
    tell({"event": "outcome", "time": 162.0})
    assert lines[2:] == ["epoch 7/0  loss 0.5000  1.0 s", "checkpoint step-00000005"]


def test_a_sink_that_fails_is_left_out_and_the_others_go_on(rundir):
    def fails(record):
        calls.append(record)
        raise OSError("no space left\non the device")

    calls, seen, lines = [], [], []
    follower = follow.Follower(rundir, lines.append, [fails, seen.append])
    follower.read()
    assert len(calls) == 1 and seen[-1]["event"] == "end"
    assert lines[1:].count("note: the sink fails failed (OSError: no space left); the run goes on without it") == 1


def test_a_sink_that_fails_when_it_is_closed_is_told_too(rundir):
    class Sink:
        name = "broken"

        def __call__(self, record):
            pass

        def close(self):
            raise ValueError

    lines: list[str] = []
    follow.Follower(rundir, lines.append, [Sink()]).close()
    assert lines == ["note: the sink broken failed (ValueError); the run goes on without it"]


def test_nobody_reading_what_is_printed_is_not_a_fault_of_a_sink(rundir):
    def prints(record):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        follow.Follower(rundir, lambda line: None, [prints]).read()


def test_the_history_of_a_run_begins_with_its_launch_and_ends_with_its_outcome(rundir):
    monitor = EventWriter(rundir.monitor_file)
    monitor.write("monitor", load_average=1.0, processes=[], devices=[])
    kinds = [record["event"] for record in follow.history(rundir)]
    assert (kinds[0], kinds[1], kinds[-2:]) == ("launch", "start", ["monitor", "outcome"])
    launch, outcome = list(follow.history(rundir))[:: len(kinds) - 1]
    assert launch["path"] == str(rundir.path) and launch["job"] == rundir.job().to_json()
    assert (outcome["status"], outcome["epochs"]) == ("ok", 3)


def test_an_unfinished_run_is_replayed_as_far_as_it_came(rundir):
    rundir.outcome_file.unlink()
    assert [record["event"] for record in follow.history(rundir)][-1] == "end"


def test_a_sink_that_fails_in_a_replay_is_an_error(rundir):
    def fails(record):
        raise OSError("no space left")

    with pytest.raises(KmgpuError, match=r"the sink fails failed \(OSError: no space left\) on "):
        follow.replay(rundir, [fails])


def test_a_run_of_many_epochs_prints_some_of_them():
    assert len(epoch_lines(50, 1.0)) == 50
    quick = epoch_lines(10_000, 0.01)
    assert 50 <= len(quick) <= 52 and quick[0].startswith("epoch     1/10000") and quick[-1].startswith("epoch 10000/")


def test_a_slow_epoch_always_has_its_line():
    assert len(epoch_lines(1000, 60.0)) == 1000


def test_the_epoch_that_turned_out_to_be_the_last_has_its_line():
    assert epoch_lines(10_000, 0.01, told=77)[-1].startswith("epoch    77/")


def test_lines_count_in_english():
    (first, _, third, fourth) = follow.start_lines({"event": "start", **START, "epochs": 1})
    assert first.startswith("1 virtual CPU device:") and "1 step per epoch, 1 epoch, 1 sample" in third
    assert "1 parameter," in fourth


@pytest.mark.parametrize(
    ("value", "text"), [(0.0451, "0.0451"), (0.0, "0.0000"), (2.5e-7, "2.5e-07"), (float("nan"), "nan"), (3, "3")]
)
def test_a_small_loss_is_not_zero(value, text):
    assert follow.number(value) == text


@pytest.mark.parametrize("waiting, told", [(0.02, ""), (0.5, "  waits for data 25 %")])
def test_an_epoch_that_waited_for_its_data_says_so(waiting, told):
    event = {"event": "epoch", "epoch": 0, "seconds": 2.0, "waiting_seconds": waiting, "metrics": {"loss": 1.0}}
    (line,) = follow.lines(event, follow.Rate())
    assert line.endswith(f"2.0 s{told}")


def test_a_stream_of_unknown_length_is_told_as_one():
    text = "\n".join(follow.start_lines({**START, "epochs": 2, "steps_per_epoch": None, "rows": None}))
    assert "unknown steps per epoch, 2 epochs, batches of a stream" in text
