"""Write docs/gallery.md and its figures from the recipes themselves and from benchmarks/results/recipes.json.

python benchmarks/recipes.py && python benchmarks/gallery.py
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kmgpu import recipe_card

ROOT = Path(__file__).parents[1]
PAGE, FIGURES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
COLOURS = {"torch": "#d1495b", "tensorflow": "#edae49", "jax": "#00798c"}  # told apart without colour by the dashes
DASHES = {"torch": "", "tensorflow": "6 3", "jax": "2 3"}
NAMES = {"torch": "torch", "tensorflow": "TensorFlow", "jax": "JAX"}
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 220, 56, 12, 26, 34

INTRODUCTION = (
    "Each recipe is one file that runs as it is, on every backend and number of devices, and a place to start from:",
    "`kmgpu new my_recipe --from NAME`. The presets `tiny` need no network (`resnet50` learns nothing without your",
    "images); larger ones are for GPUs, and have not been run. The page is made by `benchmarks/gallery.py`.",
)
MEASURED = (
    "The figures are runs of the tiny presets on one virtual CPU device, a line for each seed; the numbers are in",
    "[recipes.json](../benchmarks/results/recipes.json).",
)
NOT_MEASURED = (
    "Learning curves come with `python benchmarks/recipes.py`, which trains all tiny presets on three backends with",
    "three seeds.",
)

Runs = Mapping[str, Mapping[str, Mapping[str, Any]]]  # backend, seed, what a run reached

spec = importlib.util.spec_from_file_location("benchmarks_recipes", Path(__file__).with_name("recipes.py"))
assert spec is not None and spec.loader is not None
recipes = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(recipes)


def page(results: Mapping[str, Runs]) -> str:
    """Return the gallery as Markdown: a section for each shipped recipe, and a table of all at the head."""
    cards = recipe_card.shipped()
    lines = ["# Gallery of recipes", "", *INTRODUCTION, *(MEASURED if results else NOT_MEASURED), ""]
    lines += ["| recipe | what it is |" + (" parameters | reached, over seeds and backends |" if results else "")]
    lines += ["|---|---|---:|---|" if results else "|---|---|"]
    lines += [*(_row(card, results.get(card.name, {}), bool(results)) for card in cards), ""]
    for card in cards:
        lines += _section(card, results.get(card.name, {}))
    return "\n".join(lines).rstrip() + "\n"


def reached(name: str, runs: Runs) -> str:
    """Return the range of a recipe's score at the end of its runs, in words."""
    goal = recipes.GOALS.get(name)
    last = [run["history"][-1][goal.score] for seeds in runs.values() for run in seeds.values()] if goal else []
    if goal is None or not last:
        return ""
    return f"{goal.score} {min(last):.4g} to {max(last):.4g}"


def figure(score: str, runs: Runs) -> str:
    """Return learning curves as SVG: the score after each epoch, a line for each seed, a colour for each backend."""
    curves = {
        backend: [[epoch[score] for epoch in run["history"]] for run in seeds.values()]
        for backend, seeds in runs.items()
    }
    values = [value for lines in curves.values() for line in lines for value in line]
    low, high = min(values), max(values)
    epochs = max(len(line) for lines in curves.values() for line in lines)

    def point(epoch: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (epoch / max(epochs - 1, 1))
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * ((value - low) / (high - low or 1))
        return f"{x:.1f},{y:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *_axes(score, low, high, epochs),
    ]
    for backend, lines in curves.items():
        for line in lines:
            path = " ".join(point(epoch, value) for epoch, value in enumerate(line))
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{COLOURS[backend]}" stroke-width="1.5" '
                f'stroke-dasharray="{DASHES[backend]}"/>'
            )
    return "\n".join([*parts, *_legend(list(curves)), "</svg>", ""])


def _axes(score: str, low: float, high: float, epochs: int) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    grid = []
    for part in (0.0, 0.5, 1.0):
        y, value = bottom - (bottom - TOP) * part, low + (high - low) * part
        grid += [
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>',
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#333333">{value:.3g}</text>',
        ]
    return [
        *grid,
        f'<text x="{LEFT}" y="14" fill="#333333">{score}</text>',
        f'<text x="{LEFT}" y="{bottom + 16}" text-anchor="middle" fill="#333333">1</text>',
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end" fill="#333333">{epochs}</text>',
        f'<text x="{(LEFT + right) / 2}" y="{bottom + 16}" text-anchor="middle" fill="#333333">epoch</text>',
    ]


def _legend(backends: Sequence[str]) -> list[str]:
    parts = []
    for number, backend in enumerate(backends):
        x = WIDTH - RIGHT - 92 * (len(backends) - number)
        parts += [
            f'<line x1="{x}" y1="10" x2="{x + 20}" y2="10" stroke="{COLOURS[backend]}" stroke-width="2" '
            f'stroke-dasharray="{DASHES[backend]}"/>',
            f'<text x="{x + 25}" y="14" fill="#333333">{NAMES[backend]}</text>',
        ]
    return parts


def _row(card: recipe_card.Card, runs: Runs, measured: bool) -> str:
    row = f"| [{card.name}](#{card.name}) | {card.summary} |"
    if not measured:
        return row
    parameters = {run["parameters"] for seeds in runs.values() for run in seeds.values()}
    size = f"{max(parameters):,}" if parameters else ""
    return f"{row} {size} | {reached(card.name, runs)} |"


def _section(card: recipe_card.Card, runs: Runs) -> list[str]:
    rest = card.doc.partition("\n")[2].strip()
    settings = ", ".join(
        f"`{name}={value!r}`"
        + (f" (or {', '.join(repr(c) for c in card.choices[name] if c != value)})" if name in card.choices else "")
        for name, value in card.settings.items()
    )
    lines = [f"## {card.name}", "", card.summary, ""]
    lines += [rest, ""] if rest else []
    lines += [f"Settings: {settings}. [The file](../recipes/{card.name}.py).", ""]
    if runs and card.name in recipes.GOALS:
        frameworks = ", ".join(next(iter(seeds.values()))["framework"] for seeds in runs.values())
        score = recipes.GOALS[card.name].score
        lines += [f"![{score} of {card.name} after each epoch](gallery/{card.name}.svg)", "", f"With {frameworks}.", ""]
    return lines


def measured() -> dict[str, Runs]:
    """Return what is kept of the runs, by recipe."""
    return json.loads(recipes.RESULTS.read_text(encoding="utf-8")) if recipes.RESULTS.exists() else {}


def main() -> None:
    results = measured()
    FIGURES.mkdir(exist_ok=True)
    for name, goal in recipes.GOALS.items():
        if name in results:
            (FIGURES / f"{name}.svg").write_text(figure(goal.score, results[name]), encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
