"""Going on with a run: which checkpoint, with which job, and what to tell a person whose run was stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kmgpu import checkpoints, recipe_card
from kmgpu.checkpoints import Checkpoint
from kmgpu.errors import Interrupted, UsageError
from kmgpu.job import Job
from kmgpu.rundir import RunDir

FREE = (
    "backend", "strategy", "devices", "device_ids", "device_kind", "python", "epochs", "checkpoints",
    "max_steps", "max_seconds", "validate_every", "on_nan", "workers",
)  # may change
OWN = ("recipe", "initial_weights", "max_steps", "max_seconds")  # of the run before, and not of the one that goes on


def find(path: str | os.PathLike[str]) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint to go on from, and lines about what was skipped or removed; cleans what a kill has left.

    ``path`` is a run or one of its checkpoints. Raises UsageError.
    """
    run = Path(path)
    if not (run / "job.json").is_file():
        checkpoint, _ = checkpoints.find(run)
        return checkpoint, []
    with checkpoints.held(run) as free:
        if not free:
            raise UsageError(f"{run} is still being trained; stop it first, or name a checkpoint in {run}/checkpoints")
        cleaned = checkpoints.clean(run)
        checkpoint, skipped = checkpoints.find(run)
    lines = [f"note: skipped a checkpoint: {sentence}" for sentence in skipped]
    if cleaned:
        lines.append(f"note: removed what was half-written when the run was killed: {', '.join(cleaned)}")
    return checkpoint, lines


def recipe_of(checkpoint: Checkpoint, named: str | os.PathLike[str] | None) -> Path:
    """Return the recipe's file, which must be what it was; ``named`` says where it is if it has moved."""
    before = checkpoint.manifest["job"]["recipe"]
    if named is None and not Path(before).is_file():
        raise UsageError(f"the recipe {before} is not there any more; name its file: kmgpu train FILE --resume ...")
    path = recipe_card.find_recipe(os.fspath(named if named is not None else before))
    if checkpoints.file_digest(path) != checkpoint.manifest["recipe_sha256"]:
        raise UsageError(
            f"{path} is not the recipe of {checkpoint.path}: its text has changed; resume with the text it was trained "
            "with, or start a new run with --initial-weights"
        )
    return path


def wishes(checkpoint: Checkpoint, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``training.make_job`` for going on: what is given, else what the run had.

    Raises UsageError for what must stay as it was, and for a run that has nothing left to do.
    """
    before = Job.from_json(checkpoint.manifest["job"])
    fields = {name: value for name, value in vars(before).items() if name not in OWN}
    for name, value in given.items():
        if name not in FREE and value != getattr(before, name):
            raise UsageError(
                f"{checkpoint.path} was trained with {name} {getattr(before, name)!r}, and {value!r} is asked for; "
                f"leave it out to go on, or start a new run"
            )
    if "backend" in given and given["backend"] != before.backend:
        fields["strategy"] = None
    if "devices" in given or "device_kind" in given:
        fields["device_ids"] = None
    fields["python"] = given.get("python") or _interpreter(before, given.get("backend", before.backend))
    fields |= {name: value for name, value in given.items() if name != "python"}
    epochs = fields["epochs"] or checkpoint.manifest["epochs"]
    if checkpoint.position["epoch"] >= epochs:
        raise UsageError(
            f"{checkpoint.path} has done {checkpoint.position['epoch']} of {epochs} epochs; ask for more with --epochs"
        )
    if fields.get("max_steps") is not None and checkpoint.position["updates"] >= fields["max_steps"]:
        raise UsageError(
            f"{checkpoint.path} has done {checkpoint.position['updates']} steps, and --max-steps is "
            f"{fields['max_steps']}; ask for more"
        )
    return fields | {"epochs": epochs, "resume": str(checkpoint.path.absolute())}


def stopped(rundir: RunDir, error: Interrupted) -> Interrupted:
    """Return the error with the checkpoint that a stopped run has left, and how to go on."""
    last = checkpoints.listed(rundir.path)
    if not last:
        return error
    written = any(event["event"] == "stopped" for event in rundir.events())
    kept = "its checkpoint" if written else "no new checkpoint could be written; the last one"
    sentence = f"{error}; {kept} is {last[-1]}; go on with `kmgpu train --resume {rundir.path}`"
    return Interrupted(sentence, error.exit_code - 128)


def stopped_by_itself(rundir: RunDir) -> Interrupted | None:
    """Return the error of a run whose workers were asked to stop by another than this process, or None."""
    if not any(event["event"] == "stopped" for event in rundir.events()):
        return None
    return stopped(rundir, Interrupted("the workers were asked to stop", signal.SIGTERM))


def _interpreter(before: Job, backend: str) -> dict[str, str] | None:
    """Return the run's own interpreter, if it is for this backend and is still there."""
    same = backend == before.backend and before.python is not None and Path(before.python).is_file()
    return {backend: str(before.python)} if same else None
