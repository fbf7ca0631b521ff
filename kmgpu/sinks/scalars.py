"""What the records of a run say as numbers with a name, for tools that draw curves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scalar:
    """One point of a curve; ``step`` counts steps, epochs from 1, or seconds, as the name begins with its axis."""

    name: str  # "step/loss", "epoch/val_accuracy", "seconds/process_0/cpu_percent"
    value: float
    step: int
    time: float


class Scalars:
    """Points of the records of one run, in their order: the same records give the same points."""

    def __init__(self) -> None:
        self._began: float | None = None  # time of the monitor's first record

    def of(self, record: dict[str, Any]) -> list[Scalar]:
        """Return the points of a record: none for most kinds."""
        kind, time = record["event"], record["time"]
        if kind == "window":  # one point for up to ten steps, as they were measured
            return [
                Scalar(f"step/{name}", value, record["step"] + record["steps"], time)
                for name, value in _of_window(record)
            ]
        if kind == "epoch":
            return [
                Scalar(f"epoch/{name}", float(value), record["epoch"] + 1, time)
                for name, value in record["metrics"].items()
                if isinstance(value, int | float)
            ]
        if kind == "monitor":
            self._began = time if self._began is None else self._began
            second = round(time - self._began)
            return [Scalar(f"seconds/{name}", value, second, time) for name, value in _of_monitor(record)]
        return []


def _of_window(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    yield "loss", sum(record["losses"]) / len(record["losses"])
    if not record["compiling"]:
        yield "samples_per_second", record["samples"] / record["seconds"]
    if "waiting_seconds" in record:
        yield "waiting_fraction", record["waiting_seconds"] / record["seconds"]


def _of_monitor(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    yield "load_average", record["load_average"]
    for kind, parts in (("process", record["processes"]), ("device", record["devices"])):
        for part in parts:
            for name, value in part.items():
                if isinstance(value, int | float) and name not in (kind, "pid"):
                    yield f"{kind}_{part[kind]}/{name}", float(value)
