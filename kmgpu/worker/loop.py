"""The training loop: one story for every backend, told in an adapter's verbs."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu.backends.adapter import Adapter
from kmgpu.data.ahead import Ahead
from kmgpu.data.feed import Feed, Update
from kmgpu.errors import RunFailed
from kmgpu.worker import nonfinite, rates, resuming, weights
from kmgpu.worker.callbacks import Callbacks
from kmgpu.worker.progress import Mean, Progress
from kmgpu.worker.rates import Rate
from kmgpu.worker.rechecks import Rechecks
from kmgpu.worker.run import Run
from kmgpu.worker.saving import Saver, Stopped
from kmgpu.worker.sizes import expected_sizes, idle_notes, shares
from kmgpu.worker.windows import Window, windows


def train(run: Run) -> None:
    """Train a recipe, record what happens, and leave its weights in the run's directory."""
    progress = resuming.progress(run)
    initial, beside = _begin(run, progress.epoch)
    saver, callbacks, before = beside.saver, beside.callbacks, beside.before
    seen: set[Any] = set()  # forms of updates that the framework has compiled for
    metrics: dict[str, Any] = {}
    try:
        with saver.watching():
            first = callbacks.begin()
            if first and before is None:
                progress.epoch, progress.updates = first, first * (run.train.steps or 0)
                run.record("note", text=f"a callback has restored a backup: training begins at epoch {first + 1}")
            if before is not None:
                if progress.step > 0:  # so that callbacks make what they make there
                    callbacks.call("on_epoch_begin", progress.epoch)
                before.give_again(callbacks)
            while progress.epoch < run.epochs and progress.stop is None:
                metrics = _epoch(run, progress, beside, seen)
            saver.close()
    except Stopped:
        callbacks.end_of_stopped(run.record)
        return
    _finalize(run.adapter)
    callbacks.call("on_train_end", metrics)
    if progress.stop is not None:
        where = f"after {progress.updates} steps, in epoch {progress.epoch} of {run.epochs}"
        run.record("note", text=f"{progress.stop} ended the training {where}")
    _end(run, progress, initial)


@dataclass(frozen=True)
class Beside:
    """What looks at training, and may end it or pace it."""

    saver: Saver
    before: resuming.Before | None  # the checkpoint from which the run goes on
    callbacks: Callbacks
    rate: Rate | None
    rechecks: Rechecks


def _begin(run: Run, epoch: int) -> tuple[str, Beside]:
    """Build the model, give it its first weights or those of a checkpoint, and say what is run and how.

    Returns the hash of the initial weights, and what looks at training.
    """
    adapter, train, validation = run.adapter, run.train, run.validation
    notes = _prepare(run)
    rate = rates.scale(run)  # which a checkpoint overrules
    callbacks = Callbacks(run, epoch)
    if run.job.resume is None:
        before, initial = None, weights.initialise(adapter, run.job, run.rundir)
    else:
        before = resuming.Before(run)
        before.give(callbacks)
        initial = before.manifest["initial_weights"]
    run.record(
        "start", **adapter.facts(), backend=run.job.backend, strategy=run.job.strategy, track=run.job.track,
        randomness=run.job.randomness, seed=run.job.seed, device_kind=run.job.device_kind,
        processes=adapter.processes, batch_size=train.batch_size,
        per_device_batch=shares(train.batch_size, adapter.devices), rows=train.rows,
        validation_rows=0 if validation is None else validation.rows,
        steps_per_epoch=train.steps, epochs=run.epochs, initial_weights=initial,
        rate_rule=None if rate is None else rate.described(run),
        resumed=before and resuming.described(run, before.manifest),
        **run.recipe.policies,
    )  # fmt: skip
    feeds = [feed for feed in (train, validation) if feed is not None]
    told = [*adapter.tools.ignored_by_steps(adapter.model), *(note for feed in feeds for note in feed.notes)]
    for note in [*notes, *told, *idle_notes(train.sizes, adapter.devices)]:
        run.record("note", text=note)
    saver = Saver(run, initial, resuming.best_value(run, before.manifest) if before else None, callbacks)
    for note in callbacks.notes():
        run.record("note", text=note)
    return initial, Beside(saver, before, callbacks, rate, Rechecks(run.record, resumed=before is not None))


def _prepare(run: Run) -> list[str]:
    """Build the model for the first updates, and check that the data are what it needs; returns notes for the user."""
    adapter, model, tools = run.adapter, run.recipe.model, run.adapter.tools
    feeds = [("train", run.train)] + ([] if run.validation is None else [("validation", run.validation)])
    firsts = [feed.first() for _, feed in feeds]
    for (what, _), first in zip(feeds, firsts, strict=True):
        tools.check_targets(model, first[0], what)
    evaluated = () if run.validation is None else expected_sizes(run.validation)
    options = {
        "loss_gather": run.job.loss_gather, "track": run.job.track,
        "sizes": expected_sizes(run.train), "evaluated": evaluated, "validation": firsts[-1][0],
    }  # fmt: skip
    notes = adapter.prepare(run.recipe, firsts[0], options)
    for (what, feed), first in zip(feeds, firsts, strict=True):
        tools.check_labels(model, feed.labels(), what)
        with adapter.scope():
            tools.check_validation(model, firsts[0][0], first[0])
    return notes


def _epoch(run: Run, progress: Progress, beside: Beside, seen: set[Any]) -> dict[str, Any]:
    """Train what is left of an epoch, window after window, and evaluate; returns its metrics."""
    adapter, callbacks = run.adapter, beside.callbacks
    if progress.step == 0:  # else the run goes on in the middle of the epoch, which has begun
        callbacks.call("on_epoch_begin", progress.epoch)
    began = time.perf_counter()
    with contextlib.closing(run.updates(progress)) as updates:
        for window in windows(updates, seen, lambda: _room(run, progress, beside)):
            callbacks.call("on_train_batch_begin", progress.step)
            _window(run, progress, beside, window, updates)
            if beside.before is not None:
                beside.before.check_joint()
            if callbacks.overrides("on_train_batch_end"):
                logs = {"loss": progress.loss.value(), **adapter.metrics(reset=False)}
                callbacks.call("on_train_batch_end", progress.step - 1, logs)
            progress.stop = _stop(run, progress, callbacks)
            beside.saver.after_window(progress)
            if progress.stop is not None:
                break
    cut = progress.step != run.train.steps and progress.stop is not None
    metrics = {"loss": progress.loss.value(), **adapter.metrics()}
    trained = time.perf_counter()
    run.train.end_epoch()
    waiting = float(adapter.gather(np.array(updates.waited)).max())
    if run.validation is not None and _validated(run, progress):
        scores, _ = evaluate(adapter, run.validation, callbacks)
        metrics |= {f"val_{name}": value for name, value in scores.items()}
    if run.job.track != "as-shipped":  # where frameworks let BatchNorm's statistics drift apart
        weights.check_replicas(adapter)
    evaluation_seconds = time.perf_counter() - trained
    adapter.lend()
    run.record(
        "epoch", epoch=progress.epoch, seconds=trained - began, waiting_seconds=waiting,
        evaluation_seconds=evaluation_seconds, callback_seconds=callbacks.take_seconds(),
        learning_rate=adapter.tools.learning_rate(adapter.model), metrics=metrics,
    )  # fmt: skip
    logs = dict(metrics)
    callbacks.call("on_epoch_end", progress.epoch, logs)
    progress.stop = progress.stop or callbacks.stop
    progress.end_epoch(metrics)
    if not cut:  # else the checkpoint is in the middle of the epoch
        beside.saver.after_epoch(progress, metrics)
    return logs


def _room(run: Run, progress: Progress, beside: Beside) -> int:
    """Return how many updates may be trained until something is to be looked at."""
    if beside.callbacks.each_batch or beside.callbacks.stop is not None:
        return 1
    room = beside.saver.room(progress)
    return room if run.job.max_steps is None else min(room, run.job.max_steps - progress.updates)


def _stop(run: Run, progress: Progress, callbacks: Callbacks) -> str | None:
    """Return what ends the training now, if anything; the same in all processes."""
    if callbacks.stop is not None:
        return callbacks.stop
    last = progress.epoch + 1 == run.epochs and progress.step == run.train.steps
    if run.job.max_steps is not None and progress.updates >= run.job.max_steps and not last:
        return f"--max-steps {run.job.max_steps}"
    if run.job.max_seconds is not None:
        over = time.monotonic() - run.began > run.job.max_seconds
        if run.adapter.broadcast(b"over" if over else b"") and not last:
            return f"--max-time, {run.job.max_seconds:g} s,"
    return None


def _validated(run: Run, progress: Progress) -> bool:
    """Whether this epoch is one to validate; the last one always is."""
    last = progress.epoch + 1 == run.epochs or progress.stop is not None
    return last or (progress.epoch + 1) % run.job.validate_every == 0


def _window(run: Run, progress: Progress, beside: Beside, window: Window, source: Ahead[Update]) -> None:
    """Train some updates, wait for them, and record their losses and their time."""
    adapter, rate = run.adapter, beside.rate
    clock, waited = time.perf_counter() - window.waited, source.waited - window.waited
    updates, handles = [], []
    for number, update in enumerate(window, progress.updates):
        if number == progress.updates:
            clock += beside.rechecks.before(adapter, update, number, window.compiling, beside.callbacks.changes)
        if rate is not None and number < rate.warmup:
            rates.assign(adapter, rate.at(number))
        handles.append(adapter.train_step([adapter.put(batch) for batch in update]))
        updates.append(update)
    losses = adapter.losses(handles)
    seconds = time.perf_counter() - clock
    first, samples = progress.updates, progress.samples
    for update in updates:
        _consumed(progress, update, adapter.process)
    progress.loss.add(losses, [update[0].update_size for update in updates])
    run.record(
        "window", epoch=progress.epoch, step=first, steps=len(losses), samples=progress.samples - samples,
        seconds=seconds, waiting_seconds=source.waited - waited, losses=losses, compiling=window.compiling,
    )  # fmt: skip
    if progress.finite and not np.isfinite(losses).all():
        progress.finite = False
        number = next(number for number, loss in enumerate(losses) if not np.isfinite(loss))
        found = f"the loss is {losses[number]} in step {first + number}"
        if run.job.on_nan == "stop":
            beside.saver.close()
            why = nonfinite.sentence(run, updates[number])
            beside.callbacks.call("on_train_end", {})
            raise RunFailed(f"{found}: {why}; --on-nan continue trains on all the same")
        run.record("note", text=found)


def _consumed(progress: Progress, update: Update, process: int) -> None:
    """Count an update, and enter its samples into the order."""
    for batch in update:
        if batch.counted(process):
            progress.order.add(progress.updates, batch.offset + batch.positions, batch.samples)
    progress.last = update
    progress.step, progress.updates = progress.step + 1, progress.updates + 1
    progress.samples += update[0].update_size


def evaluate(adapter: Adapter, feed: Feed, callbacks: Callbacks | None = None) -> tuple[dict[str, float], int]:
    """Return loss and metrics over all rows of a feed, each counted once, and how many those are."""
    call = callbacks.call if callbacks is not None else (lambda hook, *arguments: None)
    loss = Mean()
    call("on_test_begin")
    for (batch,) in feed.epoch(0):
        call("on_test_batch_begin", batch.step)
        loss.add(adapter.losses([adapter.evaluate_step(adapter.put(batch))]), [batch.size])
        if callbacks is not None and callbacks.overrides("on_test_batch_end"):
            call("on_test_batch_end", batch.step, {"loss": loss.value(), **adapter.metrics(reset=False)})
    feed.end_epoch()
    scores = {"loss": loss.value(), **adapter.metrics()}
    call("on_test_end", dict(scores))
    return scores, loss.rows


def _finalize(adapter: Adapter) -> None:
    """Leave an optimizer's moving averages in the weights, as fit does at its end."""
    adapter.lend()
    if adapter.tools.finalize(adapter.model):
        adapter.share(adapter.changed())


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
