"""When checkpoints are taken: at the very step, by agreement, without ending a run whose disk is full."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from kmgpu import checkpoints
from kmgpu.errors import UsageError
from kmgpu.job import Job
from kmgpu.rundir import RunDir, write_json
from kmgpu.worker import checkpoint, saving
from kmgpu.worker.progress import Progress

STEPS = 5  # of an epoch


class FakeAdapter:
    """One of some processes; ``votes`` are what the other ones ask for: (stop, time is up)."""

    process = 0

    def __init__(self, votes=()):
        self.votes, self.processes = list(votes), 1 + len(votes)

    def facts(self):
        return {"framework": "fake 1", "keras": "3", "devices": ["cpu"], "precision": {}}

    def gather(self, values):
        if values.dtype == bool:
            return np.stack([values, *self.votes])
        return values[None]


@pytest.fixture
def make(tmp_path, monkeypatch):
    """``make(checkpoints)`` returns a saver, the progress of its run and the events that it records."""
    monkeypatch.setattr(checkpoint, "take", lambda adapter: {"model/0000/kernel": np.ones(3, np.float32)})
    (tmp_path / "mine.py").write_text("")

    def made(wish, votes=(), epochs=3):
        job = Job(str(tmp_path / "mine.py"), "torch", "ddp", checkpoints=wish)
        write_json(tmp_path / "job.json", job.to_json())
        events = []
        run = SimpleNamespace(
            job=job, rundir=RunDir(tmp_path), adapter=FakeAdapter(votes), epochs=epochs,
            train=SimpleNamespace(steps=STEPS, rows=20, batch_size=4),
            record=lambda event, **fields: events.append((event, fields)),
        )  # fmt: skip
        callbacks = SimpleNamespace(state=lambda: ({"settings": None, "remembered": {}}, {}))
        return saving.Saver(run, "f" * 64, None, callbacks), Progress(), events

    return made


def train(saver, progress, epochs, scores=(0.5, 0.75, 0.5)):
    """Do what the loop does: windows as long as there is room, up to the end of an epoch."""
    ends = []
    while progress.epoch < epochs:
        while progress.step < STEPS:
            count = min(saver.room(progress), STEPS - progress.step)
            progress.step, progress.updates = progress.step + count, progress.updates + count
            ends.append(progress.updates)
            saver.after_window(progress)
        metrics = {"val_score": scores[progress.epoch]}
        progress.end_epoch(metrics)
        saver.after_epoch(progress, metrics)
    saver.close()
    return ends


def names(run):
    return [int(path.name[5:]) for path in checkpoints.listed(run)]


def test_steps_are_kept_to_the_step_and_the_end_is_saved_too(make, tmp_path):
    saver, progress, events = make({"every": {"steps": 3}, "keep": 9})
    assert train(saver, progress, 3) == [3, 5, 6, 9, 10, 12, 15]
    assert names(tmp_path) == [3, 6, 9, 12, 15]
    last = checkpoints.read(checkpoints.listed(tmp_path)[-1])
    assert (last.position["epoch"], last.position["step"]) == (3, 0)  # what is at an epoch's end is saved after it
    assert [fields["checkpoint"] for event, fields in events if event == "checkpoint"][0] == "step-00000003"


def test_epochs_are_counted_and_the_last_ones_kept(make, tmp_path):
    saver, progress, _ = make({"every": {"epochs": 1}, "keep": 2})
    train(saver, progress, 3)
    assert names(tmp_path) == [10, 15]


def test_the_best_epoch_is_kept_beside_the_last_ones(make, tmp_path):
    saver, progress, _ = make({"best": {"metric": "val_score", "mode": "max"}, "every": {"epochs": 1}, "keep": 1})
    train(saver, progress, 3)
    assert names(tmp_path) == [10, 15] and (tmp_path / "checkpoints" / "best").resolve().name == "step-00000010"


def test_a_metric_that_is_not_there_is_named(make):
    saver, progress, _ = make({"best": {"metric": "val_loss", "mode": "min"}})
    with pytest.raises(UsageError, match="--keep-best is 'val_loss'; an epoch has val_score"):
        train(saver, progress, 1)


def test_only_a_stop_is_saved_if_nothing_else_is_asked_for(make, tmp_path):
    saver, progress, events = make({"on_stop": True})
    train(saver, progress, 3)
    assert names(tmp_path) == [] and events == []


@pytest.mark.parametrize("own", [True, False])
def test_a_stop_that_any_process_was_asked_for_stops_all_with_a_checkpoint(make, tmp_path, own):
    saver, progress, events = make({"on_stop": True}, votes=[np.array([not own, False])])
    with saver.watching(), pytest.raises(saving.Stopped):
        if own:
            os.kill(os.getpid(), signal.SIGTERM)
        train(saver, progress, 3)
    assert names(tmp_path) == [progress.updates] == [5]
    assert events[-1] == ("stopped", {"checkpoint": "step-00000005"})


def test_the_clock_of_process_0_decides_for_all(make, tmp_path):
    saver, progress, _ = make({"every": {"seconds": 1e9}, "keep": 9}, votes=[np.array([False, True])])
    train(saver, progress, 2)
    assert names(tmp_path) == []
    saver, progress, _ = make({"every": {"seconds": 1e-9}, "keep": 9}, votes=[np.array([False, False])])
    train(saver, progress, 2)
    assert names(tmp_path) == [5, 10]


def test_a_full_disk_is_told_and_does_not_end_the_run(make, tmp_path, monkeypatch):
    saver, progress, events = make({"every": {"steps": 5}, "keep": 9})
    written = []

    def write(run, tensors, manifest):
        written.append(manifest["position"]["updates"])
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        return original(run, tensors, manifest)

    original = checkpoint.write
    monkeypatch.setattr(checkpoint, "write", write)
    train(saver, progress, 3)
    assert written == [5, 10, 15] and names(tmp_path) == [5, 15]
    (note,) = [fields["text"] for event, fields in events if event == "note"]
    assert "No space left on device" in note and "training goes on, and the last one is step-00000005" in note


def test_a_signal_has_its_usual_meaning_again_afterwards(make):
    before = signal.getsignal(signal.SIGTERM)
    saver, _, _ = make({"on_stop": True})
    with saver.watching():
        assert signal.getsignal(signal.SIGTERM) == saver.ask
    assert signal.getsignal(signal.SIGTERM) == before
