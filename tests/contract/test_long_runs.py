"""A long run as a user has it: the commands of docs/long-runs.md, and a run that is killed and goes on."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import cells
import numpy as np
import pytest

from kmgpu import checkpoints
from kmgpu.backends import BACKENDS
from kmgpu.data.order import OrderHash, epoch_order
from kmgpu.rundir import RunDir

pytestmark = pytest.mark.workers
long = pytest.mark.long

DOCS = Path(__file__).parents[2] / "docs"
SECONDS = 120  # for a run of a few steps on a busy machine


def commands_of(page: str) -> list[list[str]]:
    """All commands in the examples of a page, in their order, without ``kmgpu``."""
    blocks = re.findall(r"^```\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("kmgpu ")]


def stopped(command: list[str], folder: Path, line: str) -> str:
    """Run a command, press Ctrl-C when a line begins so, and return what it says at last."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", cells.COMMAND_LINE, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=folder,
    )  # fmt: skip
    with cells.time_limit(SECONDS):
        for each in process.stdout:
            if each.startswith(line):
                process.send_signal(signal.SIGINT)
                break
        _, error = process.communicate()
    assert process.returncode == 130, error
    return error


def test_the_commands_of_the_page_do_what_it_says(tmp_path):
    first, second, third, evaluate, export = commands_of("long-runs.md")
    assert "go on with `kmgpu train --resume runs/long`" in stopped(first, tmp_path, "epoch  2/30")
    before = RunDir(tmp_path / "runs" / "long").outcome()
    assert before["status"] == "interrupted" and 2 <= before["epochs"] < 30
    for command, (name, epochs) in zip((second, third), {"longer": 30, "elsewhere": 32}.items(), strict=True):
        answer = cells.kmgpu(*command, folder=tmp_path, limit=SECONDS)
        assert answer.code == 0, answer.err
        outcome = RunDir(tmp_path / "runs" / name).outcome()
        assert len(outcome["history"]) == outcome["epochs"] == epochs and outcome["steps"] == 23 * epochs
        assert f"goes on from {tmp_path}/runs/" in answer.out
        assert outcome["history"][: before["epochs"]] == before["history"]
    answer = cells.kmgpu(*evaluate, folder=tmp_path, limit=SECONDS)
    scores = dict(pair.split() for pair in answer.out.splitlines()[1].split("  "))
    assert float(scores["accuracy"]) == pytest.approx(outcome["history"][-1]["val_accuracy"], abs=0.004)  # one of 360
    assert cells.kmgpu(*export, folder=tmp_path, limit=SECONDS).code == 0 and (tmp_path / "trained.keras").is_file()


def test_the_commands_of_the_page_on_using_a_run_do_what_it_says(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1000, 8, 8, 1), np.float32))
    for command in commands_of("using-a-run.md"):
        answer = cells.kmgpu(*command, folder=tmp_path, limit=SECONDS)
        assert answer.code == 0, (command, answer.err)
        if command[0] == "evaluate":
            assert ("checkpoints/step-" in answer.out) == ("--checkpoint" in command)
    assert np.load(tmp_path / "y.npy").shape == (1000, 10)
    assert (tmp_path / "served" / "saved_model.pb").is_file()


@long
def test_the_example_from_python_does_what_it_says(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((1000, 8, 8, 1), np.float32))
    train = commands_of("using-a-run.md")[0]
    assert train[0] == "train" and cells.kmgpu(*train, folder=tmp_path, limit=SECONDS).code == 0
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "using-a-run.md").read_text(), re.DOTALL)
    script = f"import kmgpu, numpy as np\nx = np.load('x.npy')\n{example}\nprint(sorted(scores.metrics), outputs.shape)"
    answer = cells.python("-c", script, folder=tmp_path, limit=2 * SECONDS)
    assert answer.out == "['accuracy', 'loss'] (1000, 10)\n", answer.err
    assert (tmp_path / "best.weights.h5").is_file() and (tmp_path / "y.npy").is_file()


@long
@pytest.mark.parametrize("page", ["watching.md"])
def test_the_commands_of_another_page_run(tmp_path, page):
    for command in commands_of(page):
        answer = cells.kmgpu(*command, folder=tmp_path, limit=SECONDS)
        assert answer.code == 0, (command, answer.err)


@pytest.mark.parametrize("backend", [each if each == "torch" else pytest.param(each, marks=long) for each in BACKENDS])
def test_k26_a_run_that_was_killed_does_the_epochs_that_are_left_and_no_other(tmp_path, backend):
    settings = ("--set", "seconds=0.02", "--set", f"log={tmp_path}/rows.txt", "--epochs", "5")
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", cells.COMMAND_LINE, "train", str(cells.RECIPES / "logged_rows.py"), *settings),
            *("--backend", backend, "--devices", "2", "--out", "killed", "--checkpoint-every", "1epoch"),
            *("--device-kind", "cpu"),
        ],
        stdout=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    with cells.time_limit(SECONDS):
        while not (tmp_path / "killed" / "checkpoints" / "step-00000012").exists():
            time.sleep(0.01)
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
