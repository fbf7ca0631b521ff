"""Going on from a checkpoint: on the same devices bit for bit, and on others with the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kmgpu import checkpoints
from kmgpu.errors import UsageError
from kmgpu.worker import checkpoint, weights
from kmgpu.worker.callbacks import Callbacks
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


class Before:
    """The checkpoint from which a run goes on."""

    def __init__(self, run: Run):
        """Read it, and refuse one of other data. All processes."""
        assert run.job.resume is not None
        path = Path(run.job.resume)
        self.manifest = checkpoints.read_manifest(path)
        self._run, self._path = run, path
        self._joint_is_checked = False
        facts = {"rows": run.train.rows, "batch_size": run.train.batch_size, "steps_per_epoch": run.train.steps}
        for fact, now in facts.items():
            if self.manifest[fact] != now:
                raise UsageError(
                    f"{path} was trained with {fact} {self.manifest[fact]}, and the recipe now gives {now}; "
                    "resume with the data it was trained with"
                )
        self._tensors = checkpoint.read(checkpoints.Checkpoint(path, self.manifest))

    def give(self, callbacks: Callbacks) -> None:
        """Give the built model its state, and what callbacks had made trainable. All processes."""
        job, before = self._run.job, self.manifest["job"]
        callbacks.set(self._beside)
        same = all(before[name] == getattr(job, name) for name in ("backend", "strategy"))
        checkpoint.give(self._run.adapter, self._tensors, same, self._path)
        weights.check_replicas(self._run.adapter)

    def give_again(self, callbacks: Callbacks) -> None:
        """Undo what the first hooks have done to the model, and let callbacks remember; the last call."""
        self.give(callbacks)
        unknown = callbacks.remember(self._beside, self._tensors)
        if unknown:
            self._run.record("note", text=f"the checkpoint says nothing of {', '.join(unknown)}: begun anew")
        self._tensors = {}

    def check_joint(self) -> None:
        """Tell, once, if a stream that was read up to where it was has given another batch there."""
        expected, found = self.manifest["position"].get("last_update"), self._run.train.skipped
        if self._joint_is_checked or expected is None or found is None:
            return
        self._joint_is_checked = True
        if found != expected:
            self._run.record(
                "note",
                text="the training data give other batches than before the checkpoint, so that samples of this epoch "
                "may come twice or not at all; let their order be a function of a seed and the epoch",
            )

    @property
    def _beside(self) -> dict[str, Any]:
        return self.manifest.get("callbacks", {})


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
