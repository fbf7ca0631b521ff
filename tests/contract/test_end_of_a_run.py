"""However a run ends, the user sees one cause and the right exit code, and no process of it is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import cells
import pytest

from kmgpu import checkpoints
from kmgpu.rundir import RunDir

pytestmark = pytest.mark.workers

SECONDS = 30  # within which a run has ended once one of its processes has failed
START_SECONDS = 60  # that starting a framework may take on a busy machine

HEAD = """
import keras
import numpy as np
from kmgpu import Recipe

class OwnStep(keras.Sequential):
    def train_step(self, *arguments):
        return super().train_step(*arguments)

def model(cls=keras.Sequential, compiled=True):
    made = cls([keras.Input((1,)), keras.layers.Dense(1)])
    if compiled:
        made.compile(optimizer="sgd", loss="mse")
    return made

x, y = np.ones((8, 1), "float32"), np.ones((8, 1), "float32")

def recipe(*, batch_size=4):
"""
REFUSED = {
    "raises": ("raise KeyError('no column age')", "mine.py, line 19 raised KeyError: 'no column age'"),
    "returns": ("return model(), (x, y)", "returned a tuple; it must return a kmgpu.Recipe"),
    "compiles": ("return Recipe(model(compiled=False), train=(x, y))", "not compiled"),
    "lengths": ("return Recipe(model(), train=(x, y[:5]))", "x has 8 rows and y has 5"),
    "own step": ("return Recipe(model(OwnStep), train=(x, y))", "OwnStep overrides train_step"),
}


def command(recipe: Path, *options: str) -> list[str]:
    return [sys.executable, "-c", cells.COMMAND_LINE, "train", str(recipe), *options, "--device-kind", "cpu"]


def test_a_rank_that_fails_is_named_with_its_cause_and_the_others_end(tmp_path):
    out = tmp_path / "run"
    log = tmp_path / "rows.txt"
    answer = subprocess.run(
        command(
            cells.RECIPES / "logged_rows.py", "--backend", "torch", "--devices", "2", "--out", str(out),
            *("--set", "rows=8", "--set", "batch_size=8", "--set", "shuffle=false", "--set", "bad_row=5"),
            *("--set", f"log={log}"),
        ),
        capture_output=True, text=True, cwd=tmp_path, timeout=START_SECONDS + SECONDS,
    )  # fmt: skip
    assert time.time() - log.stat().st_mtime < SECONDS
    assert answer.returncode == 1
    sentence = answer.stderr.splitlines()[0]
    assert "process 1 of 2 failed: ValueError: bad row 5" in sentence and "process-1.log" in sentence
    assert answer.stderr.count("Traceback") <= 1 and len(answer.stderr.splitlines()) < 20
    assert "Traceback" not in answer.stdout
    assert cells.processes_of(out) == []
    outcome = RunDir(out).outcome()
    assert outcome["status"] == "failed" and "bad row 5" in outcome["reason"]


@pytest.mark.parametrize("what", REFUSED)
def test_a_recipe_that_cannot_be_trained_is_refused_in_one_sentence(tmp_path, what):
    body, sentence = REFUSED[what]
    (tmp_path / "mine.py").write_text(f"{HEAD}    {body}\n")
    # With torch, two processes refuse at once.
    options = ("--backend", "torch", "--devices", "2") if what == "raises" else ("--backend", "jax")
    answer = subprocess.run(
        command(tmp_path / "mine.py", *options, "--out", "run"), capture_output=True, text=True, cwd=tmp_path,
        timeout=START_SECONDS + SECONDS,
    )  # fmt: skip
    assert answer.returncode == 2, answer.stderr
    assert sentence in answer.stderr and len(answer.stderr.splitlines()) == 1
    assert "Traceback" not in answer.stdout
    assert cells.processes_of(tmp_path) == []
    assert not RunDir(tmp_path / "run").model_file.exists()
    assert RunDir(tmp_path / "run").outcome()["status"] == "failed"


@pytest.mark.parametrize(
    ("backend", "sent", "code"),
    [
        ("torch", signal.SIGINT, 130),
        ("torch", signal.SIGTERM, 143),
        ("tensorflow", signal.SIGTERM, 143),
        ("jax", signal.SIGINT, 130),
        ("torch", signal.SIGKILL, -9),
    ],
)
def test_a_run_that_is_stopped_leaves_nothing_behind(tmp_path, backend, sent, code):
    out = tmp_path / "run"
    options = ("--set", "epochs=100000", "--set", "seconds=0.02", "--set", f"log={tmp_path}/rows.txt")
    process = subprocess.Popen(
        command(
            cells.RECIPES / "logged_rows.py", "--backend", backend, "--devices", "2", "--out", str(out), *options
        ),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, bufsize=1,
    )  # fmt: skip
    try:
        with cells.time_limit(START_SECONDS + SECONDS):
            for line in process.stdout:
                if line.startswith("epoch"):
                    break
            running = cells.processes_of(out)
            assert len(running) >= 2  # this command and its workers
            (scratch,) = {line.split("--scratch ")[1].split()[0] for line in running if "--scratch" in line}
            assert Path(scratch).is_dir()
            process.send_signal(sent)
            _, error = process.communicate()
    finally:
        process.kill()
    assert process.returncode == code
    deadline = time.monotonic() + 10
    while (cells.processes_of(out) or Path(scratch).exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert cells.processes_of(out) == [] and not Path(scratch).exists()
    if sent != signal.SIGKILL:
        outcome = RunDir(out).outcome()
        assert outcome["status"] == "interrupted" and outcome["epochs"] >= 1
        assert error == f"kmgpu: {outcome['reason']}\n"
        last, skipped = checkpoints.find(out)  # it is whole
        assert f"{sent.name}; its checkpoint is {last.path}; go on with `kmgpu train --resume {out}`" in error
        assert last.position["updates"] == outcome["steps"] and not skipped
        assert len(last.manifest["history"]) == outcome["epochs"]
