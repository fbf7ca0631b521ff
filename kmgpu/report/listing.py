"""Run directories as lines of text, one run a line, for people and for grep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kmgpu.report.runs import Run

HEADER = ("status", "recipe", "backend", "devices", "epochs", "loss", "size", "run")


def lines(runs: Sequence[Run]) -> list[str]:
    """Return a header and one line for each run; its path comes last, so that it may be long."""
    cells = [HEADER, *map(_cells, runs)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(HEADER))]
    widths[-1] = 0
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def size_bytes(path: Path) -> int:
    """Return the bytes of all files of a directory."""
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())


def _cells(run: Run) -> tuple[str, ...]:
    asked = run.start.get("epochs", run.job.epochs)
    loss = run.history[-1].get("loss") if run.history else None
    return (
        run.status,
        run.job.recipe_name,
        run.job.backend,
        f"{run.job.devices} {run.job.device_kind}",
        f"{len(run.history)}/{'?' if asked is None else asked}" if run.job.mode == "train" else run.job.mode,
        "-" if loss is None else f"{loss:.4f}",
        f"{size_bytes(run.path) / 2**20:.1f} MiB",
        str(run.path),
    )
