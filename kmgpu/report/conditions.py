"""Every condition of a table: what it was in each backend, how that is known, and whether all had the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kmgpu.records import dumps
from kmgpu.report.runs import Run

NOT_RECORDED = "not recorded"
BY_DEVICES = ("global batch", "batch of each device", "order of samples")  # equal on one number of devices at least


@dataclass(frozen=True)
class Condition:
    """A condition: by backend what it was; ``word`` is "equal", "differs", "own" (it must differ) or "not recorded"."""

    name: str
    checked: str  # how it is known
    values: dict[str, str]
    word: str


def of_table(runs: Sequence[Run]) -> list[Condition]:
    """Return the conditions of the runs that got as far as to tell."""
    told = [run for run in runs if run.start]
    return [_condition(told, *row) for row in ROWS] if told else []


def _condition(runs: Sequence[Run], name: str, checked: str, own: bool, read: Callable[[Run], Any]) -> Condition:
    values: dict[str, dict[str, None]] = {}
    on: dict[int, set[str]] = {}
    for run in runs:
        values.setdefault(run.job.backend, {})[_words(read(run))] = None
        on.setdefault(run.job.devices, set()).add(_words(read(run)))
    said = {backend: "; ".join(each) for backend, each in values.items()}
    if NOT_RECORDED in said.values():
        word = NOT_RECORDED
    elif own:
        word = "own"
    else:
        groups = list(on.values()) if name in BY_DEVICES else [set().union(*on.values())]
        word = "equal" if all(len(group) == 1 for group in groups) else "differs"
    return Condition(name, checked, said, word)


def _words(value: Any) -> str:
    if value is None:
        return NOT_RECORDED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return f"{value[:8]}..." if len(value) == 64 else value
    return str(value) if isinstance(value, int) else dumps(value).replace('"', "")


def _start(name: str) -> Callable[[Run], Any]:
    return lambda run: run.start.get(name)


def _inner(outer: str, name: str) -> Callable[[Run], Any]:
    return lambda run: (run.start.get(outer) or {}).get(name)


def _environment(name: str) -> Callable[[Run], Any]:
    return lambda run: run.environment.get(name)


def _each(values: Any, devices: int) -> str | None:
    return None if not values else f"{', '.join(map(str, values))} on {devices}"


def _threads(run: Run) -> str | None:
    each, processes = run.start.get("threads"), run.start.get("processes")
    return None if each is None or processes is None else f"{each * processes}"


SAID = "as the framework says after loading"
BACK = "set, and read back from the framework"
ROWS: tuple[tuple[str, str, bool, Callable[[Run], Any]], ...] = (
    ("precision asked for", "the same option for all", False, lambda run: run.job.precision),
    ("dtype", BACK, False, _inner("precision", "dtype")),
    ("TF32 in matrix products", BACK, False, _inner("precision", "tf32")),
    ("bits that a matrix product keeps", "measured at the start", False, _inner("numerics", "product_bits")),
    ("bits that a convolution keeps", "measured at the start", False, _inner("numerics", "convolution_bits")),
    ("loss scaling", BACK, False, _inner("numerics", "loss_scaling")),
    ("deterministic operations only", BACK, False, _start("deterministic")),
    ("compiled", SAID, False, lambda run: run.start.get("compiled") or ("no" if "compiled" in run.start else None)),
    ("CPU threads, all processes", BACK, False, _threads),
    ("worker processes", "started by kmgpu", True, lambda run: f"{run.start.get('processes')} on {run.job.devices}"),
    ("devices", SAID, True, lambda run: ", ".join(map(str, run.start.get("devices") or ())) or None),
    ("global batch", "one reader for all", False, _start("batch_size")),
    ("batch of each device", "derived from the global batch", False,
     lambda run: _each(run.start.get("per_device_batch"), run.job.devices)),
    ("accumulation", "the recipe", False, _start("accumulate")),
    ("BatchNorm statistics", "the recipe, one implementation for all", False, _start("batch_norm")),
    ("gradients of devices", "the recipe, one semantics for all", False, _start("gradient_reduction")),
    ("learning rate", BACK, False, lambda run: None if run.start.get("learning_rate") is None
     else float(f"{run.start['learning_rate']:.6g}") if isinstance(run.start["learning_rate"], float)
     else run.start["learning_rate"]),
    ("epochs", "the same option for all", False, _start("epochs")),
    ("training rows", "counted by the reader", False, _start("rows")),
    ("validation rows", "counted by the reader", False, _start("validation_rows")),
    ("weights of the model", "counted by Keras", False, _start("parameters")),
    ("initial weights", "hash of every run", False, lambda run: run.hashes.get("initial_weights")),
    ("order of samples", "hash over every step of every run", False, lambda run: run.hashes.get("sample_order")),
    ("randomness", "the same option for all", False, lambda run: run.job.randomness),
    ("track", "the same option for all", False, lambda run: run.job.track),
    ("framework", SAID, True, _start("framework")),
    ("Keras", SAID, False, _start("keras")),
    ("kmgpu", "its own version", False, _environment("kmgpu")),
    ("operating system", "read before the run", False, _environment("os")),
    ("processor", "read before the run", False, _environment("cpu")),
    ("cores", "that the run may use", False, _environment("cores")),
    ("GPUs", "NVML", False, lambda run: ", ".join(run.environment.get("gpus") or ()) or "none"),
    ("GPU driver", "NVML", False, lambda run: run.environment.get("gpu_driver") or "none"),
    ("environment variables", "those of a list that change a run", False, _environment("variables")),
)  # fmt: skip
