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
from kmgpu.backends import BACKENDS
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

class Bad(keras.layers.Layer):
    def call(self, x):
        raise ValueError("boom")

def model(cls=keras.Sequential, compiled=True):
    made = cls([keras.Input((1,)), keras.layers.Dense(1)])
    if compiled:
        made.compile(optimizer="sgd", loss="mse")
    return made

x, y = np.ones((8, 1), "float32"), np.ones((8, 1), "float32")

def recipe(*, batch_size=4):
"""
REFUSED = {
    "raises": ("raise KeyError('no column age')", "mine.py, line 23 raised KeyError: 'no column age'"),
    "exits": ("raise SystemExit(3)", "mine.py called sys.exit(3); a recipe returns a kmgpu.Recipe instead"),
    "layer": (
        "return Recipe(keras.Sequential([keras.Input((1,)), Bad()]), train=(x, y))",
        "mine.py, line 12 raised ValueError: Exception encountered when calling Bad.call(): boom",
    ),
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
    assert "process 1 of 2 failed in logged_rows.py, line " in sentence and ": ValueError: bad row 5; " in sentence
    assert "process-1.log" in sentence and answer.stderr.count("\n") == 1
    assert "Traceback" not in answer.stdout
    assert cells.processes_of(out) == []
    outcome = RunDir(out).outcome()
    assert outcome["status"] == "failed" and "bad row 5" in outcome["reason"]


@pytest.mark.parametrize(
    ("backend", "how"),
    [("torch", "raised"), ("torch", "host"), ("torch", "framework"), ("tensorflow", "framework"), ("jax", "framework")],
)
def test_memory_that_does_not_suffice_is_said_with_rank_batch_and_peak_and_all_end(tmp_path, backend, how):
    out = tmp_path / "run"
    answer = subprocess.run(
        command(
            cells.RECIPES / "out_of_memory.py", "--backend", backend, "--devices", "2", "--out", str(out),
            *("--set", f"how={how}"),
        ),
        capture_output=True, text=True, cwd=tmp_path, timeout=START_SECONDS + SECONDS,
    )  # fmt: skip
    process = "process 1 of 2" if backend == "torch" else "process 0 of 1"
    assert answer.returncode == 7, answer.stderr
    assert answer.stderr.startswith(f"kmgpu: {process} ran out of memory (global batch 4, peak ")
    assert len(answer.stderr.splitlines()) == 1 and "Traceback" not in answer.stdout
    assert cells.processes_of(out) == []
    started = RunDir(out).events()[0]["time"]
    assert RunDir(out).outcome()["ended"] - started < SECONDS


def test_an_operation_without_a_deterministic_form_is_one_sentence(tmp_path):
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        f"import torch\ntorch.zeros(2).put_(torch.tensor([0]), torch.ones(1))\n{HEAD}"
        "    return Recipe(model(), train=(x, y))\n"
    )
    answer = subprocess.run(
        command(recipe, "--backend", "torch", "--deterministic"), capture_output=True, text=True, cwd=tmp_path,
        timeout=START_SECONDS + SECONDS,
    )  # fmt: skip
    assert answer.returncode == 2 and len(answer.stderr.splitlines()) == 1
    assert "kmgpu: --deterministic: RuntimeError: put_ does not have a deterministic implementation" in answer.stderr


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
        pytest.param("tensorflow", signal.SIGINT, 130, marks=pytest.mark.long),
        ("jax", signal.SIGINT, 130),
        pytest.param("jax", signal.SIGTERM, 143, marks=pytest.mark.long),
        ("torch", signal.SIGKILL, -9),
    ],
)
def test_a_run_that_is_stopped_leaves_nothing_behind(tmp_path, backend, sent, code):
    out = tmp_path / "run"
    options = ("--set", "epochs=100000", "--set", "seconds=0.02", "--set", f"log={tmp_path}/rows.txt")
    options += ("--workers", "4", "--set", f"ended={tmp_path}/ended.txt")
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
        assert (tmp_path / "ended.txt").read_text() == "ended\n"


SLOW = """
import time
from datetime import timedelta

import keras
import numpy as np
import torch
from kmgpu import Recipe
from torch.distributed import distributed_c10d as c10d

class Mine(keras.callbacks.Callback):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0 and self.seconds:
            self.model.predict(np.ones((8, 1)), verbose=0)
            time.sleep(self.seconds)

def recipe(*, seconds=0):
    groups = [group._get_backend(torch.device("cpu")) for group in c10d._world.pg_map]
    short = [group for group in groups if group.options._timeout < timedelta(days=1)]
    for group in short:
        group._set_default_timeout(timedelta(seconds=10))
    print(f"{len(short)} of {len(groups)} groups wait 10 s")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer="sgd", loss="mse")
    x = np.ones((8, 1), "float32")
    return Recipe(model, train=(x, 3 * x), epochs=3, batch_size=4, callbacks=[Mine(seconds)])
"""
CALLBACKS = """
class Mine(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            {body}

def recipe(*, batch_size=4):
    import time
    return Recipe(model(), train=(x, y), epochs=3, batch_size=batch_size, callbacks=[Mine()])
"""


@pytest.mark.parametrize(
    ("body", "code", "sentence"),
    [
        ("raise OSError('no disk')", 1, "the callback Mine failed in on_epoch_end of epoch 1: OSError: no disk"),
        ("self.model.fit(x, y)", 2, "it calls model.fit, which trains beside the loop"),
        ("self.model.trainable = False", 2, "the callback Mine freezes all weights"),
    ],
)
def test_a_callback_that_fails_ends_all_processes_at_once_and_is_named_with_its_hook(tmp_path, body, code, sentence):
    (tmp_path / "mine.py").write_text(HEAD.partition("\ndef recipe")[0] + CALLBACKS.format(body=body))
    answer = subprocess.run(
        command(tmp_path / "mine.py", "--backend", "torch", "--devices", "2", "--out", "run"),
        capture_output=True, text=True, cwd=tmp_path, timeout=START_SECONDS + SECONDS,
    )  # fmt: skip
    assert answer.returncode == code, answer.stderr
    assert sentence in answer.stderr and len(answer.stderr.splitlines()) == 1
    assert cells.processes_of(tmp_path) == []
    outcome = RunDir(tmp_path / "run").outcome()
    ended = outcome["ended"] - RunDir(tmp_path / "run").events()[-1]["time"]
    assert outcome["status"] == "failed" and outcome["epochs"] == 2 and ended < 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_that_is_not_a_number_ends_a_run_with_step_sample_and_variable(tmp_path, backend):
    answer = subprocess.run(
        command(
            cells.RECIPES / "r0.py", "--backend", backend, "--devices", "2", "--out", "run", "--epochs", "3",
            "--set", "bad_row=5", "--set", "callback=TerminateOnNaN", "--checkpoint-every", "1step",
        ),
        capture_output=True, text=True, cwd=tmp_path, timeout=START_SECONDS + SECONDS,
    )  # fmt: skip
    assert answer.returncode == 1, answer.stderr
    assert "the loss is nan in step 1: y of sample 5 is not finite; the first variable" in answer.stderr
    assert "dense/kernel" in answer.stderr and len(answer.stderr.splitlines()) == 1
    (kept,) = checkpoints.listed(tmp_path / "run")  # that of the step before
    assert f"; the last good checkpoint is {kept}; " in answer.stderr
    assert checkpoints.read(kept).position["updates"] == 1
    outcome = RunDir(tmp_path / "run").outcome()
    assert (outcome["status"], outcome["epochs"], outcome["steps"]) == ("failed", 0, 2)


@pytest.mark.long
def test_a_callback_of_one_process_may_take_longer_than_collectives_wait(tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    trained = []
    for seconds in (0, 20):
        run = tmp_path / f"run-{seconds}"
        answer = subprocess.run(
            command(
                tmp_path / "mine.py", "--backend", "torch", "--devices", "2", "--out", str(run),
                "--set", f"seconds={seconds}",
            ),
            capture_output=True, text=True, cwd=tmp_path, timeout=START_SECONDS + SECONDS,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        assert "groups wait 10 s" in RunDir(run).log_file(1).read_text()
        trained.append(RunDir(run).outcome()["hashes"]["final_weights"])
    assert trained[0] == trained[1] and len(set(trained[0])) == 1
