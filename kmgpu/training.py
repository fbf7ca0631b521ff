"""Train one recipe on one backend: from a wish to a job, a run directory, worker processes and an outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kmgpu import backends, checkpoints, environment, follow, launch, recipe_card, records, resumption
from kmgpu.backends import Strategy
from kmgpu.errors import Interrupted, KmgpuError, RunFailed, UsageError, expect, nearest
from kmgpu.job import FORMAT, PRECISIONS, Job
from kmgpu.monitor import Monitor
from kmgpu.pacing import pace
from kmgpu.rundir import RunDir, write_json
from kmgpu.sinks import make as make_sinks

DEFAULT_RECIPE = "digits_cnn"
TRACKS = ("same-math", "as-shipped")
RANDOMNESS = ("native", "portable")
POLL_SECONDS = 0.1  # how often the events of a run are looked for
GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL when workers are stopped
STOP_SECONDS = 30.0  # the same, for workers that end their window and write a last checkpoint


@dataclass(frozen=True)
class TrainResult:
    """A finished run: its directory, and what outcome.json says of it."""

    path: Path
    outcome: dict[str, Any]

    @property
    def history(self) -> list[dict[str, float]]:
        """Metrics of each epoch, those of the validation data under val_<name>."""
        return self.outcome["history"]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last epoch."""
        return self.history[-1]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        """The trained weights by the path of their variable, in the model's order."""
        import json

        from safetensors import safe_open

        with safe_open(RunDir(self.path).weights_file, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in json.loads(file.metadata()["order"])}

    @property
    def model_file(self) -> Path:
        """A .keras file that plain Keras loads on any backend."""
        return RunDir(self.path).model_file


def train(
    recipe: str | os.PathLike[str] | None = None,
    *,
    backend: str | None = None,
    strategy: str | None = None,
    devices: int | None = None,
    device_ids: Sequence[int] | None = None,
    device_kind: str | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    seed: int | None = None,
    precision: str | None = None,
    deterministic: bool = False,
    settings: Mapping[str, Any] | None = None,
    python: Mapping[str, str] | None = None,
    initial_weights: str | os.PathLike[str] | None = None,
    loss_gather: str | None = None,
    track: str | None = None,
    randomness: str | None = None,
    steps_per_epoch: int | None = None,
    max_steps: int | None = None,
    max_time: str | float | None = None,
    validate_every: int | None = None,
    scale_lr: str | None = None,
    warmup_epochs: int | None = None,
    on_nan: str | None = None,
    workers: int | None = None,
    checkpoint_every: str | None = None,
    keep: int | None = None,
    keep_best: str | None = None,
    resume: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    sinks: Sequence[str | follow.Sink] = (),
    show: Callable[[str], None] = lambda line: None,
) -> TrainResult | None:
    """Train a recipe, given by name or file, and return its result; None after a dry run.

    ``batch_size`` is global. ``settings`` are keyword arguments of the recipe function. ``max_time`` is a text such as
    "1h30m", or seconds. ``workers`` threads, over all processes, read rows, or batches of a PyDataset; one in each
    process if left out. ``resume`` is a run to go on with, or one of its checkpoints: what is not given is then as it
    was there. ``force`` replaces a run that is in ``out``. ``sinks`` are names such as "csv", or functions that get
    each record of the run. ``show`` gets the lines for the user. Raises UsageError or MissingEnvironment before
    anything starts, RunFailed when a process stops.
    """
    expect("out", out, (str, os.PathLike), "the path of a new directory")
    wishes: dict[str, Any] = {
        "backend": backend, "strategy": strategy, "devices": devices, "device_ids": device_ids,
        "device_kind": device_kind, "batch_size": batch_size, "epochs": epochs, "seed": seed, "precision": precision,
        "deterministic": deterministic or None, "settings": settings,
        "python": python, "initial_weights": initial_weights, "loss_gather": loss_gather, "track": track,
        "workers": workers, "randomness": randomness,
        "checkpoints": checkpoint_wishes(checkpoint_every, keep, keep_best),
        **pace(
            steps_per_epoch=steps_per_epoch, max_steps=max_steps, max_time=max_time, validate_every=validate_every,
            scale_lr=scale_lr, warmup_epochs=warmup_epochs, on_nan=on_nan,
        ),
    }  # fmt: skip
    wishes = {name: value for name, value in wishes.items() if value is not None}
    made = make_sinks(sinks)
    if resume is not None:
        checkpoint, lines = resumption.find(resume)
        recipe = resumption.recipe_of(checkpoint, recipe)
        wishes = resumption.wishes(checkpoint, wishes)
        for line in lines:
            show(line)
    elif "backend" not in wishes:
        raise UsageError(f"no backend was named; it is one of {', '.join(backends.BACKENDS)}")
    else:
        wishes.setdefault("checkpoints", {"on_stop": True})
    job = make_job(recipe or DEFAULT_RECIPE, **wishes)
    path = Path(out) if out is not None else default_path(job)
    if dry_run:
        for line in describe(job, path):
            show(line)
        return None
    if force:
        remove_old(path, job)
    rundir = RunDir.create(path, job)
    run([rundir], show=show, sinks=made)
    show(f"the run is in {rundir.path}")
    outcome = rundir.outcome()
    assert outcome is not None
    return TrainResult(rundir.path, outcome)


def fit(
    recipe: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    show: Callable[[str], None] = lambda line: None,
    **wishes: Any,
) -> None:
    """Train a recipe with Keras's own fit, to time it; ``wishes`` as ``train`` has them. Raises as ``train``."""
    given = {name: value for name, value in wishes.items() if value is not None}
    job = dataclasses.replace(make_job(recipe, **given), mode="fit", track="keras-fit")
    row = backends.find(job.backend, job.strategy)
    if job.devices > 1 and not row.fits_on_several:
        raise UsageError(f"Keras's fit on {job.backend} uses one device, and --devices is {job.devices}")
    run([RunDir.create(Path(out), job)], show=show)


def make_job(
    recipe: str | os.PathLike[str],
    *,
    backend: str,
    strategy: str | None = None,
    devices: int | None = None,
    device_ids: Sequence[int] | None = None,
    device_kind: str = "auto",
    settings: Mapping[str, Any] | None = None,
    python: Mapping[str, str] | None = None,
    initial_weights: str | os.PathLike[str] | None = None,
    **fields: Any,
) -> Job:
    """Check every wish that can be checked before something starts, and return the job."""
    card = recipe_card.card(recipe_card.find_recipe(recipe))
    row = backends.find(backend, strategy)
    chosen = recipe_card.checked_settings(card, settings or {})
    expect("device_ids", device_ids, Sequence, "a list of whole numbers such as [0, 1]")
    expect("initial_weights", initial_weights, (str, os.PathLike), "the path of a file")
    for name in ("batch_size", "epochs"):
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"--{name.replace('_', '-')} is {value!r}; it is a count of at least 1")
    check_seed(fields.get("seed", 0))
    check_workers(fields.get("workers"))
    check_track(fields.get("track", TRACKS[0]))
    check_randomness(fields.get("randomness", RANDOMNESS[0]), fields.get("track", TRACKS[0]))
    check_loss_gather(fields.get("loss_gather", "auto"))
    precision = fields.get("precision", PRECISIONS[0])
    kind, count, ids = environment.resolve_devices(device_kind, devices, device_ids)
    check_precision(precision, kind)
    if initial_weights is not None and not (
        Path(initial_weights).is_file() or Path(initial_weights, checkpoints.MANIFEST).is_file()
    ):
        raise UsageError(
            f"--initial-weights {os.fspath(initial_weights)}: no such file; a run's directory has one, and a "
            "checkpoint will do"
        )
    return Job(
        recipe=str(card.path),
        backend=backend,
        strategy=row.name,
        devices=count,
        device_kind=kind,
        device_ids=ids,
        settings=chosen,
        initial_weights=None if initial_weights is None else str(Path(initial_weights).absolute()),
        python=environment.interpreter(backend, python),
        **fields,
    )


def checkpoint_wishes(every: str | None, keep: int | None, keep_best: str | None) -> dict[str, Any] | None:
    """Return the job's ``checkpoints``: none at all for "never"; None if nothing was asked for."""
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 1):
        raise UsageError(f"--keep is {keep!r}; it is a count of at least 1")
    if every is None and keep_best is None:
        if keep is not None:
            raise UsageError(f"--keep is {keep}, and no checkpoints are asked for; say --checkpoint-every as well")
        return None
    if every == "never":
        if keep_best is not None or keep is not None:
            raise UsageError("--checkpoint-every is never, and --keep or --keep-best ask for some; choose one")
        return {}
    wishes = {
        "on_stop": True, "every": None if every is None else checkpoints.every(every), "keep": keep,
        "best": None if keep_best is None else checkpoints.best(keep_best),
    }  # fmt: skip
    return {name: value for name, value in wishes.items() if value is not None}


def check_workers(workers: Any) -> None:
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
        raise UsageError(f"--workers is {workers!r}; it is a number of threads")


def check_randomness(randomness: str, track: str) -> None:
    if randomness not in RANDOMNESS:
        known = list(RANDOMNESS)
        raise UsageError(f"--randomness is {randomness!r}{nearest(randomness, known)}; it is {' or '.join(known)}")
    if randomness == "portable" and track == "as-shipped":
        raise UsageError("--randomness portable is no framework's own habit; leave it out, or use --track same-math")


def check_track(track: str) -> None:
    if track not in TRACKS:
        raise UsageError(f"--track is {track!r}{nearest(track, list(TRACKS))}; it is {' or '.join(TRACKS)}")


def check_loss_gather(loss_gather: str) -> None:
    if loss_gather not in ("auto", "on", "off"):
        raise UsageError(f"--loss-gather is {loss_gather!r}; it is auto, on or off")


def check_precision(precision: str, device_kind: str) -> None:
    if precision not in PRECISIONS:
        close = nearest(str(precision), list(PRECISIONS))
        raise UsageError(f"--precision is {precision!r}{close}; it is {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}")
    if precision == "tf32" and device_kind == "cpu":
        raise UsageError("--precision tf32 is a mode of GPUs, and there are virtual CPU devices; use float32 on these")


def check_seed(seed: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**31:
        raise UsageError(f"--seed is {seed!r}; it is a whole number from 0 to {2**31 - 1}")


def remove_old(path: Path, job: Job) -> None:
    """Remove the run in a directory, for another to take its place; what is no run stays, what is needed is refused."""
    if not RunDir(path).job_file.is_file():
        return
    for needed in (job.resume, job.initial_weights):
        if needed is not None and Path(needed).resolve().is_relative_to(path.resolve()):
            raise UsageError(f"--force would remove {needed}, from which this run is to start; choose another --out")
    with checkpoints.held(path) as free:
        if not free:
            raise UsageError(f"{path} is still being trained; stop it first, or choose another --out")
        neighbour = path.with_name(f".{path.name}.removing")
        shutil.rmtree(neighbour, ignore_errors=True)
        path.rename(neighbour)
    shutil.rmtree(neighbour)


def default_path(job: Job) -> Path:
    """Return a new path under ./runs that says when, what and where."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{job.recipe_name}-{job.backend}-{job.devices}"
    path, number = Path("runs", name), 2
    while path.exists():
        path, number = Path("runs", f"{name}-{number}"), number + 1
    return path


def commands(job: Job, rundirs: Sequence[RunDir], scratch: Path) -> list[launch.Command]:
    """Return the worker processes of runs that share them; ``job`` is the one with the most devices."""
    row = backends.find(job.backend, job.strategy)
    runs = [str(rundir.path.absolute()) for rundir in rundirs]
    worker = Path(__file__).with_name("worker") / "__main__.py"
    processes = job.devices if row.one_process_per_device else 1
    return [
        launch.Command(
            argv=[
                job.python or sys.executable, "-P", str(worker),
                "--process", str(process), "--scratch", str(scratch), *runs,
            ],
            environment=launch.local_environment(os.environ, _worker_environment(job, row, process)),
            log=rundirs[0].log_file(process),
        )
        for process in range(processes)
    ]  # fmt: skip


def _worker_environment(job: Job, row: Strategy, process: int) -> dict[str, str]:
    extra = {"KERAS_BACKEND": job.backend, "PYTHONUNBUFFERED": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    if job.deterministic:
        extra["PYTHONHASHSEED"] = "0"
        for name, value in row.deterministic_environment.items():
            before = os.environ.get(name, "") if name.endswith("_FLAGS") else ""
            extra[name] = f"{before} {value}".strip()
    if job.device_kind == "cpu":
        return extra | row.cpu_environment
    if row.one_process_per_device:  # each process sees its own device alone, as device 0
        gpus = environment.visible_gpus()
        extra["CUDA_VISIBLE_DEVICES"] = gpus[_device_ids(job)[process]]
    return extra


def describe(job: Job, path: Path) -> list[str]:
    """Return the lines of a dry run: the job, and each worker's command line as it can be run by hand."""
    lines = [f"run directory: {path}", f"interpreter: {job.python}", "job:"]
    lines += [f"    {name}: {value!r}" for name, value in job.to_json().items()]
    for process, command in enumerate(commands(job, [RunDir(path)], Path("SCRATCH"))):
        difference = launch.environment_difference(os.environ, command.environment)
        lines.append(f"process {process}: {launch.describe(command.argv, difference)}")
    return lines


def run(
    rundirs: Sequence[RunDir],
    *,
    show: Callable[[str], None] = lambda line: None,
    sinks: Sequence[follow.Sink] = (),
) -> None:
    """Run the jobs of run directories one after the other in the same worker processes, and write their outcomes.

    ``sinks`` get the records of all of them, and are closed. A run that trains is monitored.
    Raises the first failure, after all outcomes are written; jobs that did not get their turn have failed too.
    """
    jobs = [rundir.job() for rundir in rundirs]
    largest = max(jobs, key=lambda job: job.devices)
    started = time.time()
    for rundir in rundirs:
        write_json(rundir.environment_file, environment.machine())
    error: KmgpuError | None = None
    followers = [follow.Follower(rundir, show, sinks) for rundir in rundirs]
    try:
        scratch = Path(tempfile.mkdtemp(prefix="kmgpu-", dir=_scratch_parent()))
        workers = commands(largest, rundirs, scratch)
        grace = STOP_SECONDS if largest.checkpoints else GRACE_SECONDS
        with launch.interrupts(), launch.Launch.start(workers, grace=grace, scratch=scratch) as opened:
            try:
                _follow(opened, rundirs, followers, started)
            except KeyboardInterrupt:
                if largest.checkpoints:
                    show(f"stopping with a last checkpoint, within {STOP_SECONDS:.0f} s; Ctrl-C again stops at once")
                raise
        failures = [launch.first_failure(rundir, opened.exits) for rundir in rundirs]
        reported = [failure for failure in failures if failure is not None and failure.kind is not None]
        failure = (reported or failures)[0]
        error = failure.to_error() if failure is not None else resumption.stopped_by_itself(rundirs[0])
    except Interrupted as stopped:
        error = resumption.stopped(rundirs[0], stopped)
    done = [finish(rundir, started, error) for rundir in rundirs]
    for rundir, follower in zip(rundirs, followers, strict=True):
        follower.read()  # what came while the processes were stopped
        follower.hand(follow.outcome_record(rundir.outcome() or {}))
        follower.close()
    if error is not None and (isinstance(error, Interrupted) or not all(done)):
        raise error


def _follow(
    opened: launch.Launch, rundirs: Sequence[RunDir], followers: Sequence[follow.Follower], started: float
) -> None:
    """Hand on the records of runs, and monitor the first one if it trains, until no process is left."""
    jobs = [rundir.job() for rundir in rundirs]
    for rundir, job, follower in zip(rundirs, jobs, followers, strict=True):
        follower.hand(follow.launch_record(rundir, job, started))
    with contextlib.ExitStack() as stack:
        monitor = None
        if jobs[0].mode == "train":
            monitor = stack.enter_context(contextlib.closing(_monitor(rundirs[0], jobs[0], opened)))
        while opened.running:
            opened.poll(POLL_SECONDS)
            for follower in followers:
                follower.read()
            record = monitor.take() if monitor is not None else None
            if record is not None:
                followers[0].hand(record)


def _monitor(rundir: RunDir, job: Job, opened: launch.Launch) -> Monitor:
    gpus = environment.visible_gpus() if job.device_kind == "gpu" else ()
    return Monitor(rundir.monitor_file, opened.pids, [gpus[index] for index in _device_ids(job)] if gpus else ())


def _device_ids(job: Job) -> Sequence[int]:
    return job.device_ids or range(job.devices)


def _scratch_parent() -> str | None:
    """Return a folder in memory, so that data shared by the processes of a host costs no disk; None for the usual."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def finish(rundir: RunDir, started: float, error: KmgpuError | None) -> bool:
    """Write outcome.json, the last file of a run; return whether the run is whole."""
    events = rundir.events()
    whole = any(event["event"] == "end" for event in events)
    if whole:
        status, reason = "ok", None
    elif isinstance(error, Interrupted):
        status, reason = "interrupted", str(error)
    else:
        status, reason = "failed", str(error or RunFailed("the workers ended before the run was done"))
    write_json(
        rundir.outcome_file,
        {
            "format": FORMAT, "status": status, "reason": reason, "launched_time": started, "ended": time.time(),
            **records.fold(events),
        },
    )  # fmt: skip
    return whole
