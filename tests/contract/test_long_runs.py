"""A long run as a user has it: the commands of docs/long-runs.md, and a run that is killed and goes on."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import cells
import numpy as np
import pytest

from kmgpu import checkpoints
from kmgpu.data.order import OrderHash, epoch_order
from kmgpu.rundir import RunDir

pytestmark = pytest.mark.workers

PAGE = Path(__file__).parents[2] / "docs" / "long-runs.md"
SECONDS = 120  # for a run of a few steps on a busy machine


def test_the_commands_of_the_page_do_what_it_says(tmp_path):
    block = re.search(r"## Start, stop, go on\n\n```\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)
    commands = [shlex.split(line) for line in block.splitlines()]
    assert [command[0] for command in commands] == ["kmgpu"] * 3
    for command, (name, epochs) in zip(commands, {"long": 3, "longer": 5, "elsewhere": 6}.items(), strict=True):
        answer = cells.kmgpu(*command[1:], folder=tmp_path, limit=SECONDS)
        assert answer.code == 0, answer.err
        outcome = RunDir(tmp_path / "runs" / name).outcome()
        assert len(outcome["history"]) == outcome["epochs"] == epochs and outcome["steps"] == 23 * epochs
        if name != "long":
            assert f"goes on from {tmp_path}/runs/" in answer.out
    losses = [epoch["loss"] for epoch in outcome["history"]]
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == 6  # it has learned in each of them


def test_k26_a_run_that_was_killed_does_the_epochs_that_are_left_and_no_other(tmp_path):
    settings = ("--set", "seconds=0.02", "--set", f"log={tmp_path}/rows.txt", "--epochs", "5")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", cells.COMMAND_LINE, "train", str(cells.RECIPES / "logged_rows.py"), *settings),
            *("--backend", "torch", "--devices", "2", "--out", "killed", "--checkpoint-every", "1epoch"),
            *("--device-kind", "cpu"),
        ],
        stdout=subprocess.PIPE, text=True, cwd=tmp_path,
    )  # fmt: skip
    with cells.time_limit(SECONDS):
        for line in process.stdout:
            if line.startswith("checkpoint step-00000012"):
                process.send_signal(signal.SIGKILL)
        process.wait()
    last, _ = checkpoints.find(tmp_path / "killed")
    assert last.position["epoch"] >= 3
    answer = cells.kmgpu("train", "--resume", "killed", "--out", "resumed", folder=tmp_path, limit=SECONDS)
    assert answer.code == 0, answer.err
    resumed = RunDir(tmp_path / "resumed")
    own = [event["epoch"] for event in resumed.events() if event["event"] == "epoch"]
    assert own == list(range(last.position["epoch"], 5))
    assert len(resumed.outcome()["history"]) == 5
    order = OrderHash()
    for epoch in range(5):
        rows = epoch_order(16, 0, epoch, True)
        for step in range(4):
            order.add(4 * epoch + step, np.arange(4), rows[4 * step : 4 * step + 4])
    assert resumed.outcome()["hashes"]["sample_order"] == OrderHash.join(order.lanes)


def test_what_cannot_go_on_is_refused_before_anything_starts(tmp_path):
    recipe = str(cells.RECIPES / "r0.py")
    options = ("--backend", "jax", "--device-kind", "cpu", "--checkpoint-every", "1epoch", "--out", "first")
    assert cells.kmgpu("train", recipe, *options, folder=tmp_path, limit=SECONDS).code == 0
    cases = {
        (): "has done 1 of 1 epochs; ask for more with --epochs",
        ("--epochs", "2", "--seed", "4"): "was trained with seed 0, and 4 is asked for",
        ("--epochs", "2", "--set", "rows=12"): "was trained with settings {}",
    }
    for words, sentence in cases.items():
        answer = cells.kmgpu("train", "--resume", "first", *words, "--out", "second", folder=tmp_path)
        assert answer.code == 2 and sentence in answer.err and answer.err.count("\n") == 1, answer.err
        assert not (tmp_path / "second").exists()
