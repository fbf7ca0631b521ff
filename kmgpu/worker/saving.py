"""When checkpoints are taken, and by whom: all processes agree, process 0 writes, in a thread beside training."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from kmgpu import __version__, checkpoints
from kmgpu.errors import UsageError
from kmgpu.worker import checkpoint
from kmgpu.worker.callbacks import Callbacks
from kmgpu.worker.progress import Progress
from kmgpu.worker.run import Run
from kmgpu.worker.windows import WINDOW

KEEP = 3  # checkpoints, if the job does not say


class Stopped(Exception):
    """The run was asked to stop, and has done so in order."""


class Saver:
    """The checkpoints of one run. Methods are called by all processes, between two windows.

    A run whose job has no ``checkpoints`` saves nothing and is not asked to stop: a signal ends it at once.
    """

    def __init__(self, run: Run, initial: str, best_value: float | None, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._run, self._initial, self._facts = run, initial, run.adapter.facts()
        self._recipe = checkpoints.file_digest(Path(run.job.recipe))
        wish = run.job.checkpoints
        self._every: dict[str, float] = wish.get("every") or {}
        self._best: dict[str, str] | None = wish.get("best")
        self._keep: int = wish.get("keep") or KEEP
        self._best_value = best_value
        self._writing: Writing | None = None
        self._clock = time.monotonic()
        self.asked = False  # to stop

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Take a signal as the wish to stop; the next one has its usual meaning."""
        self.asked = True
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context signals ask to stop, and the run's directory is held."""
        if not self._run.job.checkpoints:
            yield
            return
        with contextlib.ExitStack() as stack:
            if self._run.adapter.process == 0:
                stack.enter_context(checkpoints.held(self._run.rundir.path))
            before = {each: signal.signal(each, self.ask) for each in (signal.SIGTERM, signal.SIGINT)}
            try:
                yield
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)

    def room(self, progress: Progress) -> int:
        """How many updates the next window may have, so that it ends where a checkpoint is due."""
        every = self._every.get("steps")
        return WINDOW if every is None else int(every - progress.updates % every)

    def after_window(self, progress: Progress) -> None:
        """Save if it is time to; raises Stopped, after a last checkpoint, if any process was asked to stop."""
        if not self._run.job.checkpoints:
            return
        self._collect()
        stop, late = self._agreed()
        if stop:
            self._save(progress)
            self._finish("stopped")
        due = late or progress.stop is not None or self._steps_due(progress)
        if progress.step != self._run.train.steps and due:  # else after the epoch
            self._save(progress)

    def after_epoch(self, progress: Progress, metrics: dict[str, Any]) -> None:
        """As ``after_window``, when an epoch is evaluated and ``progress`` stands at the next one."""
        if not self._run.job.checkpoints:
            return
        stop, late = self._agreed()
        best = self._is_best(metrics)
        over = progress.epoch == self._run.epochs or progress.stop is not None
        done = over and bool(self._every or self._best)
        due = progress.epoch % self._every.get("epochs", progress.epoch + 1) == 0 or self._steps_due(progress)
        if best or late or done or due or stop:
            self._save(progress, best)
        if stop and progress.epoch < self._run.epochs:
            self._finish("stopped")

    def close(self) -> None:
        """Wait until all is written."""
        if self._writing is not None:
            self._writing.join()
            self._collect()

    def _finish(self, event: str) -> None:
        self.close()
        last = checkpoints.listed(self._run.rundir.path)
        self._run.record(event, checkpoint=last[-1].name if last else None)
        raise Stopped

    def _steps_due(self, progress: Progress) -> bool:
        return "steps" in self._every and progress.updates % self._every["steps"] == 0

    def _agreed(self) -> tuple[bool, bool]:
        """Whether to stop, which any process may want, and whether it is time to save, by the clock of process 0."""
        late = time.monotonic() - self._clock >= self._every.get("seconds", np.inf)
        votes = self._run.adapter.gather(np.array([self.asked, late]))
        return bool(votes[:, 0].any()), bool(votes[0, 1])

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        if self._best is None:
            return False
        if self._best["metric"] not in metrics:
            raise UsageError(f"--keep-best is {self._best['metric']!r}; an epoch has {', '.join(metrics)}")
        value = float(metrics[self._best["metric"]])
        sign = 1 if self._best["mode"] == "max" else -1
        if np.isnan(value) or (self._best_value is not None and sign * value <= sign * self._best_value):
            return False
        self._best_value = value
        return True

    def _save(self, progress: Progress, best: bool = False) -> None:
        clock = time.perf_counter()
        tensors = checkpoint.take(self._run.adapter)
        at = checkpoint.position(progress, self._run.adapter)
        self._clock = time.monotonic()
        if self._run.adapter.process != 0:
            return
        self.close()  # one at a time, so that no more than one copy is held
        beside, arrays = self._callbacks.state()
        manifest = self._manifest(progress, at) | {"callbacks": beside}
        self._writing = Writing(self._run.rundir.path, tensors | arrays, manifest, self._keep, best)
        self._writing.waited = time.perf_counter() - clock
        self._writing.start()

    def _manifest(self, progress: Progress, at: dict[str, Any]) -> dict[str, Any]:
        run = self._run
        return {
            "kmgpu": __version__, "time": time.time(), "position": at, "history": list(progress.history),
            "job": run.job.to_json(), "recipe_sha256": self._recipe,
            "batch_size": run.train.batch_size, "epochs": run.epochs, "steps_per_epoch": run.train.steps,
            "rows": run.train.rows, "initial_weights": self._initial, "processes": run.adapter.processes,
            "best": self._best and {**self._best, "value": self._best_value},
            **{name: self._facts[name] for name in ("framework", "keras", "devices", "precision")},
        }  # fmt: skip

    def _collect(self) -> None:
        """Record what the thread has done, if it is done."""
        writing = self._writing
        if writing is None or writing.is_alive():
            return
        self._writing = None
        if writing.error is None:
            self._run.record("checkpoint", **writing.written, waited_seconds=writing.waited)
            return
        last = checkpoints.listed(self._run.rundir.path)
        kept = f"the last one is {last[-1].name}" if last else "there is none"
        self._run.record(
            "note", text=f"a checkpoint could not be written ({writing.error}); training goes on, and {kept}"
        )


class Writing(threading.Thread):
    """Writes one checkpoint and removes those that are not to be kept. Raises nothing: ``error`` says what failed."""

    def __init__(
        self, run: Path, tensors: checkpoint.Tensors, manifest: dict[str, Any], keep: int, best: bool
    ) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self._run, self._tensors, self._manifest, self._keep, self._best = run, tensors, manifest, keep, best
        self.waited = 0.0  # seconds that training stood still for it
        self.written: dict[str, Any] = {}
        self.error: Exception | None = None

    def run(self) -> None:
        clock = time.perf_counter()
        try:
            self.written = checkpoint.write(self._run, self._tensors, self._manifest)
            if self._best:
                checkpoints.mark_best(self._run, self.written["checkpoint"])
            checkpoints.retain(self._run, self._keep)
        except Exception as error:  # OSError mostly: a full disk must not end a run of a week
            self.error = error
        self._tensors = {}
        self.written["write_seconds"] = time.perf_counter() - clock
