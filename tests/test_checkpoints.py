"""Checkpoints as files: whole or absent, refused with what is wrong with them, and read back as they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kmgpu import checkpoints, records, resumption, training
from kmgpu.errors import Interrupted, UsageError
from kmgpu.job import Job
from kmgpu.rundir import RunDir, write_json
from kmgpu.worker import checkpoint

TENSORS = {
    "model/0000/dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "model/0001/seed_generator/seed_generator_state": np.array([7, 2**32 - 1], np.uint32),
    "optimizer/0000/adam/iteration": np.array(12, np.int64),
    "metrics/0000/mean/total": np.array([1.5, 2.5], np.float32),
    "random/torch": np.zeros((2, 5), np.uint8),
}


def manifest(run: Path, updates: int = 12, **changes) -> dict:
    at = {
        "epoch": 1, "step": 2, "updates": updates, "samples": 48, "loss_total": 0.1 + 0.2, "loss_rows": 8,
        "finite": True, "sample_order": "0" * 31 + "7",
    }  # fmt: skip
    recipe = run / "mine.py"
    recipe.write_text("def recipe(*, units=3): ...\n")
    job = Job(
        recipe=str(recipe), backend="torch", strategy="ddp", devices=2, settings={"units": 5}, epochs=3, seed=4,
        checkpoints={"on_stop": True},
    )  # fmt: skip
    return {
        "position": at, "history": [{"loss": float("nan"), "accuracy": 0.5}], "job": job.to_json(), "epochs": 3,
        "recipe_sha256": checkpoints.file_digest(recipe), "best": None, **changes,
    }  # fmt: skip


@pytest.fixture
def run(tmp_path):
    (tmp_path / "job.json").write_text("{}")
    for updates in (5, 12):
        checkpoint.write(tmp_path, TENSORS, manifest(tmp_path, updates))
    return tmp_path


def last(run: Path) -> Path:
    return checkpoints.listed(run)[-1]


def test_what_was_written_is_read_back_with_its_types_shapes_and_order(run):
    found, skipped = checkpoints.find(run)
    tensors = checkpoint.read(found)
    assert list(tensors) == list(TENSORS) and not skipped
    for name, expected in TENSORS.items():
        assert tensors[name].dtype == expected.dtype and tensors[name].shape == expected.shape
        np.testing.assert_array_equal(tensors[name], expected)
    assert found.path.name == "step-00000012"
    assert found.position["loss_total"] == 0.1 + 0.2 and np.isnan(found.manifest["history"][0]["loss"])


def test_a_checkpoint_is_named_last_best_by_its_name_or_by_its_step(run):
    first, second = checkpoints.listed(run)
    for words, expected in {"last": second, "step-00000005": first, "5": first, "12": second}.items():
        assert checkpoints.named(run, words).path == expected
    with pytest.raises(UsageError, match="keeps no best checkpoint .*; it has step-00000005, step-00000012"):
        checkpoints.named(run, "best")
    checkpoints.mark_best(run, first.name)
    assert checkpoints.named(run, "best").path == first
    for words in ("step-00000007", "7", "first"):
        with pytest.raises(UsageError, match=f"has no checkpoint '{words}'; give last, best or a name"):
            checkpoints.named(run, words)
    (first / "tensors.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="is damaged"):
        checkpoints.named(run, "5")


def test_bits_that_safetensors_cannot_take_from_numpy_are_kept(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = {"model/0000/x": np.array([[1.5, -2.0]], ml_dtypes.bfloat16), "model/0001/y": np.array(True)}
    checkpoint.write(tmp_path, values, manifest(tmp_path))
    tensors = checkpoint.read(checkpoints.read(last(tmp_path)))
    for name, expected in values.items():
        assert tensors[name].dtype == expected.dtype and (tensors[name] == expected).all()


def test_a_position_comes_back_as_it_was(run):
    at = checkpoints.read(last(run)).position
    first, second = checkpoint.progress_at(at, 0), checkpoint.progress_at(at, 1)
    assert (first.epoch, first.step, first.updates, first.samples) == (1, 2, 12, 48)
    assert (first.loss.total, first.loss.rows) == (0.1 + 0.2, 8)
    assert first.order.lanes.tolist() == [0, 7] and second.order.lanes.tolist() == [0, 0]


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def other_step(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 2', '"step": 1'))


def other_format(path: Path) -> None:
    path.write_text(path.read_text().replace('"format": 1,\n "position"', '"format": 99,\n "position"'))


@pytest.mark.parametrize(
    ("damage", "file", "sentence"),
    [
        (truncate, "tensors.safetensors", "bytes, "),
        (flip, "tensors.safetensors", "tensors.safetensors is not what was written (its SHA-256 differs)"),
        (Path.unlink, "tensors.safetensors", "it has no tensors.safetensors"),
        (truncate, "manifest.json", "manifest.json is not that of a checkpoint"),
        (Path.unlink, "manifest.json", "manifest.json cannot be read"),
        (other_step, "manifest.json", "manifest.json is not what was written"),
        (other_format, "manifest.json", "has checkpoint format 99, this kmgpu reads 1"),
        (lambda path: path.write_text('["something", "else"]'), "manifest.json", "not that of a checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused_with_what_is_wrong_and_the_one_before_is_taken(run, damage, file, sentence):
    damaged = last(run)
    damage(damaged / file)
    with pytest.raises(UsageError) as caught:
        checkpoints.find(damaged)
    assert sentence in str(caught.value) and str(damaged) in str(caught.value) and "\n" not in str(caught.value)
    found, skipped = checkpoints.find(run)
    assert found.path.name == "step-00000005" and sentence in skipped[0]
    assert resumption.find(run)[1] == [f"note: skipped a checkpoint: {skipped[0]}"]


def test_a_tensor_that_is_not_what_was_written_is_found_when_it_is_read(run):
    from safetensors.numpy import save_file

    found = checkpoints.read(last(run))
    save_file({**TENSORS, "optimizer/0000/adam/iteration": np.array(13, np.int64)}, found.path / "tensors.safetensors")
    with pytest.raises(UsageError, match="optimizer/0000/adam/iteration is not what was written"):
        checkpoint.read(found)


def test_a_run_without_a_whole_checkpoint_says_so(run, tmp_path_factory):
    for path in checkpoints.listed(run):
        truncate(path / "tensors.safetensors")
    with pytest.raises(UsageError, match="has no whole checkpoint: .*step-00000012.*; .*step-00000005"):
        checkpoints.find(run)
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(UsageError, match="neither a run nor a checkpoint"):
        checkpoints.find(empty)
    (empty / "job.json").write_text("{}")
    with pytest.raises(UsageError, match="has no checkpoint; train with --checkpoint-every"):
        checkpoints.find(empty)


def test_a_checkpoint_that_cannot_be_written_leaves_nothing(run, monkeypatch):
    def full(*given, **named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    with pytest.raises(OSError, match="No space left"):
        checkpoint.write(run, TENSORS, manifest(run, 20))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before


def test_only_the_last_ones_and_the_best_are_kept(run):
    checkpoints.mark_best(run, "step-00000005")
    for updates in (20, 30, 40):
        checkpoint.write(run, TENSORS, manifest(run, updates))
        checkpoints.retain(run, 2)
    kept = [path.name for path in checkpoints.listed(run)]
    assert kept == ["step-00000005", "step-00000030", "step-00000040"]
    assert checkpoints.find(run / "checkpoints" / "best")[0].path.name == "step-00000005"


KILLED = """
import sys, threading, numpy as np
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_checkpoints as t
from kmgpu import checkpoints
from kmgpu.worker import checkpoint
run = Path({run!r})
tensors = {{"model/0000/x": np.random.default_rng(0).random(12_500_000, dtype=np.float32)}}  # 50 MB
manifest = t.manifest(run)
for updates in range(100, 10_000):
    manifest["position"]["updates"] = updates
    print(updates, flush=True)
    checkpoint.write(run, tensors, manifest)
    checkpoints.retain(run, 2)
"""


def test_k54_a_kill_while_writing_leaves_the_last_whole_checkpoint_and_what_is_left_is_cleaned(run):
    half_written = 0
    for repeat in range(10):
        script = KILLED.format(tests=str(Path(__file__).parent), run=str(run))
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
            for _ in range(3):
                process.stdout.readline()
            time.sleep(0.01 + 0.013 * repeat)
            process.send_signal(signal.SIGKILL)
        half_written += len([path for path in (run / "checkpoints").iterdir() if path.name.startswith(".")])
        found, _ = resumption.find(run)
        assert found.position["updates"] >= 101 and checkpoint.read(found)["model/0000/x"].shape == (12_500_000,)
        assert [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []
        assert found.path == last(run)
    assert half_written > 0, "no kill came while something was written"


def test_a_run_that_is_being_trained_is_not_resumed(run):
    with (
        checkpoints.held(run) as free,
        pytest.raises(UsageError, match="is still being trained; stop it first"),
    ):
        assert free
        resumption.find(run)
    resumption.find(run)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("500steps", {"steps": 500}), ("500 steps", {"steps": 500}), ("1step", {"steps": 1}),
        ("1epoch", {"epochs": 1}), ("2 Epochs", {"epochs": 2}), ("10min", {"seconds": 600}),
        ("10 minutes", {"seconds": 600}), ("1.5h", {"seconds": 5400}), ("30s", {"seconds": 30}),
    ],
)  # fmt: skip
def test_when_is_said_in_a_number_and_a_unit(words, expected):
    assert checkpoints.every(words) == expected


@pytest.mark.parametrize("words", ["500", "steps", "0steps", "0.5epochs", "10 weeks", "-1epoch", ""])
def test_another_when_is_refused(words):
    with pytest.raises(UsageError, match="a number and a unit, such as 500steps"):
        checkpoints.every(words)


@pytest.mark.parametrize(
    ("words", "mode"),
    [("val_accuracy", "max"), ("val_loss", "min"), ("mean_absolute_error", "min"), ("auc", "max"), ("x:max", "max")],
)
def test_what_is_best_follows_from_the_name_or_is_said(words, mode):
    assert checkpoints.best(words)["mode"] == mode


@pytest.mark.parametrize(
    ("wishes", "sentence"),
    [
        ({"keep": 0, "every": "1epoch"}, "--keep is 0; it is a count"),
        ({"keep": 2}, "say --checkpoint-every as well"),
        ({"every": "never", "keep_best": "val_loss"}, "--checkpoint-every is never, and"),
        ({"keep_best": "val_thing"}, "say which is best: val_thing:min or val_thing:max"),
        ({"keep_best": "val_loss:low"}, "say which is best"),
    ],
)
def test_wishes_that_cannot_be_are_refused(wishes, sentence):
    with pytest.raises(UsageError, match=sentence):
        training.checkpoint_wishes(wishes.get("every"), wishes.get("keep"), wishes.get("keep_best"))


# --- going on


def test_what_is_not_given_is_as_it_was(run):
    found, _ = resumption.find(run)
    wishes = resumption.wishes(found, {})
    expected = {"backend": "torch", "devices": 2, "settings": {"units": 5}, "seed": 4, "epochs": 3}
    assert expected.items() <= wishes.items()
    assert wishes["resume"] == str(last(run)) and wishes["checkpoints"] == {"on_stop": True}


def test_where_and_how_long_may_change(run):
    found, _ = resumption.find(run)
    wishes = resumption.wishes(found, {"backend": "jax", "devices": 4, "epochs": 9, "seed": 4})
    assert (wishes["backend"], wishes["strategy"], wishes["devices"], wishes["epochs"]) == ("jax", None, 4, 9)


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 5), ("batch_size", 8), ("settings", {"units": 6}), ("track", "as-shipped")]
)
def test_what_would_make_it_another_run_is_refused_by_name(run, name, value):
    found, _ = resumption.find(run)
    with pytest.raises(UsageError, match=f"was trained with {name} .*leave it out to go on, or start a new run"):
        resumption.wishes(found, {name: value})


def test_another_text_of_the_recipe_is_refused_and_a_moved_one_is_not(run):
    found, _ = resumption.find(run)
    moved = run / "moved.py"
    moved.write_text((run / "mine.py").read_text())
    assert resumption.recipe_of(found, moved) == moved
    (run / "mine.py").write_text("def recipe(*, units=4): ...\n")
    with pytest.raises(UsageError, match=r"mine.py is not the recipe of .*: its text has changed"):
        resumption.recipe_of(found, None)
    (run / "mine.py").unlink()
    with pytest.raises(UsageError, match="not there any more; name its file"):
        resumption.recipe_of(found, None)


def test_a_run_that_is_done_asks_for_more_epochs(run):
    checkpoint.write(run, TENSORS, manifest(run, 30, position={**manifest(run, 30)["position"], "epoch": 3}))
    found, _ = resumption.find(run)
    with pytest.raises(UsageError, match="has done 3 of 3 epochs; ask for more with --epochs"):
        resumption.wishes(found, {})
    assert resumption.wishes(found, {"epochs": 5})["epochs"] == 5


def test_a_stopped_run_names_its_checkpoint_and_how_to_go_on(run):
    write_json(run / "job.json", Job("r.py", "torch", "ddp").to_json())
    error = Interrupted("the run was stopped by SIGINT", signal.SIGINT)
    assert "no new checkpoint could be written; the last one is" in str(resumption.stopped(RunDir(run), error))
    (run / "events.jsonl").write_text(json.dumps({"event": "stopped", "time": 1.0}) + "\n")
    said = resumption.stopped(RunDir(run), error)
    assert said.exit_code == 130
    assert str(said).endswith(f"its checkpoint is {last(run)}; go on with `kmgpu train --resume {run}`")


def test_a_run_that_went_on_has_the_history_and_the_steps_from_before():
    events = [
        {"event": "start", "resumed": {"history": [{"loss": 3.0}], "updates": 7}},
        {"event": "window", "time": 1, "compiling": True, "steps": 3, "seconds": 1.0, "samples": 3},
        {"event": "epoch", "metrics": {"loss": 2.0}},
    ]
    folded = records.fold(events)
    assert folded["history"] == [{"loss": 3.0}, {"loss": 2.0}] and (folded["epochs"], folded["steps"]) == (2, 10)
