"""Going on from a checkpoint: on the same devices bit for bit, and on others with the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kmgpu import checkpoints
from kmgpu.errors import UsageError
from kmgpu.worker import checkpoint, weights
from kmgpu.worker.progress import Progress
from kmgpu.worker.run import Run


def progress(run: Run) -> Progress:
    """Return where training stands: at its beginning, or where the job's checkpoint was taken."""
    if run.job.resume is None:
        return Progress()
    manifest = checkpoints.read_manifest(Path(run.job.resume))
    found = checkpoint.progress_at(manifest["position"], run.adapter.process)
    found.history.extend(manifest["history"])
    return found


def restore(run: Run) -> dict[str, Any]:
    """Give the built model its state; return the checkpoint's manifest."""
    assert run.job.resume is not None
    manifest = checkpoints.read_manifest(Path(run.job.resume))
    facts = {"rows": run.train.rows, "batch_size": run.train.batch_size, "steps_per_epoch": run.train.steps}
    for fact, now in facts.items():
        if manifest[fact] != now:
            raise UsageError(
                f"{run.job.resume} was trained with {fact} {manifest[fact]}, and the recipe now gives {now}; "
                "resume with the data it was trained with"
            )
    found = checkpoints.Checkpoint(Path(run.job.resume), manifest)
    before = found.manifest["job"]
    same = all(before[name] == getattr(run.job, name) for name in ("backend", "strategy"))
    checkpoint.give(run.adapter, checkpoint.read(found), same, found.path)
    weights.check_replicas(run.adapter)
    return found.manifest


def described(run: Run, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what the start event says of the run before."""
    at, before = manifest["position"], manifest["job"]
    return {
        "checkpoint": run.job.resume, "epoch": at["epoch"], "step": at["step"], "updates": at["updates"],
        "history": manifest["history"], "backend": before["backend"], "devices": before["devices"],
        "framework": manifest["framework"],
    }  # fmt: skip


def best_value(run: Run, manifest: dict[str, Any]) -> float | None:
    """Return the best score so far of the metric whose best checkpoint is kept."""
    asked, before = run.job.checkpoints.get("best"), manifest["best"]
    return before["value"] if asked and before and before["metric"] == asked["metric"] else None
