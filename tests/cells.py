"""Cells of the contract: recipes that every backend runs on 1, 2 and 4 devices, all cells of a backend in one launch.

A test file says at its top which cells it looks at (``cells.add``), and its tests get them from the fixture ``ran``:
``ran(backend, name, devices)``. Starting workers costs seconds and a cell costs a fraction of one, so the first test
of a backend launches all cells that the collected files have added. A cell that fails does not take the others along:
they are launched again without it.

The launches are made in an environment full of what schedulers, other launchers and a careless user may have set.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from kmgpu import training
from kmgpu.backends import BACKENDS
from kmgpu.errors import KmgpuError
from kmgpu.rundir import RunDir

RECIPES = Path(__file__).with_name("recipes")
STOCK = Path(__file__).with_name("stock.py")
DEVICES = (1, 2, 4)
CELL_SECONDS = 60  # a launch that takes longer for each of its cells, on average, hangs
# For `python -c`, where the script kmgpu may not be on the path. A shell's background job starts deaf to Ctrl-C.
COMMAND_LINE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from kmgpu.cli import main; main()"
)

FOREIGN_VARIABLES = {
    "SLURM_JOB_ID": "4711", "SLURM_NTASKS": "8", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NNODES": "4",
    "SLURM_STEP_NODELIST": "nowhere[1-4]", "SLURM_JOB_NODELIST": "nowhere[1-4]", "SLURM_STEP_GPUS": "7",
    "RANK": "5", "LOCAL_RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "nowhere.invalid",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TF_CONFIG": '{"cluster": {"worker": ["nowhere.invalid:1", "x:2"]}, "task": {"type": "w", "index": 9}}',
    "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "PMI_RANK": "5", "PMIX_RANK": "5",
    "KERAS_BACKEND": "", "KERAS_TORCH_DEVICE": "cuda", "JAX_PLATFORMS": "cuda", "JAX_NUM_CPU_DEVICES": "3",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=3", "TF_USE_LEGACY_KERAS": "1",
    "KERAS_HOME": str(Path(__file__).with_name("unusual_keras_home")),  # channels_first, float16, a large epsilon
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A run that the contract asks of every backend in ``backends``."""

    name: str
    recipe: str
    devices: int
    backends: tuple[str, ...]
    order: int  # cells are run in rising order, and as they were added
    fields: dict[str, Any] = field(default_factory=dict)  # of the job; "FOLDER" in a text is the run's directory

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.devices


_cells: dict[tuple[str, int], Cell] = {}
PREDICTS = {"mode": "predict", "options": {"input": "FOLDER/input.npz", "output": "FOLDER/predictions.npz"}}


def add(
    name: str,
    recipe: str,
    devices: Sequence[int] = DEVICES,
    *,
    backends: Sequence[str] = BACKENDS,
    order: int = 0,
    **fields: Any,
) -> None:
    """Ask for a recipe on these numbers of devices; ``fields`` are those of ``kmgpu.train`` (settings, seed, ...).

    ``recipe`` is one in tests/recipes, or else a shipped one.

    A cell that predicts, with ``**PREDICTS``, has ``inputs`` beside: arrays by name.
    """
    for count in devices:
        cell = Cell(name, recipe, count, tuple(backends), order, fields)
        assert cell.key not in _cells, f"two cells are called {cell.key}"
        _cells[cell.key] = cell


LOADED_MODULES = "loaded-modules"  # the last cell of every launch, so that it sees what all others have loaded
add(LOADED_MODULES, "loaded_modules", devices=(4,), order=1, settings={"folder": "FOLDER"})


@dataclass(frozen=True)
class Ran:
    """A cell that has run."""

    rundir: RunDir
    shown: list[str]  # what the user was told of the whole launch, this cell and others

    @property
    def outcome(self) -> dict[str, Any]:
        outcome = self.rundir.outcome()
        assert outcome is not None
        return outcome

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.outcome["history"]

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        windows = [event for event in self.rundir.events() if event["event"] == "window"]
        return [loss for window in windows for loss in window["losses"]]

    @property
    def weights(self) -> dict[str, np.ndarray]:
        return load_file(self.rundir.weights_file)

    @property
    def weight(self) -> float:
        """The value of the one weight that the recipes around R0 have."""
        (kernel,) = self.weights.values()
        return float(kernel.reshape(()))

    def lines(self, name: str) -> list[str]:
        """The lines of a file that the recipe wrote into the run's directory."""
        return (self.rundir.path / name).read_text(encoding="utf-8").splitlines()


class Contract:
    """Launches the cells of a backend when the first of them is asked for."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._ran: dict[str, dict[tuple[str, int], Ran | str]] = {}

    def __call__(self, backend: str, name: str, devices: int) -> Ran:
        """Return a cell that has run; fails, with what the user would be told, if it did not."""
        if backend not in self._ran:
            self._ran[backend] = self._launch_all(backend)
        result = self._ran[backend][(name, devices)]
        assert isinstance(result, Ran), f"{name} on {backend} with {devices} devices did not run: {result}"
        return result

    def names(self, backend: str) -> list[tuple[str, int]]:
        return [cell.key for cell in _cells.values() if backend in cell.backends]

    def _launch_all(self, backend: str) -> dict[tuple[str, int], Ran | str]:
        waiting = sorted((cell for cell in _cells.values() if backend in cell.backends), key=lambda cell: cell.order)
        done: dict[tuple[str, int], Ran | str] = {}
        attempt = 0
        while waiting:
            attempt += 1
            folder = self._folder / f"{backend}-{attempt}"
            rundirs = [self._create(cell, backend, folder, done) for cell in waiting]
            error, shown = launch(rundirs)
            for cell, rundir in zip(waiting, rundirs, strict=True):
                outcome = rundir.outcome()
                if outcome is not None and outcome["status"] == "ok":
                    done[cell.key] = Ran(rundir, shown)
            waiting = [cell for cell in waiting if cell.key not in done]
            if waiting:  # the first of them has failed, and the others did not get their turn
                done[waiting.pop(0).key] = str(error)
            else:
                assert error is None, f"all runs of {folder} were done, and then: {error}"
        return done

    def _create(self, cell: Cell, backend: str, folder: Path, done: dict[tuple[str, int], Ran | str]) -> RunDir:
        path = folder / f"{cell.name}-{cell.devices}"
        fields = dict(cell.fields)
        inputs = fields.pop("inputs", None)
        for name in {"settings", "options"} & fields.keys():
            fields[name] = {
                key: value.replace("FOLDER", str(path)) if isinstance(value, str) else value
                for key, value in fields[name].items()
            }
        if callable(fields.get("initial_weights")):
            fields["initial_weights"] = fields["initial_weights"](folder.parent / f"{cell.name}-initial.safetensors")
        if "resume" in fields:  # a checkpoint of a cell before this one, as "cell-2/checkpoints/step-00000007"
            before = {run.rundir.path.name: run.rundir.path for run in done.values() if isinstance(run, Ran)}
            place, _, checkpoint = fields["resume"].partition("/")
            fields["resume"] = str(before.get(place, folder / place) / checkpoint)
        own = RECIPES / f"{cell.recipe}.py"
        job = training.make_job(
            own if own.exists() else cell.recipe, backend=backend, devices=cell.devices, device_kind="cpu", **fields
        )
        rundir = RunDir.create(path, job)
        if inputs is not None:
            np.savez(path / "input.npz", **inputs)
        return rundir


def launch(rundirs: Sequence[RunDir]) -> tuple[KmgpuError | None, list[str]]:
    """Run the jobs in one launch; return what it raised, and what the user was told."""
    shown: list[str] = []
    with foreign_environment(), time_limit(CELL_SECONDS * max(len(rundirs), 10)):
        try:
            training.run(rundirs, show=shown.append)
        except KmgpuError as error:
            return error, shown
    return None, shown


def initial_weights(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> Any:
    """Return a function that writes weights of these shapes into a file, once, and returns its path."""

    def write(path: Path) -> Path:
        random = np.random.default_rng(seed)
        save_file(
            {
                f"{index:04d}/{name}": random.normal(scale=0.3, size=shape).astype(np.float32)
                for index, (name, shape) in enumerate(shapes.items())
            },
            path,
        )
        return path

    return write


@contextlib.contextmanager
def foreign_environment() -> Iterator[None]:
    """Within this context the environment is full of other launchers' variables, and torch's usual port is taken."""
    before = dict(os.environ)
    os.environ.update(FOREIGN_VARIABLES)
    try:
        with socket.socket() as port:
            with contextlib.suppress(OSError):  # taken by another program, which serves as well
                port.bind(("127.0.0.1", 29500))
                port.listen()
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise AssertionError in this thread after some seconds."""

    def expired(number: int, frame: Any) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def processes_of(path: Path) -> list[str]:
    """Return the command lines of the living processes that have a path in it: those of a run."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if any(str(path) in word for word in words):
                found.append(f"{entry.name}: {' '.join(words)}")
    return found


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


def kmgpu(*arguments: str, folder: Path, limit: float = 60, **environment: str) -> Answer:
    """Run the command line in a folder."""
    return python("-c", COMMAND_LINE, *arguments, folder=folder, limit=limit, **environment)


def python(*arguments: str, folder: Path, limit: float = 60, **environment: str) -> Answer:
    """Run this interpreter in a folder."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=limit, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Answer(done.returncode, done.stdout, done.stderr)
