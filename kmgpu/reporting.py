"""Reports as files: a page from studies on the disk or from other reports, its other forms, and its check."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kmgpu.errors import UsageError
from kmgpu.report import archive, checking, figures, findings, formats, page, studies
from kmgpu.report.findings import Findings

NAME = "report.html"
PNG_WIDTH = 1440  # twice the figures' own
FORMS: dict[str, Callable[[Findings], str]] = {
    ".md": formats.markdown, ".csv": formats.csv, ".json": formats.json,
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """What was written, and a sentence for each input that could not be read."""

    paths: tuple[Path, ...]
    found: Findings
    remarks: tuple[str, ...]


def report(sources: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str] | None = None) -> Written:
    """Render a report of studies, runs, folders of them, or other reports.

    ``out`` is a file (.html, .md, .csv or .json), or a directory for all of these and the figures; by default
    report.html in the one study's directory, or here. Raises UsageError where nothing can be read.
    """
    chosen = [Path(source) for source in sources]
    target = Path(out) if out is not None else _default(chosen)
    if target.suffix and target.suffix not in (".html", *FORMS):
        raise UsageError(f"--out is {str(target)!r}; it ends in .html, .md, .csv or .json, or is a directory for all")
    with _opened(chosen) as (paths, unreadable):
        read, problems = studies.load(paths)
        problems = [*unreadable, *problems]
        if not read:
            raise UsageError("; ".join(problems) or "nothing was named to report on")
        packed = archive.pack(read)
        found = _find(packed, problems)
        return Written(tuple(_write(target, found, packed)), found, tuple(problems))


def check(path: str | os.PathLike[str]) -> list[str]:
    """Compute everything that a report says from the records inside it; return what differs, nothing if all is right.

    Raises UsageError for what is no report.
    """
    report = Path(path)
    packed = archive.read(report)
    text = report.read_text(encoding="utf-8")
    written = checking.numbers(text, report)
    return checking.differences(text, written, _find(packed, written.get("problems") or ()), packed)


def _default(chosen: Sequence[Path]) -> Path:
    one = chosen[0] if len(chosen) == 1 else None
    return one / NAME if one is not None and one.is_dir() else Path(NAME)


def _find(packed: str, problems: Sequence[str]) -> Findings:
    """Return the findings of packed records: a report never says what the records inside it do not."""
    with tempfile.TemporaryDirectory(prefix="kmgpu-report-") as scratch:
        read, _ = studies.load(archive.unpack(packed, Path(scratch, "records")))
        return findings.find(read, problems)


@contextmanager
def _opened(chosen: Sequence[Path]) -> Iterator[tuple[list[Path], list[str]]]:
    """Give the directories to read, those of reports unpacked, and a sentence for each report that cannot be."""
    paths, unreadable = [], []
    with tempfile.TemporaryDirectory(prefix="kmgpu-report-") as scratch:
        for number, path in enumerate(chosen):
            if not path.is_file():
                paths.append(path)
                continue
            try:
                paths += archive.unpack(archive.read(path), Path(scratch, f"{number:02d}"))
            except UsageError as error:
                said = str(error)
                unreadable.append(said if str(path) in said else f"{path}: {said}")
        yield paths, unreadable


def _write(target: Path, found: Findings, records: str) -> list[Path]:
    try:
        if target.suffix:
            target.parent.mkdir(parents=True, exist_ok=True)
            text = page.render(found, records) if target.suffix == ".html" else FORMS[target.suffix](found)
            target.write_text(text, encoding="utf-8")
            return [target]
        target.mkdir(parents=True, exist_ok=True)
        texts = {NAME: page.render(found, records)} | {f"report{end}": form(found) for end, form in FORMS.items()}
        texts |= {"runs.csv": formats.runs_csv(found)} | _figures(found)
        for name, text in texts.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_text(text, encoding="utf-8")
        drawn = [path for name in texts if name.endswith(".svg") for path in _png(target / name)]
        return [*(target / name for name in texts), *drawn]
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; choose another --out") from error


def _figures(found: Findings) -> dict[str, str]:
    return {
        f"figures/{number}-{figure.name}.svg": figure.svg
        for number, (_, table) in enumerate(page.tables_of(found), 1)
        for figure in figures.of_table(table)
    }


def _png(path: Path) -> list[Path]:
    """Draw a figure as PNG with rsvg-convert or Inkscape, if the machine has one of them."""
    drawn = path.with_suffix(".png")
    commands = (
        ("rsvg-convert", ["-w", str(PNG_WIDTH), "-o", str(drawn), str(path)]),
        ("inkscape", ["-w", str(PNG_WIDTH), "-o", str(drawn), str(path)]),
    )
    for program, arguments in commands:
        if shutil.which(program):
            done = subprocess.run([program, *arguments], capture_output=True, timeout=60, check=False)
            return [drawn] if done.returncode == 0 and drawn.exists() else []
    return []
