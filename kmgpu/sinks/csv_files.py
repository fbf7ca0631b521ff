"""The sink csv: tables of steps, epochs and the monitor in RUN/csv, one file of each, with the csv module."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TextIO


class Sink:
    """Writes steps.csv, epochs.csv and monitor.csv, from the first line on: the same records give the same files."""

    name = "csv"

    def __init__(self) -> None:
        self._folder = Path()
        self._tables: dict[str, Table] = {}

    def __call__(self, record: dict[str, Any]) -> None:
        kind = record["event"]
        if kind == "launch":
            self._folder = Path(record["path"], "csv")
            self._folder.mkdir(exist_ok=True)
        elif kind == "window":
            for number, loss in enumerate(record["losses"]):
                self._write("steps", {"epoch": record["epoch"], "step": record["step"] + number, "loss": loss})
        elif kind == "epoch":
            times = ("epoch", "seconds", "evaluation_seconds", "waiting_seconds")
            self._write("epochs", {name: record[name] for name in times if name in record} | record["metrics"])
        elif kind == "monitor":
            for row in monitor_rows(record):
                self._write("monitor", row)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()

    def _write(self, name: str, row: dict[str, Any]) -> None:
        if name not in self._tables:
            self._tables[name] = Table(self._folder / f"{name}.csv")
        self._tables[name].write(row)


class Table:
    """A CSV file whose columns are those of its first row; a row with others is written under a second header."""

    def __init__(self, path: Path):
        self._file: TextIO = open(path, "w", newline="", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed below
        self._writer = csv.writer(self._file)
        self._columns: list[str] = []

    def write(self, row: dict[str, Any]) -> None:
        if list(row) != self._columns:
            self._columns = list(row)
            self._writer.writerow(self._columns)
        self._writer.writerow(row.values())

    def close(self) -> None:
        self._file.close()


def monitor_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one flat row for each process and each device of a monitor record, all with the same columns."""
    columns = (
        "cpu_percent", "rss_bytes", "utilization_percent", "memory_used_bytes", "memory_total_bytes",
        "temperature_celsius", "power_watts", "sm_clock_mhz", "memory_clock_mhz", "throttle_reasons",
    )  # fmt: skip
    rows = []
    for kind in ("process", "device"):
        for part in record["processes" if kind == "process" else "devices"]:
            values = {name: part.get(name) for name in columns}
            values["throttle_reasons"] = " ".join(part.get("throttle_reasons") or []) or None
            head = {"time": record["time"], "load_average": record["load_average"], "kind": kind, "index": part[kind]}
            rows.append(head | values)
    return rows
