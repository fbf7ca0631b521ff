"""A parity check as reports read it: the cells of its directory, judged against the reference cell."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu.errors import UsageError
from kmgpu.report import causes, matrix, verdicts
from kmgpu.report.verdicts import Verdict
from kmgpu.rundir import RunDir, read_json


@dataclass(frozen=True)
class Cell:
    """One backend on one number of devices, compared with the reference cell."""

    name: str  # of its run directory
    backend: str
    strategy: str
    devices: int
    verdict: Verdict
    cause: str = ""  # where it parts: what it looks like, and what to change
    layer: str = ""  # the first layer whose output differs
    notes: tuple[str, ...] = ()  # what the adapter says of this recipe


@dataclass(frozen=True)
class ParityResult:
    """What a parity check found."""

    path: Path
    asked: dict[str, Any]  # study.json
    facts: dict[str, Any]  # what the reference cell says of itself: framework, devices, precision
    sizes: tuple[int, ...]  # rows of the batch of each step; empty if the reference did not record them
    floor: dict[str, float | None]  # the reference against itself, by kind
    cells: tuple[Cell, ...]

    @property
    def ok(self) -> bool:
        """Whether every cell ran and computed what the reference computed."""
        return all(cell.verdict.ok for cell in self.cells)

    @property
    def dtype(self) -> str:
        return self.asked["dtype"]

    @property
    def tolerance(self) -> float:
        return verdicts.TOLERANCE[self.dtype]

    @property
    def sentence(self) -> str:
        """The result in one sentence without a full stop."""
        return matrix.sentence(self)

    def markdown(self) -> str:
        return matrix.markdown(self)

    def _repr_markdown_(self) -> str:  # a notebook shows the table
        return self.markdown()


def read(path: Path) -> ParityResult:
    """Judge the cells of a directory in which ``kmgpu.proving.parity`` has run them; raises UsageError for another."""
    if not (path / "study.json").is_file():
        raise UsageError(f"{path} is not the directory of a parity check: it has no study.json")
    asked = read_json(path / "study.json")
    home = RunDir(path / asked["reference"])
    reference, facts = read_json(home.path / "parity.json"), _facts(home)
    found = [_judged(path, cell, _for(cell["devices"], reference), asked) for cell in asked["cells"]]
    alone = {cell.backend: cell.verdict.ok for cell in found if cell.devices == 1 and cell.verdict.word != "failed"}
    alone[asked["backends"][0]] = True  # the reference is this backend on one device
    return ParityResult(
        path=path,
        asked=asked,
        facts=facts,
        sizes=tuple(reference.get("sizes") or ()),
        floor=verdicts.floors(reference),
        cells=tuple(
            _with_cause(path, cell, _for(cell.devices, reference), asked, alone.get(cell.backend)) for cell in found
        ),
    )


def _for(devices: int, reference: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the reference found for a number of devices, which matters only where the recipe wants it to."""
    return {**reference, **(reference.get("as_devices") or {}).get(str(devices), {})}


def _judged(path: Path, cell: Mapping[str, Any], reference: Mapping[str, Any], asked: Mapping[str, Any]) -> Cell:
    rundir = RunDir(path / cell["name"])
    notes = tuple(_facts(rundir).get("notes") or ())
    return Cell(**cell, verdict=_verdict(rundir, reference, asked["dtype"]), notes=notes)


def _verdict(rundir: RunDir, reference: Mapping[str, Any], dtype: str) -> Verdict:
    outcome, file = rundir.outcome() or {}, rundir.path / "parity.json"
    if outcome.get("status") != "ok":
        return Verdict("failed", reason=outcome.get("reason") or "it did not end")
    if not file.is_file():
        return Verdict("failed", reason="it ended without writing parity.json")
    return verdicts.judge(read_json(file), reference, dtype)


def _with_cause(
    path: Path, cell: Cell, reference: Mapping[str, Any], asked: Mapping[str, Any], alone_agrees: bool | None
) -> Cell:
    if cell.verdict.word != "parts":
        return cell
    rundir = RunDir(path / cell.name)
    evidence = causes.Evidence(
        verdict=cell.verdict,
        backend=cell.backend,
        devices=cell.devices,
        reference=asked["backends"][0],
        dtype=asked["dtype"],
        alone_agrees=alone_agrees,
        random_kept=asked["keep_random"],
        sizes=tuple(reference.get("sizes") or ()),
        finite=all(math.isfinite(loss) for loss in reference["losses"]),
        tf32=bool((_facts(rundir).get("precision") or {}).get("tf32")),
        dtypes=read_json(rundir.path / "parity.json").get("dtypes") or {},
    )
    layer = _first_layer(read_json(rundir.path / "parity.json").get("layers") or [], asked["dtype"])
    return dataclasses.replace(cell, cause=causes.likely(evidence), layer=layer)


def _first_layer(recorded: Sequence[Mapping[str, Any]], dtype: str) -> str:
    """Return the first layer, in the order of the calls, whose output is beyond the tolerance; empty if none is."""
    for step in recorded:
        for name, error in step["errors"].items():
            if not error <= verdicts.TOLERANCE[dtype]:
                return f"{name}, by {error:.2g} in step {step['step']}"
    return ""


def _facts(rundir: RunDir) -> dict[str, Any]:
    """Return the fields of the event in which a cell says what it is; empty where it stopped before that."""
    return next((event for event in rundir.events() if event["event"] in ("facts", "start")), {})
