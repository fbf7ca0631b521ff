"""Whether the records of one run make sense by themselves: a run that does not is left out, with a sentence."""

from __future__ import annotations

from kmgpu.report import breakdown, comparable, conditions, curves, flags, machines, statistics, tables, trace
from kmgpu.report.runs import Run

SENSELESS = (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError)


def problem(run: Run) -> str:
    """Return why a run's records cannot be used, or nothing. Everything that a report reads of one run is tried."""
    try:
        _types(run)
        known = trace.read(run)
        rows = statistics.rows([run])
        tables.remarks([run], rows)
        tables.heading([run], "strong")
        comparable.check([run])
        conditions.of_table([run])
        curves.of_run(run, known)
        breakdown.of_cell([run], [known])
        flags.remarks(run, known)
        flags.overlapping([run, run])
        machines.machine(run)
    except comparable.NotComparable:
        return ""
    except SENSELESS as error:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
        return f"{run.name} has records that make no sense, and is left out: {said}"
    return ""


def _types(run: Run) -> None:
    """Raise TypeError unless what tells runs apart is of the kind that it should be."""
    job = run.job
    expected = (
        ("recipe", job.recipe, str), ("backend", job.backend, str), ("strategy", job.strategy, str),
        ("devices", job.devices, int), ("seed", job.seed, int), ("settings", job.settings, dict),
        ("batch_size", job.batch_size, (int, type(None))), ("track", job.track, str), ("mode", job.mode, str),
        ("status", run.status, str), ("reason", run.reason, str), ("start", run.start, dict),
        ("history", run.history, list), ("hashes", run.hashes, dict), ("environment", run.environment, dict),
        ("global batch", run.start.get("batch_size", 1), int),
    )  # fmt: skip
    for name, value, kind in expected:
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}")
    for name, value in run.hashes.items():
        if name in comparable.PROVED and not isinstance(value, (str, type(None))):
            raise TypeError(f"the hash {name} is {value!r}")
    for step in run.outcome.get("timings", {}).get("step_seconds") or ():
        if not step > 0:
            raise ValueError(f"a step of {step!r} seconds")
