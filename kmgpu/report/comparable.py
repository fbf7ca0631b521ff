"""Whether runs may stand in one table: they are equal in everything but what is compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kmgpu.errors import NotComparable
from kmgpu.records import dumps
from kmgpu.report.runs import Run

PROVED = ("initial_weights", "sample_order")  # the hashes that a run records
PROOFS = ("initial weights", "sample order")  # hashes; a run that does not have them proves nothing


def check(runs: Sequence[Run], scaling: str = "strong") -> None:
    """Raise NotComparable, naming the facts that differ and in which runs, unless finished runs are comparable.

    Under weak scaling the global batch and the sample order belong to a number of devices, and must be equal there.
    """
    problems = [f"{name} is not recorded in {run.name}" for run in runs for name in PROOFS if facts(run)[name] is None]
    for label, group in _groups(runs, scaling):
        for name in group[0][1] if group else ():
            problems += _differing(name + label, [(run, known[name]) for run, known in group])
    # Frameworks name their switches differently: what two runs both state must be equal.
    for key in dict.fromkeys(key for run in runs for key in _precision(run)):
        stated = [(run, _precision(run)[key]) for run in runs if key in _precision(run)]
        problems += _differing(f"precision ({key})", stated)
    if problems:
        raise NotComparable("these runs are not comparable; they differ in " + "; ".join(problems))


def facts(run: Run) -> dict[str, Any]:
    """Return what must be equal for all runs of a comparison."""
    start = run.start
    return {
        "recipe": run.job.recipe_name,
        "settings": run.job.settings,
        "device kind": start.get("device_kind", run.job.device_kind),
        "track": run.job.track,
        "randomness": run.job.randomness,
        "loss gather": run.job.loss_gather,
        "asked precision": run.job.precision,
        "deterministic": run.job.deterministic,
        "seed": run.job.seed,
        "epochs": start.get("epochs"),
        "learning rate": start.get("learning_rate"),
        "accumulation": start.get("accumulate", 1),
        "BatchNorm": start.get("batch_norm", "global"),
        "gradient reduction": start.get("gradient_reduction", "mean"),
        "training rows": start.get("rows"),
        "validation rows": start.get("validation_rows"),
        "parameters": start.get("parameters"),
        "initial weights": run.hashes.get("initial_weights"),
        "global batch": start.get("batch_size"),
        "sample order": run.hashes.get("sample_order"),
    }


def _groups(runs: Sequence[Run], scaling: str) -> list[tuple[str, list[tuple[Run, dict[str, Any]]]]]:
    """Split facts into those equal over all runs and, under weak scaling, those equal on one number of devices."""
    known = [(run, facts(run)) for run in runs]
    if scaling != "weak":
        return [("", known)]
    by_devices = ("global batch", "sample order")
    shared = [(run, {key: fact for key, fact in of.items() if key not in by_devices}) for run, of in known]
    groups = [("", shared)]
    for devices in sorted({run.job.devices for run in runs}):
        group = [(run, {key: of[key] for key in by_devices}) for run, of in known if run.job.devices == devices]
        groups.append((f" on {devices} device{'s' if devices > 1 else ''}", group))
    return groups


def _differing(name: str, values: Sequence[tuple[Run, Any]]) -> list[str]:
    """One clause that says who has which value, or none where all are equal."""
    holders: dict[str, list[str]] = {}
    for run, value in values:
        if isinstance(value, float):
            value = float(f"{value:.6g}")  # a learning rate comes back as float32 from one framework, not from another
        holders.setdefault(dumps(value), []).append(run.name)
    if len(holders) <= 1:
        return []
    return [f"{name}: " + ", ".join(f"{_short(value)} in {_some(at)}" for value, at in holders.items())]


def _precision(run: Run) -> dict[str, Any]:
    return {**(run.start.get("precision") or {}), **(run.start.get("numerics") or {})}


def _short(value: str) -> str:
    return f"{value[1:9]}..." if value.startswith('"') and len(value) >= 32 else value  # a hash needs no more


def _some(names: list[str]) -> str:
    return " and ".join(names) if len(names) <= 2 else f"{names[0]} and {len(names) - 1} more"
