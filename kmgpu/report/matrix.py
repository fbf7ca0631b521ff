"""A parity check as text: what was compared, one row for each cell, and what made a cell part.

The same rows as a table for the terminal, as Markdown and as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kmgpu.report.verdicts import (
    CHAOS_FACTOR,
    CHAOS_LIMIT,
    KINDS,
    NOISE_FACTOR,
    TOLERANCE,
    TRAJECTORY_TOLERANCE,
    Difference,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kmgpu.report.parity import Cell, ParityResult

FORMAT = 1  # version of parity.json
COLUMNS = ("loss", "metrics", "gradients", "state", "update", "free run")
QUANTITIES = (*KINDS, "trajectory")  # the keys of what COLUMNS shows
SHORT = {"noise": "rounding noise", "parts": "PARTS", "failed": "FAILED"}


def sentence(result: ParityResult) -> str:
    """Return the result in one sentence without a full stop."""
    apart = [cell for cell in result.cells if cell.verdict.word == "parts"]
    failed = [cell for cell in result.cells if cell.verdict.word == "failed"]
    if apart or failed:
        parts = f"{titles(apart)} {'part' if len(apart) > 1 else 'parts'} from {_reference(result)}" if apart else ""
        return ", and ".join(filter(None, [parts, f"{titles(failed)} failed" if failed else ""]))
    return agreement(
        _reference(result),
        result.asked["steps"],
        result.dtype,
        [{"largest": cell.verdict.largest_of_a_step, "kinks": cell.verdict.kinks, "noise": cell.verdict.word == "noise"}
         for cell in result.cells],
    )  # fmt: skip


def agreement(reference: str, steps: int, dtype: str, cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence for cells that all agree, each by its largest difference, kinks, and whether by noise."""
    largest = max((cell["largest"] for cell in cells if cell["largest"] is not None), default=None)
    kinks, noisy = sum(cell["kinks"] for cell in cells), sum(cell["noise"] for cell in cells)
    extra = f", {_count(kinks, 'kink flip')} apart" if kinks else ""
    extra += f", {_count(noisy, 'cell')} within rounding noise only" if noisy else ""
    return (
        f"{_count(len(cells), 'cell')} {'computes' if len(cells) == 1 else 'compute'} what {reference} computes, over "
        f"{_count(steps, 'step')} in {dtype}: largest difference {number(largest)}, tolerance "
        f"{number(TOLERANCE[dtype])}{extra}"
    )


def heading(result: ParityResult) -> list[str]:
    """Return the sentences above the table: what is compared with what, how, and from where on it is a difference."""
    asked = result.asked
    free = number(TRAJECTORY_TOLERANCE[result.dtype])
    judged = f"judged at {free}" if result.dtype == "float64" else f"judged in its first step, shown beyond {free}"
    lines = [
        f"{asked['recipe_name']}: {_count(len(result.cells), 'cell')} compared with {_reference(result)}, the "
        f"reference, over {_count(asked['steps'], 'step')} in {result.dtype}.",
        f"Devices: {_devices(result)}.",
        "Every step starts from the reference's weights, optimizer slots and state; the update from its gradient. "
        f"The free run takes the real training step {_count(asked['steps'], 'time')} from the first weights, {judged}.",
        f"Tolerance: {number(result.tolerance)}, relative"
        + ("." if result.dtype == "float64" else "; the noise floor is the reference against itself, inputs off by one "
           "rounding."),
        f"Track: {asked.get('track', 'same-math')}. Randomness: "
        + ("portable: dropout and noise draw the same numbers in every cell." if asked.get("randomness") == "portable"
           else "kept (--keep-random): dropout and noise draw." if asked["keep_random"]
           else "off, so dropout and noise do nothing; --keep-random keeps it."),
    ]  # fmt: skip
    return lines[:2] + [f"Batches: {_batches(result)}."] + lines[2:] + _policies(result)


def rows(result: ParityResult) -> list[tuple[str, ...]]:
    """Return the cells of the table as text: name, a number for each of COLUMNS, verdict. The noise floor first."""
    floor = () if result.dtype == "float64" else (
        ("noise floor", *(number(result.floor[kind]) for kind in QUANTITIES), ""),
    )  # fmt: skip
    return [*floor, *((f"{cell.backend} {cell.devices}", *_numbers(cell), _word(cell)) for cell in result.cells)]


def remarks(result: ParityResult) -> list[tuple[str, str]]:
    """Return (style, sentence) below the table: what parts or failed, and what was excused or not judged."""
    said = [("red", sentence) for sentence in _failures(result)]
    kinks = [
        f"{titles([cell])} in {_count(cell.verdict.kinks, 'step')} (up to {number(cell.verdict.flipped)})"
        for cell in result.cells
        if cell.verdict.kinks
    ]
    if kinks:
        said.append((
            "", "Kinks (of ReLU, of max-pool) flipped by rounding, on the batch and not on two that are a little off: "
            + _list(kinks) + ".",
        ))  # fmt: skip
    said += [("yellow", _noise(cell, result)) for cell in result.cells if cell.verdict.word == "noise"]
    running = [(cell, cell.verdict.trajectory) for cell in result.cells if cell.verdict.trajectory is not None]
    if any(trajectory.word in ("chaos", "beside the noise") for _, trajectory in running):
        said.append((
            "", f"~ not judged: later steps amplify rounding, which takes the reference itself to "
            f"{number(result.floor['trajectory'])}. --dtype float64 judges it.",
        ))  # fmt: skip
    said += [
        ("yellow", f"warning: {titles([cell])} runs free to {number(trajectory.largest)}, beyond {number(CHAOS_LIMIT)} "
         f"and {CHAOS_FACTOR} times the reference's own noise ({number(trajectory.floor)}); look at it in float64.")
        for cell, trajectory in running
        if trajectory.word == "suspicious" and cell.verdict.ok
    ]  # fmt: skip
    notes: dict[str, list[Cell]] = {}
    for cell in result.cells:
        for note in cell.notes:
            notes.setdefault(note, []).append(cell)
    return said + [("", f"note ({titles(cells)}): {note}") for note, cells in notes.items()]


def terminal(result: ParityResult) -> RenderableType:
    """Return what rich prints; it fits 80 columns."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    shown = rows(result)
    styles = ["dim"] * (len(shown) - len(result.cells)) + [_style(cell) for cell in result.cells]
    previous = shown[0][0].partition(" ")[0]
    for row, style in zip(shown, styles, strict=True):
        backend = row[0].partition(" ")[0]
        if backend != previous:
            table.add_section()
        previous = backend
        table.add_row(*map(Text, row), style=style)
    below = [Text(said, style=style) for style, said in remarks(result)]
    return Group(*map(Text, heading(result)), Text(), table, *([Text(), *below] if below else []))


def markdown(result: ParityResult) -> str:
    """Return the parity check as a Markdown document."""
    said = heading(result)
    lines = [f"# {said[0]}", "", *(f"- {line}" for line in said[1:]), f"- Result: {sentence(result)}.", ""]
    lines.append("| " + " | ".join(("cell", *COLUMNS, "verdict")) + " |")
    lines.append("|---" + "|---:" * len(COLUMNS) + "|---|")
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(result)]
    below = [said for _, said in remarks(result)]
    return "\n".join(lines + (["", *(f"- {said}" for said in below)] if below else [])) + "\n"


def to_json(result: ParityResult) -> dict[str, Any]:
    """Return parity.json: every cell with full numbers, and all that makes it part."""
    return {
        "format": FORMAT,
        "ok": result.ok,
        "result": sentence(result),
        **{key: value for key, value in result.asked.items() if key not in ("format", "cells")},
        "tolerance": result.tolerance,
        "sizes": list(result.sizes),
        "floor": result.floor,
        "cells": [_cell_json(cell) for cell in result.cells],
    }


def number(value: float | None) -> str:
    """Return a difference in at most seven characters, such as 3.1e-7 or 0.012."""
    if value is None:
        return "-"
    if value == 0 or math.isinf(value):
        return "0" if value == 0 else "inf"
    if 1e-3 <= value < 1000:
        return f"{value:.3g}" if value >= 100 else f"{value:.2g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def _cell_json(cell: Cell) -> dict[str, Any]:
    verdict = cell.verdict
    return {
        "name": cell.name, "backend": cell.backend, "strategy": cell.strategy, "devices": cell.devices,
        "verdict": verdict.in_words, "ok": verdict.ok, "reason": verdict.reason or None, "cause": cell.cause or None,
        "largest": verdict.largest, "kinks": verdict.kinks, "flipped": verdict.flipped,
        "steps": [step.word for step in verdict.steps],
        "trajectory": None if verdict.trajectory is None else {
            "largest": verdict.trajectory.largest, "floor": verdict.trajectory.floor, "word": verdict.trajectory.word,
        },
        "beyond": [vars(difference) for difference in verdict.parting],
        "noise": [vars(difference) for difference in verdict.noise],
        "notes": list(cell.notes),
    }  # fmt: skip


def _numbers(cell: Cell) -> tuple[str, ...]:
    largest, trajectory = cell.verdict.largest, cell.verdict.trajectory
    shown = [number(largest[kind]) for kind in QUANTITIES]
    if trajectory is not None and trajectory.word in ("chaos", "beside the noise", "suspicious"):
        shown[-1] = "~" + shown[-1]
    return tuple(shown)


def _word(cell: Cell) -> str:
    verdict = cell.verdict
    if verdict.word == "agrees" and verdict.kinks:
        return f"agrees, {_count(verdict.kinks, 'kink')}"
    return SHORT.get(verdict.word, verdict.word)


def _style(cell: Cell) -> str:
    return "" if cell.verdict.word == "agrees" else "yellow" if cell.verdict.ok else "red"


def _failures(result: ParityResult) -> list[str]:
    """Return a sentence for each failure: first step, first variable, cause; one for all cells that fail alike."""
    alike: dict[tuple[str, ...], list[Cell]] = {}
    for cell in result.cells:
        if cell.verdict.word == "failed":
            reason = (cell.verdict.reason or "nobody knows why").splitlines()[0]
            alike.setdefault(("failed", reason), []).append(cell)
        elif cell.verdict.word == "parts":
            first, variable = _first(cell)
            alike.setdefault((str(first.step), first.what, variable.what, cell.cause), []).append(cell)
    return [
        f"{titles(cells)} failed: {key[1]} (see {result.path / cells[0].name})" if key[0] == "failed" else _parts(cells)
        for key, cells in alike.items()
    ]


def _parts(cells: Sequence[Cell]) -> str:
    """Return the sentence of cells that part alike, with the numbers of the first."""
    verdict = cells[0].verdict
    first, variable = _first(cells[0])
    steps = len({difference.step for difference in verdict.parting if difference.kind != "trajectory"})
    said = f"{titles(cells)} {'part' if len(cells) > 1 else 'parts'} in step {first.step}: {_off(first)}"
    if variable != first:
        where = "" if variable.step == first.step else f" in step {variable.step}"
        said += f"; first variable: {_off(variable, where)}"
    said += f"; {steps} of {len(verdict.steps)} steps part" if steps else "; every step by itself agrees"
    layer = f" The first layer whose output differs: {cells[0].layer}." if cells[0].layer else ""
    return f"{said}. Likely: {cells[0].cause}.{layer}"


def _first(cell: Cell) -> tuple[Difference, Difference]:
    """Return the first difference of a cell and the first of a variable, or twice the first where there is none."""
    apart = cell.verdict.parting
    variables = [difference for difference in apart if difference.kind in ("gradients", "states", "update")]
    return apart[0], [*variables, apart[0]][0]


def titles(cells: Sequence[Cell]) -> str:
    """Return cells in words, such as ``torch on 2 devices and jax on 1 and 4 devices``."""
    counts: dict[str, list[int]] = {}
    for cell in cells:
        counts.setdefault(cell.backend, []).append(cell.devices)
    return _list(
        f"{backend} on {_list(map(str, devices))} device{'' if devices == [1] else 's'}"
        for backend, devices in counts.items()
    )


def _off(difference: Difference, where: str = "") -> str:
    noise = f" (noise {number(difference.floor)})" if difference.floor is not None else ""
    return f"{difference.what} off by {number(difference.error)}{noise}{where}"


def _noise(cell: Cell, result: ParityResult) -> str:
    worst = max(cell.verdict.noise, key=lambda difference: difference.error)
    return (
        f"{titles([cell])}: beyond {number(result.tolerance)}, within {NOISE_FACTOR} times the reference's own noise, "
        f"{_count(len(cell.verdict.noise), 'time')}; the largest: {_off(worst, f' in step {worst.step}')}."
    )


def _reference(result: ParityResult) -> str:
    return f"{result.asked['backends'][0]} on 1 device"


def _devices(result: ParityResult) -> str:
    kind = result.asked["device_kind"]
    return "virtual CPU devices, not GPUs" if kind == "cpu" else f"GPUs ({_list(_unique(result.facts.get('devices')))})"


def _policies(result: ParityResult) -> list[str]:
    """Return the sentence about what a recipe wants to depend on the devices, and who is compared with what then."""
    wanted = []
    if result.facts.get("batch_norm", "global") == "replica":
        wanted.append("batch_norm='replica', statistics of each device's rows")
    if result.facts.get("gradient_reduction", "mean") == "sum":
        wanted.append("gradient_reduction='sum', the gradient times the number of devices")
    if not wanted:
        return []
    return [
        f"Policy: {_list(wanted)}. The reference computes on its one device what as many devices as the compared cell "
        "has would."
    ]


def _unique(values: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys(values or ["unknown"]))


def _batches(result: ParityResult) -> str:
    """Return how many steps have how many samples, and which of these sizes do not divide over the devices."""
    if not result.sizes:
        size = result.facts.get("batch_size")
        return f"{size} samples in the first step" if size is not None else "not recorded"
    most = max(cell.devices for cell in result.cells)
    counts = Counter(result.sizes)
    sizes = [f"{_count(steps, 'step')} of {size}" for size, steps in counts.items()]
    counted = sorted({cell.devices for cell in result.cells})
    uneven = [size for size in counts if any(size % devices for devices in counted)]
    small = [size for size in counts if size < most]
    said = f"{_list(sizes)} samples"
    if uneven:
        does = "does" if len(uneven) == 1 else "do"
        said += f"; {_list(map(str, uneven))} {does} not divide over all numbers of devices"
    else:
        said += ", all of them even over the devices: uneven batches were not compared"
    return said + (f", and {_list(map(str, small))} is fewer than {most} devices" if small else "")


def _list(words: Any) -> str:
    words = list(words)
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
