"""What is seen of a real run while it goes on is what a replay of its directory shows later."""

from __future__ import annotations

import cells
import pytest
from test_sinks import curves, files

from kmgpu import records
from kmgpu.rundir import RunDir

pytestmark = pytest.mark.workers


def test_a_run_is_handed_to_json_and_sinks_and_a_replay_gives_the_same(tmp_path):
    pytest.importorskip("tensorboard", reason="the sink tensorboard needs it: pip install 'kmgpu[tensorboard]'")
    sinks = ("--sink", "csv", "--sink", "tensorboard")
    answer = cells.kmgpu(
        "train", str(cells.RECIPES / "r0.py"), "--backend", "torch", "--devices", "2", "--device-kind", "cpu",
        "--json", *sinks, "--out", "run", folder=tmp_path,
    )  # fmt: skip
    assert (answer.code, answer.err) == (0, "")
    rundir = RunDir(tmp_path / "run")
    first, *seen, last = [records.loads(line) for line in answer.out.splitlines()]
    assert (first["event"], first["path"], first["job"]) == ("launch", str(rundir.path), rundir.job().to_json())
    assert (last["event"], last["status"], last["reason"]) == ("outcome", "ok", None)
    assert [record for record in seen if record["event"] != "monitor"] == rundir.events()
    monitored = rundir.monitored()
    assert [record for record in seen if record["event"] == "monitor"] == monitored and monitored
    for record in monitored:
        assert [process["process"] for process in record["processes"]] == [0, 1] and record["devices"] == []
    assert sum(process["cpu_percent"] for record in monitored for process in record["processes"]) > 0

    tables, points = files(rundir.path / "csv"), curves(rundir.path / "tensorboard")
    assert set(tables) == {"steps.csv", "epochs.csv", "monitor.csv"} and "epoch/loss" in points
    assert cells.kmgpu("replay", "run", *sinks, folder=tmp_path).code == 0
    assert files(rundir.path / "csv") == tables and curves(rundir.path / "tensorboard") == points
