"""Where a run goes: a new directory, or in the place of an old run if that is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kmgpu import checkpoints, training
from kmgpu.errors import UsageError
from kmgpu.job import Job
from kmgpu.rundir import RunDir

JOB = Job("mine.py", "torch", "ddp")


@pytest.fixture
def old(tmp_path):
    rundir = RunDir.create(tmp_path / "deep" / "run", JOB)
    (rundir.path / "events.jsonl").write_text("old")
    return rundir


def test_a_run_is_refused_a_directory_that_holds_one_or_something_else(tmp_path, old):
    with pytest.raises(UsageError, match="already holds a run; choose another --out .*--force"):
        RunDir.create(old.path, JOB)
    with pytest.raises(UsageError, match="a directory with other files in it"):
        RunDir.create(tmp_path, JOB)


def test_k30_an_old_run_is_replaced_and_nothing_of_it_is_left(old):
    for _ in range(20):
        (old.path / "checkpoints" / "step-00000001").mkdir(parents=True)
        (old.path / "outcome.json").write_text("{}")
        training.remove_old(old.path, JOB)
        RunDir.create(old.path, JOB)
        assert [path.name for path in old.path.parent.rglob("*")] == ["run", "job.json"]


def test_what_is_no_run_is_not_removed(tmp_path):
    (tmp_path / "precious").touch()
    training.remove_old(tmp_path, JOB)
    training.remove_old(tmp_path / "nowhere", JOB)
    assert (tmp_path / "precious").exists()


def test_a_run_that_is_needed_or_still_trained_is_not_removed(old):
    for needed in ({"resume": str(old.path / "checkpoints/step-00000001")}, {"initial_weights": str(old.path / "w")}):
        with pytest.raises(UsageError, match="--force would remove .*, from which this run is to start"):
            training.remove_old(old.path, replace(JOB, **needed))
    with checkpoints.held(old.path), pytest.raises(UsageError, match="still being trained"):
        training.remove_old(old.path, JOB)
    assert (old.path / "events.jsonl").read_text() == "old"
