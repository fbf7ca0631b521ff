"""Everything that a report says in numbers and words, computed from studies on the disk and from nothing else.

Findings are plain data: the page, Markdown, CSV and JSON are all made from them, and `kmgpu report --check` computes
them once more.
"""

from __future__ import annotations

import dataclasses
import statistics as means
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kmgpu import __version__
from kmgpu.errors import counted
from kmgpu.report import (
    agreement,
    breakdown,
    conditions,
    curves,
    flags,
    machines,
    price,
    ranking,
    ratios,
    rules,
    statistics,
    studies,
    tables,
    trace,
)  # fmt: skip
from kmgpu.report.agreement import Agreement
from kmgpu.report.breakdown import Breakdown
from kmgpu.report.conditions import Condition
from kmgpu.report.curves import Curve
from kmgpu.report.price import Price
from kmgpu.report.ranking import Comparison
from kmgpu.report.ratios import Ratio
from kmgpu.report.rules import Kept
from kmgpu.report.runs import Run
from kmgpu.report.statistics import Key, Row
from kmgpu.report.studies import Study, Table
from kmgpu.report.trace import Trace

FORMAT = 1  # of the numbers in a report


@dataclass(frozen=True)
class RunFound:
    """One run; None is what was not measured."""

    name: str
    backend: str
    strategy: str
    devices: int
    status: str
    reason: str
    samples_per_second: float | None
    step_seconds: float | None
    step_seconds_p5: float | None
    step_seconds_p95: float | None
    first_step_seconds: float | None
    stall: float | None
    peak_bytes: float | None
    steady_seconds: float | None
    windows: tuple[float, ...]  # seconds of a step in each steady window
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Scaled:
    """A cell beside one device of the same backend."""

    backend: str
    strategy: str
    devices: int
    ratio: Ratio
    efficiency: float
    word: str  # "gains", "loses", "no change", "unknown" (one process for each) or "error"


@dataclass(frozen=True)
class TableFound:
    """One table of a study."""

    label: str
    recipe: str
    machine: str
    track: str
    scaling: str  # a sentence
    heading: tuple[str, ...]
    unranked: str  # why nobody is ranked; empty if they are
    ranking: tuple[str, ...]
    scaling_said: tuple[str, ...]
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    scaled: tuple[Scaled, ...]
    noise: float | None
    smallest: float | None
    agreement: tuple[Agreement, ...]
    breakdown: tuple[Breakdown, ...]
    curves: tuple[Curve, ...]
    conditions: tuple[Condition, ...]
    remarks: tuple[str, ...]
    runs: tuple[RunFound, ...]


@dataclass(frozen=True)
class StudyFound:
    """One study."""

    name: str
    recipe: str
    scope: str
    proved: bool | None
    proof: str
    tables: tuple[TableFound, ...]
    prices: tuple[Price, ...]
    rules: tuple[Kept, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Findings:
    """All of a report."""

    format: int
    kmgpu: str
    studies: tuple[StudyFound, ...]
    problems: tuple[str, ...]  # what could not be read
    relation: tuple[str, ...]  # how several studies stand to each other

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def find(read: Sequence[Study], problems: Sequence[str] = ()) -> Findings:
    """Return all that is to be said of some studies."""
    return Findings(FORMAT, __version__, tuple(map(_study, read)), tuple(problems), tuple(_relation(read)))


def _study(study: Study) -> StudyFound:
    found = studies.tables(study)
    traces = {run.path: trace.read(run) for run in study.runs}
    checked = [_agreement(table, traces) for table in found]
    reasons = [_unranked(table, study) for table in found]
    excluded = [
        {**study.proof.unproved, **{(each.backend, each.devices): each.doubt for each in agreed if each.doubt}}
        for agreed in checked
    ]
    ranked = [
        [run for run in table.runs if (run.job.backend, run.job.devices) not in out] if not why else []
        for table, why, out in zip(found, reasons, excluded, strict=True)
    ]
    compared = ranking.compare(ranked)
    made = tuple(
        _table(table, study, traces, agreed, why, out, pairs)
        for table, agreed, why, out, pairs in zip(found, checked, reasons, excluded, compared, strict=True)
    )
    prices = tuple(price.prices([*study.runs, *study.fitted]))
    ground = rules.Ground(study, found, traces, made)
    recipes = list(dict.fromkeys(run.job.recipe_name for run in study.runs)) or [_recipe(study)]
    problems = [*study.problems, *(known.problem for known in traces.values() if known.problem)]
    return StudyFound(
        study.name, ", ".join(recipes), _scope(study), study.proof.ok, study.proof.sentence, made, prices,
        tuple(rules.judge(ground)), tuple(problems),
    )  # fmt: skip


def _recipe(study: Study) -> str:
    return str(study.asked.get("recipe", "unknown")).rsplit("/", 1)[-1].removesuffix(".py")


def _agreement(table: Table, traces: dict[Any, Trace]) -> list[Agreement]:
    cells = statistics.cells(table.runs)
    known = {key: [traces[run.path] for run in cell if run.ok] for key, cell in cells.items()}
    return agreement.compare(known, table.runs[0].job.precision, table.runs[0].job.randomness == "portable")


def _unranked(table: Table, study: Study) -> str:
    """Return why nobody in a table is ranked; empty if they are."""
    if len({(run.job.backend, run.job.strategy) for run in table.runs}) < 2:
        return "there is one backend"
    if table.problem:
        return table.problem
    if table.conditions["track"] != "same-math":
        return (
            f"on the track {table.conditions['track']} each framework keeps its own habits, and computes its own thing"
        )
    if study.proof.ok is None:
        return "nobody has checked whether these runs do the same mathematics"
    return ""


def _table(
    table: Table,
    study: Study,
    traces: dict[Any, Trace],
    agreed: Sequence[Agreement],
    unranked: str,
    excluded: dict[tuple[str, int], str],
    pairs: Sequence[Comparison],
) -> TableFound:
    cells = statistics.cells(table.runs)
    rows = statistics.without_speedup(statistics.rows(table.runs), excluded)
    ordered = list(table.runs)
    heading = tables.heading(ordered, study.scaling)
    speeds = [statistics.speeds(cell) for cell in cells.values()]
    scatter = ratios.spread(speeds)
    scaled = tuple(found for key in cells if key[2] > 1 for found in [_scaled(cells, key, excluded)] if found)
    first = [next((run for run in cell if run.ok), None) for cell in cells.values()]
    broken = [breakdown.of_cell(cell, [traces[run.path] for run in cell]) for cell in cells.values()]
    doubts = [
        f"{backend} on {devices}: {why}; it is in no ranking, and its speed says nothing beside the others'"
        for (backend, devices), why in excluded.items()
        if any(key[0] == backend and key[2] == devices for key in cells)
    ]
    return TableFound(
        label=table.label,
        recipe=table.conditions["recipe"],
        machine=table.conditions["devices"],
        track=table.conditions["track"],
        scaling=heading[0],
        heading=tuple(said for said in heading[1:] if not (table.problem and said.startswith("Held equal"))),
        unranked=unranked,
        ranking=tuple(ranking.sentences(pairs)),
        scaling_said=tuple(_scaling_said(scaled, rows)),
        rows=tuple(rows),
        comparisons=tuple(pairs),
        scaled=scaled,
        noise=scatter,
        smallest=None if scatter is None else ratios.smallest(scatter, min(map(len, speeds))),
        agreement=tuple(agreed),
        breakdown=tuple(each for each in broken if each is not None),
        curves=tuple(curve for run in first if run for curve in curves.of_run(run, traces[run.path])),
        conditions=tuple(conditions.of_table(table.runs)),
        remarks=tuple([*doubts, *tables.remarks(ordered, rows), *_apart(cells)]),
        runs=tuple(_run(run, traces[run.path]) for run in table.runs),
    )


def _scaled(cells: dict[Key, list[Run]], key: Key, excluded: dict[tuple[str, int], str]) -> Scaled | None:
    if (key[0], key[2]) in excluded or (key[0], 1) in excluded:
        return None
    ratio = statistics.speedup(cells, key)
    if ratio is None:
        return None
    word = "unknown"
    if ratio.low is not None and ratio.high is not None:
        word = "gains" if ratio.low > 1 else "loses" if ratio.high < 1 else "no change"
    efficiency = ratio.value / key[2]
    return Scaled(*key, ratio, efficiency, "error" if efficiency > tables.FREE_LUNCH else word)


def _scaling_said(scaled: Sequence[Scaled], rows: Sequence[Row]) -> list[str]:
    said = []
    words = {
        "gains": "a gain", "loses": "slower than one device", "no change": "no change beyond chance",
        "unknown": "from one process for each", "error": "more than the devices: an error until explained",
    }  # fmt: skip
    for devices in sorted({each.devices for each in scaled}):
        here = [each for each in scaled if each.devices == devices]
        clauses = []
        for each in here:
            low, high = each.ratio.low, each.ratio.high
            interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
            clauses.append(f"{each.backend} {ranking.times(each.ratio.value)}{interval}, {words[each.word]}")
        said.append(
            f"{counted(devices, 'device')} beside one of the same backend, in samples per second: {'; '.join(clauses)}."
        )
    bound = [row for row in rows if row.stall is not None and row.stall > flags.INPUT_BOUND]
    if bound:
        names = ", ".join(f"{row.backend} on {row.devices} ({row.stall:.0%} of the time)" for row in bound)
        said.append(f"Input-bound, waiting for data: {names}. Such a speed is that of the reading.")
    return said


def _apart(cells: dict[Key, list[Run]]) -> list[str]:
    return [
        f"{key[0]} on {key[2]}: repeat {block[1]} stands apart from its other processes; it is counted like the others"
        for key, cell in cells.items()
        for block in flags.apart(statistics.speeds(cell))
    ]


def _run(run: Run, known: Trace) -> RunFound:
    times = known.step_seconds
    return RunFound(
        name=run.name,
        backend=run.job.backend,
        strategy=run.job.strategy,
        devices=run.job.devices,
        status=run.status,
        reason=(run.reason or "").partition("\n")[0],
        samples_per_second=statistics.samples_per_second(run),
        step_seconds=means.median(times) if times else None,
        step_seconds_p5=statistics.percentile(times, 5) if times else None,
        step_seconds_p95=statistics.percentile(times, 95) if times else None,
        first_step_seconds=statistics.first_step_seconds(run),
        stall=statistics.stall(run),
        peak_bytes=statistics.peak_bytes(run),
        steady_seconds=sum(window["seconds"] for window in known.steady) if times else None,
        windows=tuple(float(f"{seconds:.6g}") for seconds in times),
        remarks=tuple(flags.remarks(run, known)),
    )


def _scope(study: Study) -> str:
    """Return the sentence that says what the numbers are about, and so what they are not about."""
    told = [run for run in study.runs if run.start]
    if not told:
        return f"No run of {_recipe(study)} got as far as to say what it was."
    start, job = told[0].start, told[0].job
    versions = ", ".join(dict.fromkeys(str(run.start.get("framework")) for run in told))
    batches = sorted({run.start["batch_size"] for run in told if run.start.get("batch_size")})
    parameters = start.get("parameters")
    where = " and ".join(dict.fromkeys(machines.machine(run) for run in study.runs))
    launched = [float(run.outcome["launched_time"]) for run in study.runs if run.outcome.get("launched_time")]
    when = time.strftime("%Y-%m-%d", time.gmtime(min(launched))) if launched else "an unknown day"
    virtual = any(machines.device_kind(run) == "cpu" for run in told)
    shared = "Virtual devices share the same cores: these are not GPUs. " if virtual else ""
    weights = "" if parameters is None else f" ({parameters:,} weights)"
    return (
        f"These numbers are about {job.recipe_name}{weights} with a global batch of {_or(batches)} in "
        f"{job.precision}, on {where}, with {versions} and Keras {start.get('keras')}, on {when}. "
        f"{shared}They say nothing about other models, batches, hardware or versions."
    )


def _or(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values)) or "an unknown size"


def _relation(read: Sequence[Study]) -> list[str]:
    """Return how several studies stand to each other: they are never ranked against one another."""
    if len(read) < 2:
        return []
    places = {study.name: sorted({machines.machine(run) for run in study.runs}) for study in read}
    recipes = {study.name: sorted({run.job.recipe_name for run in study.runs}) for study in read}
    said = []
    if len({tuple(each) for each in places.values()}) > 1:
        said.append("These studies were made on unlike devices: each is ranked within itself, and none beside another.")
    else:
        said.append("Each study is ranked within itself; runs of different studies are not pooled, since repeating "
                    "until something shows is no measurement.")  # fmt: skip
    common = set.intersection(*(set(each) for each in recipes.values()))
    if not common:
        said.append("They have no recipe in common, so nothing of one can be held beside the other.")
    return said
