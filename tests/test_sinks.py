"""Sinks write with their tools' own libraries; what they wrote is read back, and a replay writes the same."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import fake_runs
import pytest

from kmgpu import follow, records, sinks
from kmgpu.errors import MissingEnvironment, UsageError
from kmgpu.rundir import RunDir, write_json

DEVICE = {
    "device": 0, "uuid": "GPU-1", "utilization_percent": 87, "memory_used_bytes": 2**30, "memory_total_bytes": 2**34,
    "temperature_celsius": None, "power_watts": 300.5, "sm_clock_mhz": 1980, "memory_clock_mhz": 2619,
    "throttle_reasons": ["power cap", "idle"], "pids": [7],
}  # fmt: skip
PROCESS = {"process": 0, "pid": 7, "cpu_percent": 97.5, "rss_bytes": 2**29}


@pytest.fixture
def rundir(tmp_path, monkeypatch) -> RunDir:
    """A run of 3 epochs of 23 steps with three records of the monitor; the last epoch's loss is not a number."""
    monkeypatch.chdir(tmp_path)
    job = fake_runs.job(settings={"learning_rate": 0.1})
    rundir = fake_runs.write(tmp_path / "runs" / "first", job)
    events = rundir.events()
    events[-2]["metrics"]["loss"] = math.nan
    for number, event in enumerate(events):
        event["time"] = 1000.0 + number
    rundir.events_file.write_text("")
    rewrite(rundir.events_file, events)
    monitored = {"event": "monitor", "load_average": 1.5, "processes": [PROCESS], "devices": [DEVICE]}
    rewrite(rundir.monitor_file, [{**monitored, "time": 1000.5 + number} for number in range(3)])
    write_json(rundir.outcome_file, {**rundir.outcome(), "launched_time": 999.0, "ended": 1010.0})
    return rundir


def rewrite(path: Path, events: list) -> None:
    path.write_text("".join(records.dumps(event) + "\n" for event in events))


def as_it_comes(rundir: RunDir, sink: follow.Sink) -> None:
    """Hand a run to a sink as its training does: the monitor's records when they are there, not when they are due."""
    follower = follow.Follower(rundir, lambda line: None, [sink])
    history = list(follow.history(rundir))
    follower.hand(history[0])
    for record in rundir.monitored():
        follower.hand(record)
    follower.read()
    follower.hand(history[-1])
    follower.close()
    assert follower._sinks == []


def table(path: Path) -> list[list[str]]:
    with open(path, newline="") as file:
        return list(csv.reader(file))


def test_csv_has_a_row_for_each_step_epoch_and_second(rundir):
    follow.replay(rundir, sinks.make(["csv"]))
    steps, epochs, monitor = (table(rundir.path / "csv" / f"{name}.csv") for name in ("steps", "epochs", "monitor"))
    assert steps[0] == ["epoch", "step", "loss"] and len(steps) == 1 + 3 * 23
    assert steps[1] == ["0", "0", "1.0"] and steps[-1] == ["2", "68", "0.3333333333333333"]
    assert epochs[0] == ["epoch", "seconds", "evaluation_seconds", "loss", "accuracy", "val_loss", "val_accuracy"]
    assert epochs[1] == ["0", "1.0", "0.1", "1.0", "0.9", "1.2", "0.9717"] and epochs[3][3] == "nan"
    process, device = (dict(zip(monitor[0], row, strict=True)) for row in monitor[1:3])
    assert len(monitor) == 1 + 3 * 2
    assert (process["kind"], process["cpu_percent"], process["power_watts"]) == ("process", "97.5", "")
    assert (device["kind"], device["power_watts"], device["throttle_reasons"]) == ("device", "300.5", "power cap idle")


def test_csv_writes_new_metrics_under_a_header_of_their_own(tmp_path):
    sink = sinks.make(["csv"])[0]
    sink({"event": "launch", "path": str(tmp_path)})
    common = {"event": "epoch", "seconds": 1.0, "evaluation_seconds": 0.0}
    sink({**common, "epoch": 0, "metrics": {"loss": 1.0}})
    sink({**common, "epoch": 1, "metrics": {"loss": 0.5, "lr": 0.1}})
    sink.close()
    assert [row[-1] for row in table(tmp_path / "csv" / "epochs.csv")] == ["loss", "1.0", "lr", "0.1"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_replay_writes_the_same_csv_as_the_training(rundir):
    as_it_comes(rundir, sinks.make(["csv"])[0])
    written = files(rundir.path / "csv")
    follow.replay(rundir, sinks.make(["csv"]))
    assert len(written) == 3 and files(rundir.path / "csv") == written


def curves(folder: Path) -> dict[str, list[tuple[float, int, float]]]:
    """The points of an event folder, as TensorBoard itself reads them: (time, step, value) of each tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    read = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    return {
        tag: [
            (event.wall_time, event.step, float(tensor_util.make_ndarray(event.tensor_proto)))
            for event in read.Tensors(tag)
        ]
        for tag in read.Tags()["tensors"]
    }


def test_tensorboard_reads_back_each_point(rundir):
    pytest.importorskip("tensorboard", reason="the sink tensorboard needs it: pip install 'kmgpu[tensorboard]'")
    follow.replay(rundir, sinks.make(["tensorboard"]))
    found = curves(rundir.path / "tensorboard")
    assert found["step/loss"] == [(1001.0, 23, 1.0), (1003.0, 46, 0.5), (1005.0, 69, pytest.approx(1 / 3))]
    assert [step for _, step, _ in found["step/samples_per_second"]] == [46, 69], "the first window compiles"
    assert found["epoch/accuracy"] == [(1002.0 + 2 * epoch, epoch + 1, pytest.approx(0.9)) for epoch in range(3)]
    assert math.isnan(found["epoch/loss"][2][2])
    assert found["seconds/process_0/cpu_percent"] == [(1000.5 + second, second, 97.5) for second in range(3)]
    assert found["seconds/device_0/power_watts"][0] == (1000.5, 0, 300.5)
    assert "seconds/device_0/temperature_celsius" not in found, "null is no number"


def test_a_replay_gives_tensorboard_the_points_of_the_training_and_no_second_set(rundir):
    pytest.importorskip("tensorboard", reason="the sink tensorboard needs it: pip install 'kmgpu[tensorboard]'")
    as_it_comes(rundir, sinks.make(["tensorboard"])[0])
    trained = curves(rundir.path / "tensorboard")
    follow.replay(rundir, sinks.make(["tensorboard"]))
    replayed = curves(rundir.path / "tensorboard")
    assert repr(replayed) == repr(trained) and len(trained) > 10  # repr: NaN is not equal to itself


def test_tensorboard_is_written_without_tensorflow(tmp_path):
    pytest.importorskip("tensorboard", reason="the sink tensorboard needs it: pip install 'kmgpu[tensorboard]'")
    program = (
        "import sys\nfrom kmgpu import sinks\n(sink,) = sinks.make(['tensorboard'])\n"
        f"sink({{'event': 'launch', 'path': {str(tmp_path)!r}, 'time': 0.0}})\n"
        "sink({'event': 'epoch', 'time': 1.0, 'epoch': 0, 'metrics': {'loss': 1.0}})\nsink.close()\n"
        "print({'tensorflow', 'torch', 'jax', 'keras'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n" and curves(tmp_path / "tensorboard")["epoch/loss"] == [(1.0, 1, 1.0)]


def test_mlflow_reads_back_metrics_and_parameters_of_one_run(rundir, monkeypatch):
    pytest.importorskip("mlflow", reason="the sink mlflow needs it: pip install 'kmgpu[mlflow]'")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (rundir.path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    as_it_comes(rundir, sinks.make(["mlflow"])[0])
    follow.replay(rundir, sinks.make(["mlflow"]))
    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("digits_cnn").experiment_id])
    assert (run.info.status, run.info.run_name, run.info.start_time) == ("FINISHED", "first", 999_000)
    assert run.data.params["settings.learning_rate"] == "0.1" and run.data.params["backend"] == "torch"
    losses = client.get_metric_history(run.info.run_id, "step/loss")
    assert [(metric.step, metric.timestamp) for metric in losses] == [(23, 1001_000), (46, 1003_000), (69, 1005_000)]
    assert run.data.metrics["epoch/val_accuracy"] == 0.9717
    assert run.data.metrics["seconds/device_0/power_watts"] == 300.5


def test_wandb_reads_back_an_offline_run(rundir, monkeypatch):
    pytest.importorskip("wandb", reason="the sink wandb needs it: pip install 'kmgpu[wandb]'")
    from wandb.proto.wandb_internal_pb2 import Record

    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    follow.replay(rundir, sinks.make(["wandb"]))
    (written,) = Path().glob("wandb/offline-run-*/run-*.wandb")
    rows = []
    for data in leveldb_log(written.read_bytes()):
        items = Record.FromString(data).history.item
        rows += [{(item.key or item.nested_key[0]): json.loads(item.value_json) for item in items}] if items else []
    losses = [(row["step"], row["step/loss"]) for row in rows if "step/loss" in row]
    assert losses == [(23, 1.0), (46, 0.5), (69, pytest.approx(1 / 3))]
    assert [row["epoch"] for row in rows if "epoch/accuracy" in row] == [1, 2, 3]
    assert [row["seconds/device_0/power_watts"] for row in rows if "seconds" in row] == [300.5] * 3


def leveldb_log(content: bytes):
    """Yield the records of a .wandb file: 7 bytes of its own, then blocks of 32 KiB (LevelDB, doc/log_format.md)."""
    position, record = 7, b""
    while position + 7 <= len(content):
        if 2**15 - position % 2**15 < 7:
            position += 2**15 - position % 2**15
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        record += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_a_function_is_a_sink_and_a_name_is_made_into_one():
    assert sinks.make([print]) == [print]
    assert sinks.make(["console", "csv"])[1].name == "csv"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (["csw"], "no sink 'csw' (did you mean 'csv'?); there are console, csv, tensorboard, mlflow, wandb"),
        ("csv", "sinks is 'csv'; it is a list of names or functions, such as ['csv', 'tensorboard']"),
        ([3], "no sink 3; there are"),
    ],
)
def test_what_is_no_sink_is_one_sentence(wanted, said):
    with pytest.raises(UsageError) as raised:
        sinks.make(wanted)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_extra_is_one_sentence_with_the_command(monkeypatch, name):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(MissingEnvironment) as raised:
        sinks.make([name])
    said = f"the sink {name} needs {name}, which is not installed: pip install 'kmgpu[{name}]'"
    assert str(raised.value) == said
