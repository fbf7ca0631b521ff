"""The training loop: one story for every backend, told in an adapter's verbs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kmgpu.backends.adapter import Adapter
from kmgpu.data.loader import batches
from kmgpu.data.source import Source
from kmgpu.worker import weights
from kmgpu.worker.progress import Mean, Progress
from kmgpu.worker.run import Run, Update
from kmgpu.worker.sizes import batch_sizes, idle_notes, shares
from kmgpu.worker.windows import Window, windows


def train(run: Run) -> None:
    """Train a recipe, record what happens, and leave its weights in the run's directory."""
    progress = Progress()
    stream = run.updates(progress)
    first = next(stream)  # the model is built for it, and it is read only once
    stream = itertools.chain([first], stream)
    initial = _begin(run, first)
    seen: set[int] = set()  # sizes of updates that the framework has compiled for
    while progress.epoch < run.epochs:
        _epoch(run, progress, stream, seen)
        stream = run.updates(progress)
    _end(run, progress, initial)


def _begin(run: Run, first: Update) -> str:
    """Build the model, give it its initial weights and say what is run and how; returns the weights' hash."""
    adapter, rows = run.adapter, len(run.rows)
    validation_rows = len(run.validation) if run.validation is not None else 0
    options = {
        "loss_gather": run.job.loss_gather, "track": run.job.track,
        "sizes": batch_sizes(rows, run.batch_size, run.steps_per_epoch),
        "evaluated": batch_sizes(validation_rows, run.batch_size),
    }  # fmt: skip
    notes = adapter.prepare(run.recipe, first, options)
    initial = weights.initialise(adapter, run.job, run.rundir)
    run.record(
        "start", **adapter.facts(), backend=run.job.backend, strategy=run.job.strategy, track=run.job.track,
        seed=run.job.seed, device_kind=run.job.device_kind, processes=adapter.processes, batch_size=run.batch_size,
        per_device_batch=shares(run.batch_size, adapter.devices), rows=rows, validation_rows=validation_rows,
        steps_per_epoch=run.steps_per_epoch, epochs=run.epochs, initial_weights=initial,
    )  # fmt: skip
    for note in [*notes, *idle_notes(rows, run.batch_size, run.steps_per_epoch, adapter.devices)]:
        run.record("note", text=note)
    return initial


def _epoch(run: Run, progress: Progress, stream: Iterator[Update], seen: set[int]) -> None:
    """Train what is left of an epoch, window after window, and evaluate."""
    began = time.perf_counter()
    for window in windows(stream, seen):
        _window(run, progress, window)
    metrics = {"loss": progress.loss.value(), **run.adapter.metrics()}
    trained = time.perf_counter()
    if run.validation is not None:
        scores = evaluate(run.adapter, run.validation, run.batch_size)
        metrics |= {f"val_{name}": value for name, value in scores.items()}
    if run.job.track != "as-shipped":  # where frameworks let BatchNorm's statistics drift apart
        weights.check_replicas(run.adapter)
    evaluation_seconds = time.perf_counter() - trained
    run.record(
        "epoch", epoch=progress.epoch, seconds=trained - began, evaluation_seconds=evaluation_seconds, metrics=metrics
    )
    progress.end_epoch()


def _window(run: Run, progress: Progress, window: Window) -> None:
    """Train some updates, wait for them, and record their losses and their time."""
    adapter = run.adapter
    clock = time.perf_counter()
    handles = [adapter.train_step([adapter.put(batch) for batch in update]) for update in window.updates]
    losses = adapter.losses(handles)
    seconds = time.perf_counter() - clock + window.reading
    first, samples = progress.updates, progress.samples
    for update, loss in zip(window.updates, losses, strict=True):
        _consumed(progress, update, adapter.process)
        if progress.finite and not np.isfinite(loss):
            progress.finite = False
            run.record("note", text=f"the loss is {loss} in step {progress.updates - 1}")
    progress.loss.add(losses, [update[0].update_size for update in window.updates])
    run.record(
        "window", epoch=progress.epoch, step=first, steps=len(losses), samples=progress.samples - samples,
        seconds=seconds, losses=losses, compiling=window.compiling,
    )  # fmt: skip


def _consumed(progress: Progress, update: Update, process: int) -> None:
    """Count an update, and enter its samples into the order."""
    for batch in update:
        if batch.counted(process):
            rows = batch.positions
            progress.order.add(progress.updates, batch.offset + rows, batch.indices[rows])
    progress.step, progress.updates = progress.step + 1, progress.updates + 1
    progress.samples += update[0].update_size


def evaluate(adapter: Adapter, rows: Source, batch_size: int) -> dict[str, float]:
    """Return loss and metrics over all rows of a source, each counted once."""
    loss, part = Mean(), (adapter.process, adapter.processes)
    for batch in batches(rows, batch_size=batch_size, seed=0, epoch=0, shuffle=False, part=part):
        loss.add(adapter.losses([adapter.evaluate_step(adapter.put(batch))]), [batch.size])
    return {"loss": loss.value(), **adapter.metrics()}


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
