"""A session: the devices of one worker process, and the jobs that run on them one after the other."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from kmgpu import backends
from kmgpu.backends.adapter import Adapter, Place
from kmgpu.data.channel import PeerLost
from kmgpu.data.feed import Feed, Wish
from kmgpu.data.stream_feed import open_feed
from kmgpu.errors import KmgpuError, UsageError, first_line
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import EventWriter, RunDir
from kmgpu.worker import checking, failures, loop, parity, using
from kmgpu.worker.run import Run

_adapter_module: ModuleType | None = None


class Session:
    """Initialises the devices for the largest of the jobs; a job takes the first ones of them."""

    def __init__(self, process: int, scratch: Path, jobs: list[Job]):
        global _adapter_module
        row = backends.find(jobs[0].backend, jobs[0].strategy)
        devices = max(job.devices for job in jobs)
        processes = devices if row.one_process_per_device else 1
        self._place = Place(
            device_kind=jobs[0].device_kind,
            devices=devices,
            device_ids=jobs[0].device_ids,
            process=process,
            processes=processes,
            threads=max(1, len(os.sched_getaffinity(0)) // processes),
            deterministic=jobs[0].deterministic,
            rendezvous=str(scratch / "rendezvous"),
        )
        self._scratch = scratch
        self._module = _adapter_module = importlib.import_module(row.adapter)
        self._module.start(self._place)
        gc.freeze()  # what imports have made stays; without this each collection, also in training, goes through it
        self._adapter: Any = None
        self._number = 0  # of the run
        self._batch_size: int | None = None  # of the run, once it is known

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None and self._adapter is not None:
            self._adapter.close()

    def run(self, rundir: RunDir) -> None:
        """Run the job of a run directory; processes that it does not need do nothing."""
        job = rundir.job()
        self._adapter = adapter = self._module.Adapter(self._place, job.devices)
        self._number += 1
        if adapter.process >= adapter.processes:
            return
        self._batch_size = job.batch_size
        try:
            self._run(job, rundir, adapter)
        except Exception as error:
            meant = failures.meaning(
                error, job, process=adapter.process, processes=adapter.processes, batch_size=self._batch_size,
                peak_bytes=loop.peak_bytes(adapter),
            )  # fmt: skip
            if meant is None:
                raise
            raise meant from error

    def _run(self, job: Job, rundir: RunDir, adapter: Adapter) -> None:
        events = EventWriter(rundir.events_file) if adapter.process == 0 else None
        record = events.write if events is not None else (lambda event, **fields: None)
        scratch = self._scratch / f"run-{self._number}" if adapter.processes > 1 else None
        recipe = make_recipe(job, adapter)
        self._batch_size = job.batch_size or recipe.batch_size
        train = Wish(
            "train", adapter.process, adapter.processes, self._batch_size,
            given=job.batch_size is not None, steps=job.steps_per_epoch or recipe.steps_per_epoch, seed=job.seed,
            shuffle=recipe.shuffle,
            accumulate=recipe.accumulate, class_weight=recipe.class_weight, workers=job.workers, folder=scratch,
        )  # fmt: skip

        def whole(data: Any, what: str, steps: int | None = None) -> Feed:
            """Return the rows of what is not trained on, in their order, the same in every epoch."""
            return open_feed(
                data, dataclasses.replace(train, what=what, steps=steps, shuffle=False, accumulate=1, class_weight=None,
                again=True),
            )  # fmt: skip

        if job.mode == "predict":
            rows = whole(using.read_input(job.options["input"]), "input")
            using.predict(job, rundir, adapter, recipe, rows, record)
        elif job.mode == "evaluate":
            what = job.options["data"]
            steps = recipe.validation_steps if what == "validation" else recipe.steps_per_epoch
            rows = whole(getattr(recipe, what), what, steps)
            check_processes(adapter, rows, what)
            using.evaluate(job, rundir, adapter, recipe, rows, record)
        elif job.mode == "export":
            using.export(job, rundir, adapter, recipe, whole(recipe.train, "train"), record)
        elif job.mode == "check":
            checking.run(job, rundir, adapter, recipe, open_feed(recipe.train, train), record)
        elif job.mode == "parity":
            rows = open_feed(recipe.train, train)
            check_processes(adapter, rows, "train")
            parity.run(job, rundir, adapter, recipe, rows, record)
        else:
            trained = open_feed(recipe.train, train)
            check_processes(adapter, trained, "train")
            validation = None
            if recipe.validation is not None:
                validation = whole(recipe.validation, "validation", recipe.validation_steps)
                check_processes(adapter, validation, "validation")
            loop.train(Run(job, rundir, adapter, recipe, trained, validation, record))
        if events is not None:
            events.close()


def check_processes(adapter: Adapter, feed: Feed, what: str) -> None:
    """Raise UsageError if the processes, each of which has called the recipe, have made other data of it."""
    prints = adapter.gather(feed.fingerprint())
    if (prints != prints[0]).any():
        raise UsageError(
            f"{what} is not the same in all {adapter.processes} processes, each of which calls recipe(): give random "
            "generators a seed, such as np.random.default_rng(0), or give the data as a function, which is called once"
        )


def make_recipe(job: Job, adapter: Adapter) -> Recipe:
    """Make the recipe in the adapter's scope."""
    adapter.reset(job.seed, job.precision)
    adapter.tools.set_randomness(adapter.words if job.randomness == "portable" else None)
    with adapter.scope():
        recipe = call_recipe(job)
    adapter.tools.check_callbacks(recipe.callbacks)
    return recipe


def call_recipe(job: Job) -> Recipe:
    """Import the recipe's file and call its function; what goes wrong is one sentence."""
    path = Path(job.recipe)
    sys.path.insert(0, str(path.parent))  # a recipe may import its neighbours
    try:
        name = f"kmgpu_recipe_{path.stem}"  # a recipe may be called numpy.py
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        recipe = module.recipe(**job.settings)
    except (KmgpuError, MemoryError):
        raise
    except Exception as error:
        traceback.print_exception(error)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = f", line {lines[-1]}" if lines else ""
        raise UsageError(f"{path.name}{line} raised {first_line(error)}") from error
    except SystemExit as error:
        raise UsageError(
            f"{path.name} called sys.exit({error.code!r}); a recipe returns a kmgpu.Recipe instead"
        ) from error
    if not isinstance(recipe, Recipe):
        raise UsageError(f"recipe() of {path.name} returned a {type(recipe).__name__}; it must return a kmgpu.Recipe")
    return recipe


def lost_peer(error: BaseException) -> bool:
    """Whether a process stops only because another one did."""
    return isinstance(error, PeerLost) or (_adapter_module is not None and _adapter_module.lost_peer(error))
