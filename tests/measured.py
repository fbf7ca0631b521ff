"""How exact a run was, and by which way: what the tests of the same math measure.

An error is the largest difference of a weight, relative to how far training has moved it, or of a score, relative to
itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cells
import numpy as np
from safetensors.numpy import load_file

EXACT, GATHERED, WHOLE, REFUSED = "exact", "gathers", "whole batch", "refused"
NOTES = {"the outputs are gathered": GATHERED, "each device computes the whole batch": WHOLE}


@dataclass
class Measured:
    """What was measured of the features: how each was exact, its largest error, and on how many devices."""

    frameworks: dict[str, str] = field(default_factory=dict)
    found: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def add(self, feature: str, run: cells.Ran, error: float) -> None:
        start = run.outcome["start"]
        backend, devices = start["backend"], len(start["devices"])
        self.frameworks[backend] = start["framework"]
        entry = self.found.setdefault(feature, {}).setdefault(backend, {"how": EXACT, "error": 0.0, "devices": []})
        entry["error"] = max(entry["error"], float(f"{error:.2g}"))
        entry["devices"].append(devices)
        if devices > 1:
            entry["how"] = how(run)

    def refused(self, feature: str, backend: str) -> None:
        self.found.setdefault(feature, {})[backend] = {"how": REFUSED}

    def as_json(self) -> str:
        return json.dumps({"frameworks": self.frameworks, "features": self.found}, indent=1) + "\n"


def how(run: cells.Ran) -> str:
    """How a run was exact, as it has told its user."""
    found = [word for note in run.outcome["notes"] for start, word in NOTES.items() if note.startswith(start)]
    return found[0] if found else EXACT


def errors(
    run: cells.Ran, reference: cells.Ran, branches: Mapping[str, tuple[str, ...]] | None = None
) -> dict[str, float]:
    """The error of each weight, of each branch of one that holds several, and of each score of any epoch."""
    mine, truth = _apart(run.weights, branches or {}), _apart(reference.weights, branches or {})
    initial = load_file(reference.rundir.initial_weights_file)  # under "<number>/<path>"
    before = _apart({name.partition("/")[2]: value for name, value in initial.items()}, branches or {})
    assert mine.keys() == truth.keys() == before.keys()
    found = {name: _error(mine[name], value, value - before[name]) for name, value in truth.items()}
    assert len(run.history) == len(reference.history)
    for epoch, expected in zip(run.history, reference.history, strict=True):
        assert epoch.keys() == expected.keys()
        for name, value in expected.items():
            found[name] = max(found.get(name, 0.0), _error(epoch[name], value, value))
    return found


def _error(mine: Any, truth: Any, scale: Any) -> float:
    apart = float(np.abs(np.subtract(mine, truth)).max())
    assert np.isfinite(apart), (mine, truth)
    return apart / max(float(np.abs(scale).max()), 1e-6) if apart else 0.0


def _apart(weights: Mapping[str, np.ndarray], branches: Mapping[str, tuple[str, ...]]) -> dict[str, np.ndarray]:
    """Weights by name, those that hold branches as columns (recipes/branches.py) taken apart."""
    found: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        if name not in branches:
            found[name] = value
            continue
        pieces = np.split(value, value.shape[-1] // 3, axis=-1)
        names = sorted(branches[name]) or [str(number) for number in range(len(pieces))]
        found |= {f"{branch}/{name}": piece for branch, piece in zip(names, pieces, strict=True)}
    return found


def shows(name: str, parts: Sequence[str]) -> bool:
    """Whether a weight or a score belongs to one of the parts: a/kernel, val_a_loss and a belong to a."""
    words = {*name.split("/"), name.removeprefix("val_").removesuffix("_loss")}
    return any(part in words for part in parts)
