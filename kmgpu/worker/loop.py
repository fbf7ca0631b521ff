"""The training loop: one story for every backend, told in an adapter's verbs."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu.backends.adapter import Adapter
from kmgpu.data.ahead import Ahead
from kmgpu.data.feed import Feed, Update
from kmgpu.worker import resuming, weights
from kmgpu.worker.progress import Mean, Progress
from kmgpu.worker.run import Run
from kmgpu.worker.saving import Saver, Stopped
from kmgpu.worker.sizes import idle_notes, shares
from kmgpu.worker.windows import Window, windows


def train(run: Run) -> None:
    """Train a recipe, record what happens, and leave its weights in the run's directory."""
    progress = resuming.progress(run)
    initial, best = _begin(run)
    saver = Saver(run, initial, best)
    seen: set[Any] = set()  # forms of updates that the framework has compiled for
    try:
        with saver.watching():
            while progress.epoch < run.epochs:
                _epoch(run, progress, seen, saver)
            saver.close()
    except Stopped:
        return
    _end(run, progress, initial)


def _begin(run: Run) -> tuple[str, float | None]:
    """Build the model, give it its first weights or those of a checkpoint, and say what is run and how.

    Returns the hash of the initial weights, and the best score before a checkpoint.
    """
    adapter, train, validation = run.adapter, run.train, run.validation
    first = train.first()  # the model is built for it
    if validation is not None:
        validation.first()
    options = {
        "loss_gather": run.job.loss_gather, "track": run.job.track,
        "sizes": train.sizes, "evaluated": () if validation is None else validation.sizes,
    }  # fmt: skip
    notes = adapter.prepare(run.recipe, first, options)
    before = resuming.restore(run) if run.job.resume is not None else None
    initial = before["initial_weights"] if before else weights.initialise(adapter, run.job, run.rundir)
    run.record(
        "start", **adapter.facts(), backend=run.job.backend, strategy=run.job.strategy, track=run.job.track,
        seed=run.job.seed, device_kind=run.job.device_kind, processes=adapter.processes, batch_size=train.batch_size,
        per_device_batch=shares(train.batch_size, adapter.devices), rows=train.rows,
        validation_rows=0 if validation is None else validation.rows,
        steps_per_epoch=train.steps, epochs=run.epochs, initial_weights=initial,
        resumed=before and resuming.described(run, before),
    )  # fmt: skip
    feeds = [feed for feed in (train, validation) if feed is not None]
    told = [note for feed in feeds for note in feed.notes]
    for note in [*notes, *told, *idle_notes(train.sizes, adapter.devices)]:
        run.record("note", text=note)
    return initial, resuming.best_value(run, before) if before else None


def _epoch(run: Run, progress: Progress, seen: set[Any], saver: Saver) -> None:
    """Train what is left of an epoch, window after window, and evaluate."""
    began = time.perf_counter()
    with contextlib.closing(run.updates(progress)) as updates:
        for window in windows(updates, seen, lambda: saver.room(progress)):
            _window(run, progress, window, updates)
            saver.after_window(progress)
    metrics = {"loss": progress.loss.value(), **run.adapter.metrics()}
    trained = time.perf_counter()
    run.train.end_epoch()
    waiting = float(run.adapter.gather(np.array(updates.waited)).max())
    if run.validation is not None:
        scores, _ = evaluate(run.adapter, run.validation)
        metrics |= {f"val_{name}": value for name, value in scores.items()}
    if run.job.track != "as-shipped":  # where frameworks let BatchNorm's statistics drift apart
        weights.check_replicas(run.adapter)
    evaluation_seconds = time.perf_counter() - trained
    run.record(
        "epoch", epoch=progress.epoch, seconds=trained - began, waiting_seconds=waiting,
        evaluation_seconds=evaluation_seconds, metrics=metrics,
    )  # fmt: skip
    progress.end_epoch(metrics)
    saver.after_epoch(progress, metrics)


def _window(run: Run, progress: Progress, window: Window, source: Ahead[Update]) -> None:
    """Train some updates, wait for them, and record their losses and their time."""
    adapter = run.adapter
    clock, waited = time.perf_counter() - window.waited, source.waited - window.waited
    updates, handles = [], []
    for update in window:
        handles.append(adapter.train_step([adapter.put(batch) for batch in update]))
        updates.append(update)
    losses = adapter.losses(handles)
    seconds = time.perf_counter() - clock
    first, samples = progress.updates, progress.samples
    for update, loss in zip(updates, losses, strict=True):
        _consumed(progress, update, adapter.process)
        if progress.finite and not np.isfinite(loss):
            progress.finite = False
            run.record("note", text=f"the loss is {loss} in step {progress.updates - 1}")
    progress.loss.add(losses, [update[0].update_size for update in updates])
    run.record(
        "window", epoch=progress.epoch, step=first, steps=len(losses), samples=progress.samples - samples,
        seconds=seconds, waiting_seconds=source.waited - waited, losses=losses, compiling=window.compiling,
    )  # fmt: skip


def _consumed(progress: Progress, update: Update, process: int) -> None:
    """Count an update, and enter its samples into the order."""
    for batch in update:
        if batch.counted(process):
            progress.order.add(progress.updates, batch.offset + batch.positions, batch.samples)
    progress.step, progress.updates = progress.step + 1, progress.updates + 1
    progress.samples += update[0].update_size


def evaluate(adapter: Adapter, feed: Feed) -> tuple[dict[str, float], int]:
    """Return loss and metrics over all rows of a feed, each counted once, and how many those are."""
    loss = Mean()
    for (batch,) in feed.epoch(0):
        loss.add(adapter.losses([adapter.evaluate_step(adapter.put(batch))]), [batch.size])
    feed.end_epoch()
    return {"loss": loss.value(), **adapter.metrics()}, loss.rows


def _end(run: Run, progress: Progress, initial: str) -> None:
    """Save the weights and record what proves where they come from."""
    adapter = run.adapter
    weights.save(adapter, run.recipe.model, run.rundir, run.record)
    usage = adapter.gather(np.array([peak_bytes(adapter), threads()], np.int64))
    run.record(
        "end", initial_weights=initial, sample_order=progress.order.join(adapter.gather(progress.order.lanes)),
        final_weights=weights.digests(adapter), peak_bytes=usage[:, 0].tolist(), threads=usage[:, 1].tolist(),
    )  # fmt: skip


def peak_bytes(adapter: Adapter) -> int:
    """Return the peak of the device allocator, or on CPU of this process's resident set."""
    peak = adapter.peak_bytes()
    if peak is not None:
        return peak
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def threads() -> int:
    """Return how many threads the process has, those of the framework's pools included."""
    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count() + 1
