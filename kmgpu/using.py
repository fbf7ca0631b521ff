"""Use a trained run: its scores, and its outputs for new rows, on any backend and number of devices."""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kmgpu import checkpoints, training
from kmgpu.errors import UsageError, nearest
from kmgpu.job import Job
from kmgpu.report import runs
from kmgpu.report.runs import Run
from kmgpu.rundir import RunDir, read_json

DATA = ("validation", "train")
SUFFIXES = (".npy", ".npz")


@dataclass(frozen=True)
class EvaluateResult:
    """The directory of an evaluation, and what its evaluation.json says."""

    path: Path
    record: dict[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        return self.record["metrics"]


def evaluate(
    run: str | os.PathLike[str],
    *,
    data: str = "validation",
    backend: str | None = None,
    devices: int | None = None,
    device_kind: str = "auto",
    batch_size: int | None = None,
    checkpoint: str | None = None,
    python: Mapping[str, str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> EvaluateResult:
    """Return loss and metrics of a run's weights over its recipe's data, each row counted once.

    The weights are those of the run's end, or of a ``checkpoint``: last, best, its name, or the number of its step.
    On the run's backend and one device, unless others are named. The result is kept in the run, in
    ``evaluations/<date>-...``. Raises UsageError or MissingEnvironment before anything starts.
    """
    trained = trained_run(run, checkpoint)
    if data not in DATA:
        raise UsageError(f"--data is {data!r}{nearest(str(data), list(DATA))}; it is {' or '.join(DATA)}")
    if data == "validation" and not trained.start.get("validation_rows"):
        raise UsageError(f"the recipe of {trained.path} has no validation data; use --data train")
    wish: dict[str, Any] = {
        "backend": backend,
        "devices": devices,
        "device_kind": device_kind,
        "batch_size": batch_size,
    }
    job = make_job(trained, "evaluate", {"data": data}, checkpoint=checkpoint, python=python, **wish)
    rundir = RunDir.create(new_path(trained.path / "evaluations", f"{data}-{job.backend}-{job.devices}"), job)
    show(f"{data} data of {trained.job.recipe_name}, weights of {origin(trained, job)}, {place(job)}")
    training.run([rundir], show=show)
    return EvaluateResult(rundir.path, read_json(rundir.path / "evaluation.json"))


def predict(
    run: str | os.PathLike[str],
    input: Any,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    backend: str | None = None,
    devices: int | None = None,
    device_kind: str = "auto",
    batch_size: int | None = None,
    checkpoint: str | None = None,
    python: Mapping[str, str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> Any:
    """Return the outputs of a run's weights, a row for each row of the input, in order.

    ``input`` is the path of an .npy or .npz file, or an array, or a dict of arrays for several inputs. The outputs are
    one array, or a dict of arrays by name; they are written to ``output`` (.npy for one, .npz) where it is given.
    ``checkpoint`` is as for ``evaluate``.
    Raises UsageError or MissingEnvironment before anything starts.
    """
    trained = trained_run(run, checkpoint)
    with tempfile.TemporaryDirectory(prefix="kmgpu-") as folder:
        source = _file(input, Path(folder))
        rows = _check_input(source, trained)
        target = Path(folder, "outputs.npz") if output is None else _check_output(Path(output), force)
        options = {"input": str(source.absolute()), "output": str(target.absolute())}
        wish: dict[str, Any] = {
            "backend": backend,
            "devices": devices,
            "device_kind": device_kind,
            "batch_size": batch_size,
        }
        job = make_job(trained, "predict", options, checkpoint=checkpoint, python=python, **wish)
        rundir = RunDir.create(new_path(trained.path / "predictions", f"{job.backend}-{job.devices}"), job)
        show(f"{rows:,} rows of {os.fspath(source)}, weights of {origin(trained, job)}, {place(job)}")
        training.run([rundir], show=show)
        if target.suffix == ".npy":
            return np.load(target, allow_pickle=False)
        with np.load(target, allow_pickle=False) as outputs:
            named = {name: outputs[name] for name in outputs.files}
    return named["output"] if list(named) == ["output"] else named


def trained_run(path: str | os.PathLike[str], checkpoint: str | None = None) -> Run:
    """Return a run that has weights to use: in the end, or in a checkpoint that is asked for."""
    run = runs.load(Path(path))
    if run.job.mode != "train":
        raise UsageError(
            f"{run.path} is no training run (its mode is {run.job.mode}); give one that `kmgpu train` made"
        )
    if checkpoint is not None:
        checkpoints.named(run.path, checkpoint)
    elif not RunDir(run.path).weights_file.exists():
        other = ", or its last checkpoint with --checkpoint last" if checkpoints.listed(run.path) else ""
        raise UsageError(
            f"{run.path} has no weights.safetensors, its status is {run.status}; use a run that ended well{other}"
        )
    if not Path(run.job.recipe).is_file():
        raise UsageError(f"the recipe of {run.path} is not at {run.job.recipe} any more; put it back there")
    return run


def make_job(
    trained: Run,
    mode: str,
    options: dict[str, Any],
    *,
    backend: str | None = None,
    batch_size: int | None = None,
    checkpoint: str | None = None,
    **wish: Any,
) -> Job:
    """Return a job that uses a run's weights; what is not wished for is as the run had it."""
    job, weights = trained.job, RunDir(trained.path).weights_file
    if checkpoint is not None:
        weights = checkpoints.named(trained.path, checkpoint).path
    return training.make_job(
        job.recipe, backend=backend or job.backend, batch_size=batch_size or trained.start.get("batch_size"),
        settings=job.settings, seed=job.seed, precision=job.precision, deterministic=job.deterministic,
        loss_gather=job.loss_gather, initial_weights=weights, mode=mode, options=options,
        **wish,
    )  # fmt: skip


def origin(trained: Run, job: Job) -> str:
    """Return whose weights a job uses: a run's directory, or a checkpoint's."""
    path = Path(str(job.initial_weights))
    return str(trained.path / path.relative_to(trained.path.absolute()) if path.is_dir() else trained.path)


def place(job: Job) -> str:
    """Return where a job runs, in words."""
    kind = "virtual CPU device" if job.device_kind == "cpu" else "GPU"
    return f"{job.backend} on {job.devices} {kind}{'s' if job.devices > 1 else ''}"


def new_path(parent: Path, what: str) -> Path:
    """Return a new path that says when and what."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{what}"
    path, number = parent / name, 2
    while path.exists():
        path, number = parent / f"{name}-{number}", number + 1
    return path


def _file(input: Any, folder: Path) -> Path:
    """Return the path of the input, written into a folder where arrays were given."""
    if isinstance(input, (str, os.PathLike)):
        return Path(input)
    path = folder / "inputs.npz"
    if isinstance(input, Mapping):
        np.savez(path, allow_pickle=False, **{name: np.asarray(array) for name, array in input.items()})
    else:
        np.savez(path, allow_pickle=False, input=np.asarray(input))
    return path


def _check_input(path: Path, trained: Run) -> int:
    """Return the number of rows of an input file; raises UsageError for what the model cannot take, as far as known."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--input is {path}; it is a file of NumPy's, .npy or .npz")
    if not path.is_file():
        raise UsageError(f"--input {path}: no such file")
    try:
        found = dict(_headers(path))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"--input {path} cannot be read as {path.suffix} ({error}); write it with numpy.save"
        ) from error
    if not found:
        raise UsageError(f"--input {path} holds no array")
    for name, (shape, dtype) in found.items():
        if dtype.kind not in "biuf":
            raise UsageError(f"--input {path}: {name} has dtype {dtype}; it must hold real numbers")
        if not shape or shape[0] == 0:
            raise UsageError(f"--input {path}: {name} has shape {shape}; it must have at least one row")
    rows = {name: shape[0] for name, (shape, _) in found.items()}
    if len(set(rows.values())) > 1:
        said = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        raise UsageError(f"--input {path}: its arrays have different numbers of rows ({said})")
    _check_shapes(path, found, _wanted(trained))
    return next(iter(rows.values()))


def _check_shapes(path: Path, found: dict[str, Any], wanted: dict[str, tuple[Any, ...]]) -> None:
    if not wanted or "arr_0" in found and len(found) > 1:  # inputs by place are the worker's to check
        return
    if len(wanted) == len(found) == 1:
        found = dict(zip(wanted, found.values(), strict=True))
    elif set(wanted) != set(found):
        raise UsageError(
            f"--input {path} holds {', '.join(found)}, the model has the inputs {', '.join(wanted)}; "
            "give an .npz with an array for each, by these names"
        )
    for name, shape in wanted.items():
        came = found[name][0]
        same = len(came) == len(shape) and all(want in (None, have) for want, have in zip(shape, came, strict=True))
        if not same:
            rows = ", ".join("any" if size is None else str(size) for size in shape[1:])
            raise UsageError(f"--input {path}: {name} has rows of shape {came[1:]}, the model takes ({rows})")


def _headers(path: Path) -> Iterator[tuple[str, tuple[tuple[int, ...], np.dtype]]]:
    """Yield name, shape and dtype of each array of a file, without reading it."""
    if path.suffix == ".npy":
        with path.open("rb") as file:
            yield path.stem, _header(file)
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as part:
                yield member.removesuffix(".npy"), _header(part)  # type: ignore[arg-type]


def _header(file: BinaryIO) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _wanted(trained: Run) -> dict[str, tuple[Any, ...]]:
    """Return name and shape of the model's inputs as model.keras has them; empty where it does not say."""
    try:
        with zipfile.ZipFile(RunDir(trained.path).model_file) as archive:
            config = json.loads(archive.read("config.json"))
        layers: Sequence[dict[str, Any]] = config["config"]["layers"]
        inputs = [layer["config"] for layer in layers if layer["class_name"] == "InputLayer"]
        return {layer["name"]: tuple(layer["batch_shape"]) for layer in inputs}
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile):
        return {}  # not written, or a model of a class of its own


def _check_output(path: Path, force: bool) -> Path:
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--output is {path}; it is a file of NumPy's, .npy for one output or .npz for several")
    if path.exists() and not force:
        raise UsageError(f"--output {path} exists; give another, or --force to replace it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--output {path}: there is no directory {path.parent}")
    return path
