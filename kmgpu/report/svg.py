"""Charts as SVG text: lines, points with intervals, strips and stacked bars.

Text stays text, so that it can be searched, read aloud and printed sharp; what colour says is also said by a marker, a
dash, a pattern or a label. Colours are Okabe and Ito's, which most colour-blind people tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 72, 20, 14, 48
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B8860B", "#56B4E9", "#555555")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
FONT = "font-family='system-ui, -apple-system, Segoe UI, DejaVu Sans, sans-serif' font-size='15'"
INK, FAINT = "#1b1f24", "#c9ced6"


@dataclass(frozen=True)
class Series:
    """A line of a chart; ``look`` is which colour and marker, ``dash`` which dash."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: int
    dash: int = 0
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    marked: bool = False


@dataclass(frozen=True)
class Line:
    """A labelled row of a chart with a horizontal axis: a value with its interval, and single points."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    points: Sequence[float]
    look: int


def document(body: str, height: int, title: str, alt: str) -> str:
    """Return a whole SVG document with a title and a description for those who do not see it."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' "
        f"role='img' {FONT} fill='{INK}'><title>{escape(title)}</title><desc>{escape(alt)}</desc>"
        f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>{body}</svg>"
    )


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers that span a range, at most so many."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / (most - 1)
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def number(value: float) -> str:
    """Return a number as an axis has it."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def lines(
    series: Sequence[Series], x_name: str, y_name: str, *, from_zero: bool = False, whole: bool = False
) -> tuple[str, int]:
    """Return the body of a chart of lines, with the names of its series below, and its height."""
    xs = [x for each in series for x in each.x]
    ys = [y for each in series for y in (*each.y, *each.low, *each.high) if y is not None]
    across = sorted(set(xs)) if whole else ticks(0 if min(xs) < 0.3 * max(xs) else min(xs), max(xs), 8)
    up = ticks(0 if from_zero or min(ys) < 0.3 * max(ys) and min(ys) > 0 else min(ys), max(ys))
    legend, legend_height = _legend(series)
    height, bottom = 300 + legend_height, 300 - BOTTOM
    pad = 0.08 * (across[-1] - across[0] or 1) if whole else 0.0
    span = across[-1] - across[0] + 2 * pad or 1

    def at(x: float, y: float) -> tuple[float, float]:
        right = LEFT + (x - across[0] + pad) / span * (WIDTH - LEFT - RIGHT)
        return right, bottom - (y - up[0]) / (up[-1] - up[0]) * (bottom - TOP)

    body = [_grid(up, lambda y: at(across[0], y)[1]), _across(across, lambda x: at(x, up[0])[0], bottom, x_name)]
    body.append(
        f"<text transform='translate(15 {(TOP + bottom) / 2:.0f}) rotate(-90)' text-anchor='middle'>"
        f"{escape(y_name)}</text>"
    )
    for each in series:
        body.append(_line(each, [at(x, y) for x, y in zip(each.x, each.y, strict=True)]))
        for x, low, high in zip(each.x, each.low, each.high, strict=False):
            if low is not None and high is not None:
                body.append(_whisker(at(x, low)[0], at(x, low)[1], at(x, high)[1], _colour(each.look)))
    return "".join(body) + f"<g transform='translate(0 300)'>{legend}</g>", height


def rows(data: Sequence[Line], x_name: str, *, from_zero: bool = True) -> tuple[str, int]:
    """Return the body of a chart with a row for each line: points, and a value with its interval; and its height."""
    left = 12 + 8.4 * max(len(each.name) for each in data)
    values = [v for each in data for v in (each.value, each.low, each.high, *each.points) if v is not None]
    across = ticks(0 if from_zero else min(values), max(values), 7)
    height = TOP + 34 * len(data) + BOTTOM
    bottom = height - BOTTOM

    def at(x: float) -> float:
        return left + (x - across[0]) / (across[-1] - across[0]) * (WIDTH - left - 30)

    body = [_across(across, at, bottom, x_name, grid_from=TOP, centre=(left + WIDTH) / 2)]
    for place, each in enumerate(data):
        y, colour = TOP + 34 * place + 17, _colour(each.look)
        body.append(f"<text x='{left - 10:.0f}' y='{y + 4}' text-anchor='end'>{escape(each.name)}</text>")
        body += [
            f"<circle cx='{at(x):.1f}' cy='{y + 8}' r='2.2' fill='{colour}' fill-opacity='.35'/>" for x in each.points
        ]
        if each.low is not None and each.high is not None:
            body.append(_bar(at(each.low), at(each.high), y - 3, colour))
        if each.value is not None:
            body.append(_marker(at(each.value), y - 3, each.look))
        else:
            body.append(f"<text x='{left + 8:.0f}' y='{y + 4}' font-style='italic'>not measured</text>")
    return "".join(body), height


def stacked(
    names: Sequence[str], parts: Sequence[str], values: Sequence[Sequence[float]], x_name: str
) -> tuple[str, int]:
    """Return the body of a chart of stacked bars, each part with a pattern of its own, and its height."""
    left = 12 + 8.4 * max(map(len, names))
    across = ticks(0, max(map(sum, values)), 7)
    bottom = TOP + 30 * len(names)

    def at(x: float) -> float:
        return left + x / across[-1] * (WIDTH - left - 30)

    body = [_patterns(len(parts)), _across(across, at, bottom, x_name, grid_from=TOP, centre=(left + WIDTH) / 2)]
    for place, (name, row) in enumerate(zip(names, values, strict=True)):
        y, done = TOP + 30 * place + 5, 0.0
        body.append(f"<text x='{left - 10:.0f}' y='{y + 14}' text-anchor='end'>{escape(name)}</text>")
        for part, value in enumerate(row):
            if value > 0:
                said = escape(f"{name}, {parts[part]}: {value:.4g}")
                body.append(
                    f"<rect x='{at(done):.1f}' y='{y}' width='{at(done + value) - at(done):.1f}' height='20' "
                    f"fill='url(#part{part})' stroke='{_colour(part)}'><title>{said}</title></rect>"
                )
            done += value
    legend, top = [], bottom + BOTTOM + 6
    for part, name in enumerate(parts):
        x, y = 12 + 354 * (part % 2), top + 22 * (part // 2)
        legend.append(
            f"<rect x='{x}' y='{y}' width='22' height='14' fill='url(#part{part})' stroke='{_colour(part)}'/>"
        )
        legend.append(f"<text x='{x + 30}' y='{y + 12}'>{escape(name)}</text>")
    return "".join(body + legend), top + 22 * (-(-len(parts) // 2)) + 8


def _colour(look: int) -> str:
    return COLOURS[look % len(COLOURS)]


def _grid(up: Sequence[float], at: Callable[[float], float]) -> str:
    return "".join(
        f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{at(y):.1f}' y2='{at(y):.1f}' stroke='{FAINT}' stroke-width='.7'/>"
        f"<text x='{LEFT - 7}' y='{at(y) + 4:.1f}' text-anchor='end'>{number(y)}</text>"
        for y in up
    )


def _across(
    values: Sequence[float], at: Callable[[float], float], bottom: float, name: str, grid_from: float | None = None,
    centre: float = (LEFT + WIDTH) / 2,
) -> str:  # fmt: skip
    top = bottom if grid_from is None else grid_from
    marks = "".join(
        f"<line x1='{at(x):.1f}' x2='{at(x):.1f}' y1='{top}' y2='{bottom + 5}' stroke='{FAINT}' stroke-width='.7'/>"
        f"<text x='{at(x):.1f}' y='{bottom + 19}' text-anchor='middle'>{number(x)}</text>"
        for x in values
    )
    return f"{marks}<text x='{centre:.0f}' y='{bottom + 41}' text-anchor='middle'>{escape(name)}</text>"


def _line(each: Series, points: Sequence[tuple[float, float]]) -> str:
    colour = _colour(each.look)
    dash = f" stroke-dasharray='{DASHES[each.dash % len(DASHES)]}'" if each.dash else ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.8'{dash}/>"
    few = points if each.marked or len(points) <= 12 else [points[round(i * (len(points) - 1) / 5)] for i in range(6)]
    return drawn + "".join(_marker(x, y, each.look) for x, y in few)


def _marker(x: float, y: float, look: int) -> str:
    colour, kind = _colour(look), look % 4
    if kind == 0:
        return f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4.5' fill='{colour}'/>"
    if kind == 1:
        return f"<rect x='{x - 4:.1f}' y='{y - 4:.1f}' width='8' height='8' fill='{colour}'/>"
    shape = [(0, -5.5), (5, 4), (-5, 4)] if kind == 2 else [(0, -6), (6, 0), (0, 6), (-6, 0)]
    return f"<polygon points='{' '.join(f'{x + a:.1f},{y + b:.1f}' for a, b in shape)}' fill='{colour}'/>"


def _whisker(x: float, low: float, high: float, colour: str) -> str:
    ends = "".join(
        f"<line x1='{x - 4:.1f}' x2='{x + 4:.1f}' y1='{y:.1f}' y2='{y:.1f}' stroke='{colour}'/>" for y in (low, high)
    )
    return f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{low:.1f}' y2='{high:.1f}' stroke='{colour}'/>{ends}"


def _bar(low: float, high: float, y: float, colour: str) -> str:
    ends = "".join(
        f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{y - 5}' y2='{y + 5}' stroke='{colour}' stroke-width='1.6'/>"
        for x in (low, high)
    )
    return f"<line x1='{low:.1f}' x2='{high:.1f}' y1='{y}' y2='{y}' stroke='{colour}' stroke-width='1.6'/>{ends}"


def _legend(series: Sequence[Series]) -> tuple[str, int]:
    shown, wide = [], 232
    each_row = (WIDTH - 24) // wide
    for place, each in enumerate(series):
        x, y = 12 + wide * (place % each_row), 14 + 21 * (place // each_row)
        dash = f" stroke-dasharray='{DASHES[each.dash % len(DASHES)]}'" if each.dash else ""
        shown.append(
            f"<line x1='{x}' x2='{x + 30}' y1='{y}' y2='{y}' stroke='{_colour(each.look)}' stroke-width='1.8'{dash}/>"
            f"{_marker(x + 15, y, each.look)}<text x='{x + 38}' y='{y + 4}'>{escape(each.name)}</text>"
        )
    return "".join(shown), 14 + 21 * (-(-len(series) // each_row))


def _patterns(count: int) -> str:
    strokes = (
        "", "M0 0L8 8M-2 6L2 10M6 -2L10 2", "M0 8L8 0M-2 2L2 -2M6 10L10 6", "M0 4H8", "M4 0V8",
        "M0 4H8M4 0V8", "M2 2h1M6 6h1",
    )  # fmt: skip
    return "<defs>" + "".join(
        f"<pattern id='part{part}' width='8' height='8' patternUnits='userSpaceOnUse'>"
        f"<rect width='8' height='8' fill='{_colour(part)}' fill-opacity='{'.85' if part == 2 else '.28'}'/>"
        f"<path d='{strokes[part % len(strokes)]}' stroke='{_colour(part)}' stroke-width='1.4'/></pattern>"
        for part in range(count)
    ) + "</defs>"  # fmt: skip
