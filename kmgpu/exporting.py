"""Export a trained run into a file that other programs load, by Keras's own exporters."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kmgpu import environment, training, using
from kmgpu.errors import MissingEnvironment, UsageError, nearest
from kmgpu.report.runs import Run
from kmgpu.rundir import RunDir


@dataclass(frozen=True)
class Format:
    """A kind of export: how its files end, the backend that writes it (None: the run's), packages it needs there."""

    suffix: str
    backend: str | None = None
    needs: tuple[str, ...] = ()


FORMATS = {
    "keras": Format(".keras"),
    "weights": Format(".weights.h5"),
    "savedmodel": Format("", "tensorflow"),
    "onnx": Format(".onnx", "torch", ("onnx", "onnxscript")),
}


def export(
    run: str | os.PathLike[str],
    format: str,
    *,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    checkpoint: str | None = None,
    python: Mapping[str, str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write a run's trained model in a format (keras, weights, savedmodel or onnx) and return the path.

    A new one in the run's ``exports`` unless ``output`` is given. Written whole or not at all. The weights are those of
    the run's end, or of a ``checkpoint``: last, best, its name, or the number of its step. Raises UsageError or
    MissingEnvironment before anything starts.
    """
    trained = using.trained_run(run, checkpoint)
    if format not in FORMATS:
        raise UsageError(f"--format is {format!r}{nearest(str(format), list(FORMATS))}; it is {', '.join(FORMATS)}")
    kind = FORMATS[format]
    path = _output(trained, kind, output, force)
    if format == "keras" and checkpoint is None:
        _copy(trained, path)
        return path
    backend = kind.backend or trained.job.backend
    options = {"format": format, "output": str(path.absolute())}
    job = using.make_job(
        trained, "export", options, backend=backend, checkpoint=checkpoint, device_kind="cpu", python=python
    )
    _check_packages(format, kind, job.python or sys.executable)
    rundir = RunDir.create(using.new_path(trained.path / "exports", f"{format}-{backend}"), job)
    show(f"weights of {using.origin(trained, job)} as {format}, {using.place(job)}")
    training.run([rundir], show=show)
    return path


def _output(trained: Run, kind: Format, output: str | os.PathLike[str] | None, force: bool) -> Path:
    if output is None:
        (trained.path / "exports").mkdir(exist_ok=True)
        path = trained.path / "exports" / f"{trained.job.recipe_name}{kind.suffix}"
    else:
        path = Path(output)
    if not path.name.endswith(kind.suffix):
        raise UsageError(f"--output is {path}; a file of this format ends in {kind.suffix}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; give another --output, or --force to replace it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--output {path}: there is no directory {path.parent}")
    return path


def _copy(trained: Run, path: Path) -> None:
    """Write the run's model.keras, with the optimizer's state, to another place."""
    source = RunDir(trained.path).model_file
    if not source.exists():
        raise UsageError(f"{trained.path} has no model.keras (its notes say why); use --format weights")
    neighbour = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.copyfile(source, neighbour)
    neighbour.replace(path)


def _check_packages(format: str, kind: Format, python: str) -> None:
    found = environment.packages(python, kind.needs)
    missing = [name for name, version in found.items() if version is None]
    if missing:
        raise MissingEnvironment(
            f"--format {format} needs {' and '.join(missing)}, which {python} does not have: install with "
            f"`{python} -m pip install {' '.join(missing)}`"
        )
