"""The figures of one table of a study: each with a title, a sentence for those who do not see it, and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kmgpu.report import breakdown, svg
from kmgpu.report.curves import Curve
from kmgpu.report.findings import TableFound
from kmgpu.report.svg import Line, Series

WINDOWS = 200  # points of one row of the step times at most


@dataclass(frozen=True)
class Figure:
    """A chart; ``header`` and ``rows`` are the same numbers as a table."""

    name: str  # of a file
    title: str
    note: str
    svg: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def of_table(found: TableFound) -> list[Figure]:
    """Return the figures for which there are numbers."""
    made = (
        _speed(found), _scaling(found), _steps(found), _step_parts(found), _time(found),
        *(_curve(found, quantity, over) for quantity in ("loss", "metric") for over in ("steps", "seconds")),
        _peak(found), _curve(found, "memory", "seconds"), _curve(found, "utilization", "seconds"),
    )  # fmt: skip
    return [figure for figure in made if figure is not None]


def _look(found: TableFound) -> dict[str, int]:
    return {backend: place for place, backend in enumerate(dict.fromkeys(row.backend for row in found.rows))}


def _name(backend: str, devices: int) -> str:
    return f"{backend} on {devices}"


def _figure(
    name: str, title: str, note: str, chart: tuple[str, int], header: Sequence[str], rows: Sequence[Sequence[str]]
) -> Figure:
    body, height = chart
    alt = f"{title}. {note} The numbers are in the table below the figure."
    return Figure(name, title, note, svg.document(body, height, title, alt), tuple(header), tuple(map(tuple, rows)))


def _speed(found: TableFound) -> Figure | None:
    look = _look(found)
    data = [
        Line(
            _name(row.backend, row.devices), row.samples_per_second, row.samples_per_second_low,
            row.samples_per_second_high, _of_runs(found, row.backend, row.strategy, row.devices), look[row.backend],
        )
        for row in found.rows
    ]  # fmt: skip
    if not any(each.value for each in data):
        return None
    rows = [
        (
            each.name,
            _text(each.value, "{:.0f}"),
            _text(each.low, "{:.0f}"),
            _text(each.high, "{:.0f}"),
            str(len(each.points)),
        )
        for each in data
    ]
    note = "Median over the processes, with the 95 % interval of their mean; each faint dot is one process."
    header = ("cell", "samples per second", "95 % from", "to", "processes")
    return _figure(
        "speed", "Samples per second", note, svg.rows(data, "samples per second, all devices together"), header, rows
    )


def _of_runs(found: TableFound, backend: str, strategy: str, devices: int) -> list[float]:
    return [
        run.samples_per_second
        for run in found.runs
        if (run.backend, run.strategy, run.devices) == (backend, strategy, devices)
        and run.status == "ok"
        and run.samples_per_second is not None
    ]


def _scaling(found: TableFound) -> Figure | None:
    if not found.scaled:
        return None
    look, series, rows = _look(found), [], []
    for backend in dict.fromkeys(each.backend for each in found.scaled):
        mine = sorted((each for each in found.scaled if each.backend == backend), key=lambda each: each.devices)
        series.append(Series(
            backend, [1, *(each.devices for each in mine)], [1.0, *(each.ratio.value for each in mine)], look[backend],
            low=[None, *(each.ratio.low for each in mine)], high=[None, *(each.ratio.high for each in mine)],
            marked=True,
        ))  # fmt: skip
        rows += [
            (_name(backend, each.devices), f"{each.ratio.value:.2f}", _text(each.ratio.low, "{:.2f}"),
             _text(each.ratio.high, "{:.2f}"), f"{each.efficiency:.0%}")
            for each in mine
        ]  # fmt: skip
    counts = sorted({1, *(each.devices for each in found.scaled)})
    series.append(Series("ideal: as many times as devices", counts, counts, 6, dash=1))
    note = f"Speed over that of one device of the same backend, {found.scaling.partition(',')[0].partition(': ')[2]}."
    header = ("cell", "speed-up", "95 % from", "to", "efficiency")
    chart = svg.lines(series, "devices", "times as fast as one device", from_zero=True, whole=True)
    return _figure("scaling", "Scaling", note, chart, header, rows)


def _steps(found: TableFound) -> Figure | None:
    look, data, rows = _look(found), [], []
    for row in found.rows:
        windows = [
            seconds * 1000
            for run in found.runs
            if (run.backend, run.strategy, run.devices) == (row.backend, row.strategy, row.devices)
            and run.status == "ok"
            for seconds in run.windows
        ]
        shown = sorted(windows)
        shown = (
            [shown[round(place * (len(shown) - 1) / (WINDOWS - 1))] for place in range(WINDOWS)]
            if len(shown) > WINDOWS
            else shown
        )
        values = [
            None if value is None else value * 1000
            for value in (row.step_seconds, row.step_seconds_p5, row.step_seconds_p95)
        ]
        data.append(Line(_name(row.backend, row.devices), values[0], values[1], values[2], shown, look[row.backend]))
        rows.append((data[-1].name, *(_text(value, "{:.2f}") for value in values), str(len(windows))))
    if not any(each.points for each in data):
        return None
    note = "Marker: median; bar: 5th to 95th percentile within a run; each faint dot is a window of up to ten steps."
    header = ("cell", "median ms", "p5", "p95", "windows")
    return _figure("step-times", "Time of a step", note, svg.rows(data, "milliseconds per step"), header, rows)


def _step_parts(found: TableFound) -> Figure | None:
    if not found.breakdown:
        return None
    names = [_name(each.backend, each.devices) for each in found.breakdown]
    values = [(each.step_computing * 1000, each.step_waiting * 1000) for each in found.breakdown]
    parts = ("computing and exchanging", "waiting for data")
    rows = [(name, *(f"{part:.3f}" for part in each)) for name, each in zip(names, values, strict=True)]
    chart = svg.stacked(names, parts, values, "milliseconds per step")
    return _figure("step-parts", "Where the time of a step goes", breakdown.NOTE, chart, ("cell", *parts), rows)


def _time(found: TableFound) -> Figure | None:
    if not found.breakdown:
        return None
    names = [_name(each.backend, each.devices) for each in found.breakdown]
    values = [each.seconds for each in found.breakdown]
    rows = [(name, *(f"{part:.2f}" for part in each)) for name, each in zip(names, values, strict=True)]
    note = "From the launch of a run to its end, medians over the processes."
    chart = svg.stacked(names, breakdown.PARTS, values, "seconds")
    return _figure("run-parts", "Where the time of a run goes", note, chart, ("cell", *breakdown.PARTS), rows)


def _peak(found: TableFound) -> Figure | None:
    look = _look(found)
    data = [
        Line(
            _name(row.backend, row.devices),
            None if row.peak_bytes is None else row.peak_bytes / 2**20,
            None,
            None,
            (),
            look[row.backend],
        )
        for row in found.rows
    ]
    if not any(each.value for each in data):
        return None
    rows = [(each.name, "not measured" if each.value is None else f"{each.value:.0f}") for each in data]
    note = "Sum over the processes: resident memory on CPU, the framework's allocator on GPU; taken in the timed runs."
    return _figure("peak-memory", "Peak memory", note, svg.rows(data, "MiB"), ("cell", "peak MiB"), rows)


TITLES = {
    ("loss", "steps"): "Training loss over steps", ("loss", "seconds"): "Training loss over time",
    ("metric", "steps"): "{} over steps", ("metric", "seconds"): "{} over time",
    ("memory", "seconds"): "Memory over time", ("utilization", "seconds"): "Use of the devices over time",
}  # fmt: skip
NOTES = {
    "loss": "First run of each cell; of many points the means. Equal curves hide each other.",
    "metric": "First run of each cell, after each epoch.",
    "memory": "All processes of the first run of each cell, once a second; memory that they share counts for each.",
    "utilization": "First run of each cell, once a second.",
}  # fmt: skip


def _curve(found: TableFound, quantity: str, over: str) -> Figure | None:
    look, chosen = _look(found), [curve for curve in found.curves if curve.quantity == quantity]
    chosen = [curve for curve in chosen if curve.name == chosen[0].name]
    counts = sorted({curve.devices for curve in chosen})
    series = [
        Series(_name(curve.backend, curve.devices), curve.steps if over == "steps" else curve.seconds, curve.values,
               look[curve.backend], counts.index(curve.devices))
        for curve in chosen
    ]  # fmt: skip
    if not series:
        return None
    name = chosen[0].name
    unit = (
        "updates"
        if over == "steps"
        else "seconds since training began"
        if quantity in ("loss", "metric")
        else "seconds since the launch"
    )
    rows = [_ends(curve, over) for curve in chosen]
    header = ("cell", "points", "first", "lowest", "highest", "last", unit)
    chart = svg.lines(series, unit, name, from_zero=quantity in ("memory", "utilization"))
    return _figure(f"{quantity}-over-{over}", TITLES[quantity, over].format(name), NOTES[quantity], chart, header, rows)


def _ends(curve: Curve, over: str) -> tuple[str, ...]:
    values = (curve.values[0], min(curve.values), max(curve.values), curve.values[-1])
    end = curve.steps[-1] if over == "steps" else curve.seconds[-1]
    return (
        _name(curve.backend, curve.devices),
        str(len(curve.values)),
        *(f"{value:.4g}" for value in values),
        f"{end:.4g}",
    )


def _text(value: float | None, form: str) -> str:
    return "not known" if value is None else form.format(value)
