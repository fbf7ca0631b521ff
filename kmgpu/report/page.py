"""A report as one HTML file: nothing is loaded from anywhere, and its records are inside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmgpu.records import dumps
from kmgpu.report import figures, price, ratios, verdicts
from kmgpu.report.findings import Findings, StudyFound, TableFound

FEW = 4  # remarks on runs that are told one by one
TEMPLATES = Path(__file__).parent / "templates"
OPENING, CLOSING = '<script type="application/json" id="numbers">', "</script>"


def render(found: Findings, records: str) -> str:
    """Return the page; the same for the same findings and records."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {"ms": ms, "number": number, "mib": mib, "percent": percent, "interval": interval}
    environment.filters["besides"] = price.groups
    return environment.get_template("report.html").render(
        found=found,
        title=title(found),
        figures={id(table): figures.of_table(table) for study in found.studies for table in study.tables},
        table_id=id,
        raw=Markup,
        style=Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "report.js").read_text(encoding="utf-8")),
        numbers=Markup(dumps(found.to_json()).replace("<", "\\u003c")),
        records=Markup(records),
        counts=counts,
        doubts=doubts,
        tables_of=tables_of,
        tie=ratios.TIE,
        tolerance=verdicts.TOLERANCE["float32"],
    )


def title(found: Findings) -> str:
    recipes = list(dict.fromkeys(study.recipe for study in found.studies))
    return f"kmgpu: {', '.join(recipes)}" if recipes else "kmgpu: nothing to report"


def counts(study: StudyFound) -> dict[str, int]:
    """Return how many rules are enforced, recorded and not met."""
    return {word: sum(kept.status == word for kept in study.rules) for word in ("enforced", "recorded", "not met")}


def doubts(study: StudyFound) -> list[str]:
    """Return what is to be known before a number of a study is believed: what failed, deviates, or stands out."""
    said = list(study.problems)
    for table in study.tables:
        at = f"{table.label}: " if table.label else ""
        said += [at + remark for remark in table.remarks]
        said += _of_runs(at, table)
        said += [
            f"{at}not the same in all backends: {each.name} "
            f"({'; '.join(f'{backend}: {value}' for backend, value in each.values.items())})"
            for each in table.conditions
            if each.word == "differs"
        ]
    return said


def _of_runs(at: str, table: TableFound) -> list[str]:
    """Return the remarks on single runs; of many runs their number and the first."""
    told = [(run.name, remark) for run in table.runs for remark in run.remarks]
    if len(told) <= FEW:
        return [f"{at}{name}: {remark}" for name, remark in told]
    names = len({name for name, _ in told})
    return [f"{at}{names} of {len(table.runs)} runs have remarks of their own (the list of all runs has them), such as "
            f"{told[0][0]}: {told[0][1]}"]  # fmt: skip


def ms(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{seconds * 1000:.2f}" if seconds < 0.1 else f"{seconds * 1000:.0f}"


def number(value: Any, form: str = "{:,.0f}") -> str:
    return "not measured" if value is None else "0" if value == 0 else form.format(value)


def mib(value: float | None) -> str:
    return "not measured" if value is None else f"{value / 2**20:,.0f}"


def percent(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.1%}"


def interval(low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    return "" if low is None or high is None else f"{form.format(low)} to {form.format(high)}"


def tables_of(found: Findings) -> Sequence[tuple[StudyFound, TableFound]]:
    return [(study, table) for study in found.studies for table in study.tables]
