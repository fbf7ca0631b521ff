"""Write the table of docs/same-math.md from docs/same-math.json, which a run of the contract tests has measured.

    KMGPU_MEASURED=$PWD/docs/same-math.json python -m pytest tests/contract/test_same_math.py
    python benchmarks/same_math.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE, RESULTS = DOCS / "same-math.md", DOCS / "same-math.json"
BEGIN, END = "<!-- made by benchmarks/same_math.py -->\n", "<!-- end -->\n"
MISSING = {"torch": "not measured", "tensorflow": "not measured", "jax": "the reference"}
BACKENDS = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}


def table(measured: dict[str, Any]) -> str:
    """Return the table as Markdown: a line for each feature, with how it is exact and the largest error."""
    frameworks = [measured["frameworks"][name] for name in BACKENDS if name in measured["frameworks"]]
    lines = [
        f"Measured with {', '.join(frameworks)}, on virtual CPU devices.",
        "",
        f"| feature | devices | {' | '.join(BACKENDS.values())} |",
        f"|---|---|{'---|' * len(BACKENDS)}",
    ]
    for title, entries in measured["features"].items():
        counts = sorted({count for entry in entries.values() for count in entry.get("devices", ())})
        cells = [_cell(entries[name]) if name in entries else MISSING[name] for name in BACKENDS]
        lines.append(f"| {title} | {', '.join(map(str, counts)) or 'any'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(entry: dict[str, Any]) -> str:
    if "error" not in entry:
        return str(entry["how"])
    mantissa, _, exponent = f"{entry['error']:.0e}".partition("e")
    return f"{entry['how']}, {f'{mantissa}e{int(exponent)}' if entry['error'] else '0'}"


def page(text: str, measured: dict[str, Any]) -> str:
    """Return the page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(measured)}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")


if __name__ == "__main__":
    main()
