"""What backs a ranking: whether the cells of a study were proved to do the same mathematics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kmgpu.errors import UsageError
from kmgpu.report import matrix, parity
from kmgpu.report.parity import ParityResult
from kmgpu.rundir import read_json

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, UsageError)


@dataclass(frozen=True)
class Proof:
    """What is known of the mathematics of a study's cells; ``ok`` is None where it was not looked at."""

    ok: bool | None
    sentence: str  # for the heading of the table
    unproved: dict[tuple[str, int], str] = field(
        default_factory=dict
    )  # (backend, devices) -> why its speed stands alone
    parted: bool = False  # some cell computes something else, and did not merely fail to run

    def to_json(self) -> dict[str, Any]:
        cells = [{"backend": name, "devices": count, "why": why} for (name, count), why in self.unproved.items()]
        return {"ok": self.ok, "sentence": self.sentence, "unproved": cells}


def skipped(why: str) -> Proof:
    """Return the proof of who did not ask for one."""
    return Proof(None, f"Same mathematics: not checked ({why}).")


def of_check(result: ParityResult) -> Proof:
    """Return what a parity check proves."""
    unproved = {
        (cell.backend, cell.devices): f"it {'parts' if cell.verdict.word == 'parts' else 'did not run'} in the parity "
        f"check, see {result.path}/parity.md"
        for cell in result.cells
        if not cell.verdict.ok
    }
    if result.ok:
        return Proof(True, f"Same mathematics proved: {result.sentence}.", {})
    parted = any(cell.verdict.word == "parts" for cell in result.cells)
    failures = " ".join(said for style, said in matrix.remarks(result) if style == "red")
    words = "NOT THE SAME MATHEMATICS" if parted else "Same mathematics: NOT PROVED"
    return Proof(False, f"{words}: {result.sentence}. {failures}", unproved, parted)


def of_study(path: Path) -> tuple[Proof, ParityResult | None]:
    """Return what backs the study in a directory: its own parity check, judged anew, or else what it wrote down.

    The check is also returned where there is one. A study that wrote down a failure is not proved by anything else.
    """
    written = _written(path)
    checked = None
    made = sorted(file.parent for file in path.glob("parity*/study.json"))  # a study that went on has several
    if made:
        try:
            checked = parity.read(max(made, key=lambda folder: (len(folder.name), folder.name)))
        except UNREADABLE as error:
            return Proof(False, f"Same mathematics: NOT PROVED; the parity check cannot be read ({error})."), None
    if written is not None and written.ok is not True:
        return written, checked
    if checked is not None:
        return of_check(dataclasses.replace(checked, path=checked.path.relative_to(path))), checked
    return written or skipped("there is no record of a parity check"), None


def _written(path: Path) -> Proof | None:
    for name, inside in (("proof.json", None), ("comparison.json", "parity")):
        try:
            record = read_json(path / name)
            return _read(record[inside] if inside else record)
        except FileNotFoundError:
            continue
        except UNREADABLE as error:
            return Proof(False, f"Same mathematics: NOT PROVED; {name} cannot be read ({error}).")
    return None


def _read(record: Mapping[str, Any]) -> Proof:
    unproved = {(cell["backend"], cell["devices"]): cell["why"] for cell in record["unproved"]}
    return Proof(record["ok"], record["sentence"], unproved, "NOT THE SAME" in record["sentence"])
