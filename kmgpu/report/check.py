"""What `kmgpu check` says of a recipe."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A backend with a number of devices: what was found there, or why nothing was."""

    backend: str
    devices: int
    found: dict[str, Any] | None
    reason: str | None


@dataclass(frozen=True)
class CheckResult:
    """A recipe, looked at on several backends."""

    name: str
    settings: dict[str, Any]
    device_kind: str
    cells: list[Cell]

    @property
    def ok(self) -> bool:
        return all(cell.found is not None for cell in self.cells)

    @property
    def operations(self) -> int | None:
        """Floating-point operations of a step, as torch counts them on one device: 2 for a multiply-add."""
        return next((found["operations"] for found in self.whole if found["operations"]), None)

    @property
    def whole(self) -> list[dict[str, Any]]:
        """What was found on one device, of the backends where it ran."""
        return [cell.found for cell in self.cells if cell.devices == 1 and cell.found is not None]


def lines(result: CheckResult, width: int) -> list[str]:
    """Return the report as lines of at most ``width`` characters."""
    settings = ", ".join(f"{name}={value}" for name, value in result.settings.items())
    title = f"{result.name}" + (f" with {settings}" if settings else "")
    found = next(iter(result.whole), None)
    if found is None:
        return [title, "", *_cells(result, width)]
    trained = found["trained_parameters"]
    size = f"{found['parameters']:,} parameters" + (f" ({trained:,} trained)" if trained != found["parameters"] else "")
    text = [f"{title}: {found['layers']} layers, {size}."]
    text += [_operations(result.operations, found["batch_size"]), *_memory(result, found)]
    said = [line for paragraph in text for line in textwrap.wrap(paragraph, width)]
    said += ["", *_cells(result, width)]
    kinds: dict[str, list[str]] = {}
    for entry in found["layer_notes"]:
        kinds.setdefault(entry["note"], []).append(f"{entry['kind']} x{entry['count']}")
    if kinds:
        said += ["", "What is not alike everywhere, and what kmgpu does about it:"]
        said += [line for note, named in kinds.items() for line in _item(", ".join(named), note, width)]
    else:
        said += ["", "No layer of it differs between backends or on several devices."]
    return said


def _operations(operations: int | None, rows: int) -> str:
    if operations is None:
        return "Operations are not counted: torch counts them, and did not run."
    return (
        f"{_scaled(operations)}FLOP a step of {rows} rows, {_scaled(operations / rows)}FLOP a row: matrix products and "
        "convolutions, forward and backward, as torch counts them."
    )


def _memory(result: CheckResult, found: dict[str, Any]) -> list[str]:
    parts = found["bytes"]
    named = ", ".join(f"{name} {_mib(size)}" for name, size in parts.items())
    fixed = parts["weights"] + parts["gradients"] + parts["optimizer"]
    moving = parts["outputs"] + parts["batch"]
    counts = sorted({cell.devices for cell in result.cells})
    each = [
        f"{_mib(fixed + moving / count)} on {'one device' if count == 1 else f'each of {count}'}" for count in counts
    ]
    return [f"Memory in MiB, at least: {' and '.join(each)} ({named}); a framework's own come on top."]


def _cells(result: CheckResult, width: int) -> list[str]:
    said = [f"{'':11} devices   loss of two steps    seconds"]
    for cell in result.cells:
        begin = f"{cell.backend:11} {cell.devices:7}   "
        if cell.found is None:
            reason = (cell.reason or "nobody knows why").splitlines()[0]
            said += textwrap.wrap(f"failed: {reason}", width, initial_indent=begin, subsequent_indent=" " * 22)
            continue
        losses = ", ".join(f"{loss:.5g}" for loss in cell.found["losses"])
        first, *later = cell.found["seconds"]
        took = f"{first:.1f}, then {later[-1]:.3f}" if later else f"{first:.1f}"
        said.append(f"{begin}{losses:20} {took}")
        for note in cell.found["notes"]:
            said += textwrap.wrap(note, width, initial_indent=" " * 22, subsequent_indent=" " * 22)
    return said


def _item(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(f"{head}: {text}.", width, initial_indent="  ", subsequent_indent="    ")


def _mib(count: float) -> str:
    return f"{count / 2**20:.1f}"


def _scaled(count: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000 or unit == "T":
            return f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError
