"""Whether a report says what its records say: its numbers, and its text and figures down to the last letter."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any

from kmgpu import __version__
from kmgpu.errors import UsageError
from kmgpu.records import dumps, loads
from kmgpu.report import page
from kmgpu.report.findings import FORMAT, Findings

MOST = 20  # differences that are told
CLOSE = 1e-9  # relative: another processor's mathematical library may round otherwise


def numbers(text: str, report: Path) -> dict[str, Any]:
    """Return the numbers that a report holds; raises UsageError without any, or for those of another version."""
    found = re.search(re.escape(page.OPENING) + r"(.*?)" + re.escape(page.CLOSING), text, re.DOTALL)
    try:
        written = loads(found[1]) if found else None
    except ValueError as error:
        raise UsageError(f"the numbers in {report} cannot be read: {error}") from error
    if not isinstance(written, dict):
        raise UsageError(f"{report} holds no numbers: it is no report of kmgpu, or they were cut out")
    if written.get("format") != FORMAT:
        raise UsageError(f"{report} has numbers of format {written.get('format')!r}, this kmgpu reads {FORMAT}")
    return written


def differences(text: str, written: dict[str, Any], found: Findings, packed: str) -> list[str]:
    """Return what a report says otherwise than its records: numbers first, then the words and figures."""
    apart: list[str] = []
    _compare("", written, loads(dumps(found.to_json())), apart)
    same_version = written.get("kmgpu") == __version__
    if not apart and same_version:
        apart = _lines(text, page.render(found, packed))
    shown = apart[:MOST]
    return shown + ([f"and {len(apart) - MOST} more"] if len(apart) > MOST else [])


def _compare(where: str, written: Any, found: Any, apart: list[str]) -> None:
    if where == "/kmgpu":
        return
    if isinstance(written, dict) and isinstance(found, dict):
        for key in [*written, *(key for key in found if key not in written)]:
            _compare(f"{where}/{key}", written.get(key), found.get(key), apart)
    elif isinstance(written, list) and isinstance(found, list) and len(written) == len(found):
        for place, (mine, other) in enumerate(zip(written, found, strict=True)):
            _compare(f"{where}/{place}", mine, other, apart)
    elif not _equal(written, found):
        apart.append(f"{where.lstrip('/')}: the report says {_short(written)}, its records say {_short(found)}")


def _equal(written: Any, found: Any) -> bool:
    if isinstance(written, float) and isinstance(found, (int, float)):
        return math.isclose(written, found, rel_tol=CLOSE) or (math.isnan(written) and math.isnan(found))
    return written == found


def _lines(text: str, rendered: str) -> list[str]:
    mine, other = text.splitlines(), rendered.splitlines()
    apart = [
        f"line {number}: the report has {_words(line)}, its records give {_words(right)}"
        for number, (line, right) in enumerate(zip(mine, other, strict=False), 1)
        if line != right
    ]
    return apart or (
        [] if len(mine) == len(other) else [f"the report has {len(mine)} lines, its records give {len(other)}"]
    )


def _words(line: str) -> str:
    return _short(html.unescape(re.sub(r"<[^>]*>", " ", line)).strip() or line.strip())


def _short(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= 100 else f"{said[:97]}..."
