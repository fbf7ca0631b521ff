"""A comparison as text: what was held equal, one row for each backend and number of devices, and what to be wary of.

The same rows as a table for the terminal, as Markdown and as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from kmgpu.report import flags, ratios, statistics
from kmgpu.report.runs import Run
from kmgpu.report.statistics import Row, stall

if TYPE_CHECKING:
    from rich.console import RenderableType

FORMAT = 1  # version of comparison.json
WIDE = 110  # terminal columns from which every column has its place
FREE_LUNCH = 1.03  # efficiency above this is an error until explained
BUSY = 0.5  # load for each core, before the first run, from which times are not to be trusted


def heading(runs: Sequence[Run], scaling: str) -> list[str]:
    """Return the sentences above the table: what is compared, on what, and what was held equal and checked."""
    first = next((run for run in runs if run.ok), runs[0])
    start, job = first.start, first.job
    random = ", portable randomness" if job.randomness == "portable" else ""
    return [
        f"{job.recipe_name}: {_scaling(scaling, start.get('batch_size'), job.devices)}.",
        f"Devices: {_devices(first)}.",
        f"Held equal: {_held_equal([run for run in runs if run.ok], scaling)}.",
        f"Trained: {start.get('epochs')} epoch{_plural(start.get('epochs'))} of {_rows(start.get('rows'))}, "
        f"seed {job.seed}, learning rate {_rate(start.get('learning_rate'))}, {job.track} track{random}"
        f"{_precision(runs)}.",
        f"Versions: {_versions(runs)}.",
    ]


def _rows(rows: int | None) -> str:
    return "a stream" if rows is None else f"{rows} rows"


def remarks(runs: Sequence[Run], rows: Sequence[Row]) -> list[str]:
    """Return the sentences below the table: failures with their reasons, and numbers not to be believed."""
    failed = [run for run in runs if not run.ok]
    said = [f"{run.name} {run.status}: {(run.reason or 'nobody knows why').splitlines()[0]}" for run in failed]
    load = busy(runs[0])  # of later runs the load is partly our own
    if load is not None:
        cores = runs[0].environment["cores"]
        said.append(f"the machine was busy before the first run (load {load:.1f} on {cores} cores): measure again")
    for run in runs:
        part = stall(run)
        if part is not None and part > flags.WAITING:
            whole = "it is input-bound, and its speed is that of the reading"
            bound = whole if part > flags.INPUT_BOUND else "part of its speed is that of the reading"
            said.append(f"{run.name} waited for its data {part:.0%} of the time: {bound}")
    for row in rows:
        if row.speedup is not None and row.speedup > FREE_LUNCH * row.devices:
            said.append(
                f"{row.backend} on {row.devices} devices is {row.speedup:.2f} times as fast as on one, more than "
                f"{row.devices} times: an error until explained (too few steps, or a busy machine)"
            )
        if row.runs and row.step_seconds is None:
            said.append(f"{row.backend} on {row.devices}: every window held a compilation; train for more epochs")
    return [*said, *noise(runs)]


def busy(run: Run) -> float | None:
    """Return the load of the machine before a run, if that is too much for times to be trusted; else None."""
    load, cores = run.environment.get("load_average"), run.environment.get("cores")
    return load[0] if load and cores and load[0] > BUSY * cores else None


def noise(runs: Sequence[Run]) -> list[str]:
    """Return how much speeds scatter on this machine, and what is seen through that; nothing if unknown."""
    speeds = [statistics.speeds(cell) for cell in statistics.cells(runs).values()]
    scatter, blocks = ratios.spread(speeds), min(map(len, speeds), default=0)
    seen = None if scatter is None else ratios.smallest(scatter, blocks)
    if scatter is None or seen is None:
        return []
    few = f" (fewer than {ratios.FEW_BLOCKS}: a first look)" if blocks < ratios.FEW_BLOCKS else ""
    what = f"a difference of {seen:.1%} is seen in four cases out of five" if seen < 1 else "not even double is sure"
    return [f"noise: equal processes differ by {scatter:.1%} in speed here; with {blocks} for each cell{few}, {what}"]


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its header where there is room, where there is little, and the text of a row's cell."""

    wide: str
    narrow: str
    text: Callable[[Row], str]
    number: bool = True


def columns(rows: Sequence[Row], narrow: bool = False) -> list[Column]:
    """Return the columns; a narrow table has backend and strategy in one, and no spread."""
    metric = next((row.validation_name for row in rows if row.validation_name), "val_loss")
    metric = metric.replace("_", "\n", -1 if narrow else 1)
    if narrow:
        who = [Column("", "backend\nstrategy", lambda row: f"{row.backend} {row.strategy}", number=False)]
    else:
        who = [
            Column("backend", "", lambda row: row.backend, number=False),
            Column("strategy", "", lambda row: row.strategy, number=False),
        ]
    spread = Column("p5-p95", "", lambda row: _spread(row.step_seconds_p5, row.step_seconds_p95))
    return [
        *who,
        Column("devices", "dev", lambda row: str(row.devices)),
        Column("global\nbatch", "global\nbatch", lambda row: _text(row.batch_size, "{}")),
        Column("ms per\nstep", "ms per\nstep", lambda row: _ms(row.step_seconds)),
        *([] if narrow else [spread]),
        Column("samples\nper s", "samples\nper s", lambda row: _text(row.samples_per_second, "{:.0f}")),
        Column("speed-up", "speed\nup", lambda row: _text(row.speedup, "{:.2f}")),
        Column("first\nstep s", "first\nstep s", lambda row: _text(row.first_step_seconds, "{:.1f}")),
        Column("peak\nMiB", "peak\nMiB", lambda row: _text(row.peak_bytes and row.peak_bytes / 2**20, "{:.0f}")),
        Column("final\nloss", "final\nloss", lambda row: _text(row.final_loss, "{:.4f}")),
        Column(metric, metric, lambda row: _text(row.validation, "{:.4f}")),
    ]


def terminal(said: Sequence[str], rows: Sequence[Row], wary: Sequence[str], width: int = 80) -> RenderableType:
    """Return what rich prints."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    narrow = width < WIDE
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0 if narrow else 1, 0, 0))
    shown = columns(rows, narrow)
    headers = [column.narrow if narrow else column.wide for column in shown]
    widths = [_width(column, header, rows) for column, header in zip(shown, headers, strict=True)]
    if sum(widths) + len(widths) - 1 > width:  # backend and strategy, below each other
        widths[0] = max(len(word) for row in rows for word in [*headers[0].split(), *shown[0].text(row).split()])
    for column, header, size in zip(shown, headers, widths, strict=True):
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(header, justify=justify, vertical="bottom", width=size)
    previous = None
    for row in rows:
        if previous not in (None, row.backend):
            table.add_section()
        previous = row.backend
        cells = [Text(column.text(row)) for column in shown]  # Text: a name is never markup
        table.add_row(*cells, style=None if row.runs else "red")
    below = [Text(sentence, style="yellow") for sentence in wary]
    return Group(*map(Text, said), Text(), table, *([Text(), *below] if below else []))


def markdown(said: Sequence[str], rows: Sequence[Row], wary: Sequence[str]) -> str:
    """Return the comparison as a Markdown document."""
    shown = columns(rows)
    lines = [f"# {said[0]}", "", *(f"- {sentence}" for sentence in said[1:]), ""]
    lines.append("| " + " | ".join(column.wide.replace("\n", " ") for column in shown) + " |")
    lines.append("|" + "|".join("---:" if column.number else "---" for column in shown) + "|")
    lines += ["| " + " | ".join(column.text(row).replace("|", "\\|") for column in shown) + " |" for row in rows]
    if wary:
        lines += ["", *(f"- {sentence}" for sentence in wary)]
    return "\n".join(lines) + "\n"


def to_json(
    runs: Sequence[Run], scaling: str, said: Sequence[str], rows: Sequence[Row], wary: Sequence[str]
) -> dict[str, Any]:
    """Return comparison.json: the rows with full numbers, and which runs they come from."""
    return {
        "format": FORMAT,
        "recipe": runs[0].job.recipe_name,
        "scaling": scaling,
        "heading": list(said),
        "rows": [dataclasses.asdict(row) for row in rows],
        "remarks": list(wary),
        "runs": [
            {"name": run.name, "status": run.status, "reason": run.reason or None, "hashes": run.hashes} for run in runs
        ],
    }


def _width(column: Column, header: str, rows: Sequence[Row]) -> int:
    return max(map(len, [*header.split("\n"), *(column.text(row) for row in rows)]))


def _scaling(scaling: str, batch_size: Any, devices: int) -> str:
    if scaling == "weak":
        each = batch_size // devices if isinstance(batch_size, int) else "?"
        return f"weak scaling, {each} samples for each device (the global batch grows, and with it what is learnt)"
    return f"strong scaling, a global batch of {batch_size} in every run, divided over the devices"


def _devices(run: Run) -> str:
    if run.start.get("device_kind", run.job.device_kind) == "cpu":
        cores = run.environment.get("cores")
        cpu = run.environment.get("cpu")
        on = f" on {cores} cores" if cores else ""
        return f"virtual CPU devices{on}{f' ({cpu})' if cpu else ''}: these are not GPUs"
    names = list(dict.fromkeys(run.environment.get("gpus") or run.start.get("devices") or ["unknown"]))
    driver = run.environment.get("gpu_driver")
    return f"GPUs ({', '.join(names)}{f', driver {driver}' if driver else ''})"


def _held_equal(good: Sequence[Run], scaling: str) -> str:
    if not good:
        return "nothing, for no run ended well"
    weights = str(good[0].hashes.get("initial_weights"))[:8]
    orders = list(dict.fromkeys(str(run.hashes.get("sample_order"))[:8] for run in good))
    within = " on the same number of devices" if scaling == "weak" and len(orders) > 1 else ""
    return (
        f"initial weights ({weights}) and the order of the samples{within} ({', '.join(orders)}), "
        f"compared by their hashes over {len(good)} run{'s' if len(good) > 1 else ''}"
    )


def _rate(rate: Any) -> str:
    return rate if isinstance(rate, str) else _text(rate, "{:.6g}")  # a schedule is a name


def _precision(runs: Sequence[Run]) -> str:
    """Every switch that some framework has; comparable runs that have the same one have it in the same position."""
    stated = {key: value for run in runs for key, value in (run.start.get("precision") or {}).items()}
    words = {True: "on", False: "off"}
    return "".join(f", {key} {words[value] if isinstance(value, bool) else value}" for key, value in stated.items())


def _versions(runs: Sequence[Run]) -> str:
    told = [run for run in runs if run.start.get("framework")]
    frameworks = {f"{run.start['framework']} ({run.job.strategy}{_compiled(run)})": None for run in told}
    kerases = {f"Keras {run.start['keras']}": None for run in runs if run.start.get("keras")}
    return ", ".join([*frameworks, *kerases]) or "unknown, for no run got as far as to say"


def _compiled(run: Run) -> str:
    return f", {run.start['compiled'] or 'not compiled'}" if "compiled" in run.start else ""


def _plural(count: Any) -> str:
    return "" if count == 1 else "s"


def _text(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def _ms(seconds: float | None) -> str:
    return _text(None if seconds is None else seconds * 1000, "{:.2f}" if seconds and seconds < 0.1 else "{:.0f}")


def _spread(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{_ms(low)}-{_ms(high)}"
