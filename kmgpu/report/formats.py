"""A report for a paper, a spreadsheet or a program: the same findings as Markdown, CSV and JSON."""

from __future__ import annotations

import csv as tables
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from kmgpu.records import dumps
from kmgpu.report import page
from kmgpu.report.findings import Findings, StudyFound, TableFound


def json(found: Findings) -> str:
    """Return all findings as strict JSON."""
    return dumps(found.to_json(), indent=1) + "\n"


def csv(found: Findings) -> str:
    """Return one line for each cell of each table; what was not measured is empty."""
    return _csv([
        {"study": study.name, "recipe": table.recipe, "table": table.label, "track": table.track,
         "machine": table.machine, **dataclasses.asdict(row)}
        for study, table in page.tables_of(found) for row in table.rows
    ])  # fmt: skip


def runs_csv(found: Findings) -> str:
    """Return one line for each run, failed ones too."""
    left_out = ("windows", "remarks")
    return _csv([
        {"study": study.name, "recipe": table.recipe, "table": table.label,
         **{name: value for name, value in dataclasses.asdict(run).items() if name not in left_out}}
        for study, table in page.tables_of(found) for run in table.runs
    ])  # fmt: skip


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    stream = io.StringIO()
    if rows:
        writer = tables.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue()


def markdown(found: Findings) -> str:
    """Return the report as Markdown, without figures."""
    lines: list[str] = []
    if found.problems:
        lines += ["# What could not be read", "", *_list(found.problems)]
    if found.relation:
        lines += [f"# {len(found.studies)} studies", "", *_list(found.relation)]
        lines += _grid(
            ("recipe", "backend", "devices", "global batch", "samples per s", "speed-up", "machine", "study"),
            [
                (table.recipe, row.backend, row.devices, row.batch_size, page.number(row.samples_per_second),
                 "not backed" if row.speedup is None else f"{row.speedup:.2f}", table.machine, study.name)
                for study, table in page.tables_of(found) for row in table.rows
            ],
        )  # fmt: skip
    for study in found.studies:
        lines += _study(study)
    return "\n".join(lines).rstrip() + "\n"


def _study(study: StudyFound) -> list[str]:
    lines = [f"# {study.recipe}", "", f"Study {study.name}.", "", "## Verdict", ""]
    for table in study.tables:
        lines += [f"### {table.label}", ""] if table.label else []
        said = [f"**Not ranked:** {table.unranked}."] if table.unranked else [f"**{word}**" for word in table.ranking]
        lines += _list([*said, *table.scaling_said])
    lines += [study.proof, "", study.scope, ""]
    for table in study.tables:
        lines += _table(table)
    wary = page.doubts(study)
    lines += ["## To be wary of", "", *_list(wary or ["Nothing stood out."])]
    kept = page.counts(study)
    lines += ["## Rules", "", ", ".join(f"{count} {word}" for word, count in kept.items()) + ".", ""]
    lines += _grid(
        ("no.", "rule", "status", "how"), [(each.number, each.rule, each.status, each.how) for each in study.rules]
    )
    return lines


def _table(table: TableFound) -> list[str]:
    header = (
        "backend", "strategy", "devices", "global batch", "runs", "ms per step", "p5 to p95", "samples per s", "95 %",
        "speed-up", "95 %", "waiting", "first step s", "peak MiB", "final loss", "validation",
    )  # fmt: skip
    rows = [
        (row.backend, row.strategy, row.devices, row.batch_size,
         f"{row.runs}" + (f", {row.failed} failed" if row.failed else ""),
         page.ms(row.step_seconds), f"{page.ms(row.step_seconds_p5)} to {page.ms(row.step_seconds_p95)}",
         page.number(row.samples_per_second),
         page.interval(row.samples_per_second_low, row.samples_per_second_high, "{:,.0f}"),
         "not backed" if row.speedup is None else f"{row.speedup:.2f}",
         page.interval(row.speedup_low, row.speedup_high), page.percent(row.stall),
         page.number(row.first_step_seconds, "{:.1f}"), page.mib(row.peak_bytes),
         page.number(row.final_loss, "{:.4f}"), page.number(row.validation, "{:.4f}"))
        for row in table.rows
    ]  # fmt: skip
    lines = ["## Results" + (f": {table.label}" if table.label else ""), "", *_list([table.scaling, *table.heading])]
    lines += _grid(header, rows)
    pairs = [
        (pair.devices, f"{pair.mine[0]} over {pair.other[0]}", f"{pair.judged.ratio.value:.3f}",
         page.interval(pair.judged.ratio.low, pair.judged.ratio.high, "{:.3f}"), pair.judged.ratio.blocks,
         pair.judged.word + (f": {pair.judged.why}" if pair.judged.why else ""))
        for pair in table.comparisons
    ]  # fmt: skip
    return lines + (_grid(("on", "pair", "ratio", "95 %", "repeats", "verdict"), pairs) if pairs else [])


def _grid(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        "| " + " | ".join(header) + " |", "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in cells), "",
    ]  # fmt: skip


def _list(said: Sequence[str]) -> list[str]:
    return [*(f"- {each}" for each in said), ""]
