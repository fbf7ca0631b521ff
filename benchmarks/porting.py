"""Count the lines that porting changes in the five examples of docs/porting, and write the table of docs/porting.md.

    python benchmarks/porting.py

A line counts where its words differ from the script's, however it is indented; empty lines do not count. Where lines
are replaced the larger number counts, of those before and those after.
"""

from __future__ import annotations

import difflib
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGE, EXAMPLES = DOCS / "porting.md", DOCS / "porting"
BEGIN, END = "<!-- made by benchmarks/porting.py -->\n", "<!-- end -->\n"
WAYS = ("recipe", "by_hand_torch", "by_hand_tensorflow", "by_hand_jax")
TITLES = {
    "convnet": "image classification, a convnet",
    "autoencoder": "denoising autoencoder",
    "gpt": "text generation, a small GPT",
    "timeseries": "time series, an LSTM",
    "structured": "a table with categories",
}


def changed_lines(before: str, after: str) -> int:
    """Return how many lines one must touch to make one text the other."""
    one, other = ([line.strip() for line in text.splitlines() if line.strip()] for text in (before, after))
    changes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in changes if kind != "equal")


def counts(example: str) -> dict[str, int]:
    """Return the lines changed for each way to port an example."""
    script = (EXAMPLES / example / "script.py").read_text(encoding="utf-8")
    return {way: changed_lines(script, (EXAMPLES / example / f"{way}.py").read_text(encoding="utf-8")) for way in WAYS}


def table() -> str:
    """Return the table as Markdown."""
    head = (
        "| example | its lines | kmgpu: all three, any devices | torch by hand | TensorFlow by hand | JAX by hand |",
        "|---|---:|---:|---:|---:|---:|",
    )
    rows = []
    for example, title in TITLES.items():
        found = counts(example)
        lines = (EXAMPLES / example / "script.py").read_text(encoding="utf-8").splitlines()
        cells = [f"[{found[way]}](porting/{example}/{way}.py)" for way in WAYS]
        written = sum(1 for line in lines if line.strip())
        rows.append(f"| [{title}](porting/{example}/script.py) | {written} | {' | '.join(cells)} |")
    return "\n".join([*head, *rows]) + "\n"


def page(text: str) -> str:
    """Return the page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
