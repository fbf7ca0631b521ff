"""The training loop: one story for every backend, told in an adapter's verbs."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from kmgpu.backends.adapter import Adapter
from kmgpu.data.loader import Batch, batches, split, updates
from kmgpu.data.order import OrderHash
from kmgpu.data.source import Source
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir
from kmgpu.worker import weights

Update = tuple[Batch, ...]
WINDOW = 10  # steps between two readings of the clock


def train(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, sources: Sources, record: Callable) -> None:
    """Train a recipe and record what happens; ``record(event, **fields)`` does nothing but in process 0."""
    batch_size = job.batch_size or recipe.batch_size
    epochs = job.epochs or recipe.epochs
    steps_per_epoch = -(-len(sources.train) // batch_size)
    if recipe.steps_per_epoch is not None:
        steps_per_epoch = min(steps_per_epoch, recipe.steps_per_epoch)
    order = OrderHash()
    seen: set[int] = set()

    def epoch_updates(epoch: int) -> Iterator[Update]:
        return updates(
            sources.train, batch_size=batch_size, seed=job.seed, epoch=epoch, shuffle=recipe.shuffle,
            part=_part(adapter), steps=recipe.steps_per_epoch, class_weight=recipe.class_weight,
            accumulate=recipe.accumulate,
        )  # fmt: skip

    first_epoch = epoch_updates(0)
    first = next(first_epoch)  # the model is built for it, and it is read only once
    options = {
        "loss_gather": job.loss_gather, "track": job.track,
        "sizes": batch_sizes(len(sources.train), batch_size, recipe.steps_per_epoch),
        "evaluated": batch_sizes(len(sources.validation), batch_size) if sources.validation is not None else (),
    }  # fmt: skip
    notes = adapter.prepare(recipe, first, options)
    initial = weights.initialise(adapter, job, rundir)
    record(
        "start", **adapter.facts(), backend=job.backend, strategy=job.strategy, track=job.track, seed=job.seed,
        device_kind=job.device_kind, processes=adapter.processes, batch_size=batch_size,
        per_device_batch=shares(batch_size, adapter.devices), rows=len(sources.train),
        validation_rows=len(sources.validation) if sources.validation else 0, steps_per_epoch=steps_per_epoch,
        epochs=epochs, initial_weights=initial,
    )  # fmt: skip
    for note in [*notes, *idle_notes(len(sources.train), batch_size, steps_per_epoch, adapter)]:
        record("note", text=note)

    step, told = 0, False
    for epoch in range(epochs):
        began = time.perf_counter()
        epoch_loss = Mean()
        source = itertools.chain([first], first_epoch) if epoch == 0 else epoch_updates(epoch)
        for window in windows(source, seen):
            clock = time.perf_counter()
            handles = [adapter.train_step([adapter.put(batch) for batch in update]) for update in window.updates]
            losses = adapter.losses(handles)
            seconds = time.perf_counter() - clock + window.reading
            sizes = [update[0].update_size for update in window.updates]
            epoch_loss.add(losses, sizes)
            for batch in itertools.chain(*window.updates):
                if batch.counted(adapter.process):
                    order.add(step + batch.step, batch.offset + batch.positions, batch.indices[batch.positions])
            bad = next((number for number, loss in enumerate(losses) if not np.isfinite(loss)), None)
            if bad is not None and not told:
                told = True
                record("note", text=f"the loss is {losses[bad]} in step {step + window.updates[bad][0].step}")
            record(
                "window", epoch=epoch, step=step + window.updates[0][0].step, steps=len(handles), samples=sum(sizes),
                seconds=seconds, losses=losses, compiling=window.compiling,
            )  # fmt: skip
        step += steps_per_epoch
        metrics = {"loss": epoch_loss.value(), **adapter.metrics()}
        trained = time.perf_counter()
        if sources.validation is not None:
            scores = evaluate(adapter, sources.validation, batch_size)
            metrics |= {f"val_{name}": value for name, value in scores.items()}
        if job.track != "as-shipped":  # where frameworks let BatchNorm's statistics drift apart
            weights.check_replicas(adapter)
        now = time.perf_counter()
        record("epoch", epoch=epoch, seconds=trained - began, evaluation_seconds=now - trained, metrics=metrics)

    weights.save(adapter, recipe.model, rundir, record)
    usage = adapter.gather(np.array([peak_bytes(adapter), threads()], np.int64))
    record(
        "end", initial_weights=initial, sample_order=order.join(adapter.gather(order.lanes)),
        final_weights=weights.digests(adapter), peak_bytes=usage[:, 0].tolist(), threads=usage[:, 1].tolist(),
    )  # fmt: skip


def evaluate(adapter: Adapter, source: Source, batch_size: int) -> dict[str, float]:
    """Return loss and metrics over all rows of a source, each counted once."""
    loss = Mean()
    for batch in batches(source, batch_size=batch_size, seed=0, epoch=0, shuffle=False, part=_part(adapter)):
        loss.add(adapter.losses([adapter.evaluate_step(adapter.put(batch))]), [batch.size])
    return {"loss": loss.value(), **adapter.metrics()}


class Sources:
    """The rows to train on and, where the recipe has any, to validate on."""

    def __init__(self, train: Source, validation: Source | None):
        self.train, self.validation = train, validation


class Mean:
    """A mean over batches, weighted by their rows."""

    def __init__(self) -> None:
        self._total, self._rows = 0.0, 0

    def add(self, values: Iterable[float], rows: Iterable[int]) -> None:
        for value, count in zip(values, rows, strict=True):
            self._total += value * count
            self._rows += count

    def value(self) -> float:
        return self._total / self._rows


class Window:
    """Updates between two readings of the clock, and the seconds it took to read their data."""

    def __init__(self, compiling: bool):
        self.updates: list[Update] = []
        self.reading = 0.0
        self.compiling = compiling


def windows(source: Iterator[Update], seen: set[int]) -> Iterator[Window]:
    """Group updates; one of a size not seen before is alone, since a framework may compile for it."""
    window = Window(compiling=False)
    clock = time.perf_counter()
    for update in source:
        reading = time.perf_counter() - clock
        size = update[0].update_size
        new = size not in seen
        if window.updates and (new or len(window.updates) == WINDOW):
            yield window
            window = Window(compiling=False)
        seen.add(size)
        window.updates.append(update)
        window.compiling = new
        window.reading += reading
        if new:
            yield window
            window = Window(compiling=False)
        clock = time.perf_counter()
    if window.updates:
        yield window


def batch_sizes(rows: int, batch_size: int, steps: int | None = None) -> tuple[int, ...]:
    """Return the sizes of the batches of an epoch, each once, in the order in which they come."""
    starts = range(0, rows, batch_size)[:steps]
    return tuple(dict.fromkeys(min(batch_size, rows - start) for start in starts))


def shares(batch_size: int, devices: int) -> list[int]:
    """Return the rows of each device; every device has all rows of a batch smaller than the devices."""
    parts = split(batch_size, devices)
    return [part.stop - part.start for part in parts] if parts else [batch_size] * devices


def idle_notes(rows: int, batch_size: int, steps: int, adapter: Adapter) -> list[str]:
    """Return a line for batches with fewer rows than devices, which every device computes whole."""
    last = rows - (rows - 1) // batch_size * batch_size if steps * batch_size >= rows else batch_size
    notes = []
    for name, size in (("a batch", batch_size), ("the last batch of an epoch", last)):
        if size < adapter.devices:
            idle = ", ".join(str(device) for device in range(size, adapter.devices))
            have = f"{size} row{'s' if size > 1 else ''} for {adapter.devices} devices"
            notes.append(f"{name} has {have}: it is exact, but devices {idle} have no rows of their own")
            break
    return notes


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


def _part(adapter: Adapter) -> tuple[int, int]:
    return adapter.process, adapter.processes


