"""Sinks: functions that get every record of a run (kmgpu/follow.py), outside the workers, now or years later.

A sink by name is a class of a module of its own: made without arguments, told by the first record where the run is,
called with each record, and closed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from kmgpu.errors import MissingEnvironment, UsageError, nearest
from kmgpu.follow import Sink


@dataclass(frozen=True)
class Row:
    """One sink of the table; what it needs is an extra of kmgpu with the sink's own name."""

    name: str
    module: str
    needs: str | None  # module that the standard library and kmgpu's own dependencies do not bring


TABLE = {
    row.name: row
    for row in (
        Row("console", "kmgpu.sinks.console", None),
        Row("csv", "kmgpu.sinks.csv_files", None),
        Row("tensorboard", "kmgpu.sinks.tensorboard", "tensorboard"),
        Row("mlflow", "kmgpu.sinks.mlflow", "mlflow"),
        Row("wandb", "kmgpu.sinks.wandb", "wandb"),
    )
}


def make(wanted: Sequence[str | Sink]) -> list[Sink]:
    """Return the sinks of these names, and functions as they are. Raises UsageError or MissingEnvironment."""
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise UsageError(f"sinks is {wanted!r}; it is a list of names or functions, such as ['csv', 'tensorboard']")
    return [sink if callable(sink) else _named(sink) for sink in wanted]


def _named(name: str) -> Sink:
    if name not in TABLE:
        raise UsageError(f"no sink {name!r}{nearest(str(name), list(TABLE))}; there are {', '.join(TABLE)}")
    row = TABLE[name]
    if row.needs is not None and importlib.util.find_spec(row.needs) is None:
        raise MissingEnvironment(
            f"the sink {name} needs {row.needs}, which is not installed: pip install 'kmgpu[{name}]'"
        )
    return importlib.import_module(row.module).Sink()
