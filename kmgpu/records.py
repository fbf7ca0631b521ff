"""Records: JSON in which NaN and infinity survive, and what a sequence of events says about a run."""

from __future__ import annotations

import json
import math
from typing import Any

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def dumps(record: Any, indent: int | None = None) -> str:
    """Return strict JSON; a non-finite number becomes ``{"$float": "NaN"}`` (or ``Infinity``, ``-Infinity``)."""
    return json.dumps(_encode(record), allow_nan=False, indent=indent)


def loads(text: str) -> Any:
    """Read what ``dumps`` wrote."""
    return json.loads(text, object_hook=_decode)


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    return value


def _decode(record: dict[str, Any]) -> Any:
    if record.keys() == {"$float"}:
        return _NON_FINITE[record["$float"]]
    return record


def fold(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the events of rank 0 say of a run, whole or cut short; of one that went on, also from before.

    Keys: epochs, steps (done), history (one dict of metrics per epoch), timings, hashes, memory, notes, start.
    """
    start = _first(events, "start") or {}
    end = _first(events, "end") or {}
    windows = [event for event in events if event["event"] == "window"]
    epochs = [event for event in events if event["event"] == "epoch"]
    steady = [window for window in windows if not window["compiling"]]
    before = start.get("resumed") or {"history": [], "updates": 0}
    history = [*before["history"], *(event["metrics"] for event in epochs)]
    return {
        "epochs": len(history),
        "steps": before["updates"] + sum(window["steps"] for window in windows),
        "history": history,
        "timings": {
            "first_step_time": windows[0]["time"] if windows else None,
            "steady_seconds": sum(window["seconds"] for window in steady),
            "steady_steps": sum(window["steps"] for window in steady),
            "steady_samples": sum(window["samples"] for window in steady),
            "waiting_seconds": sum(window.get("waiting_seconds", 0.0) for window in steady),
            "compiling_seconds": sum(window["seconds"] for window in windows if window["compiling"]),
            "step_seconds": [window["seconds"] / window["steps"] for window in steady],
        },
        "hashes": {key: end.get(key) for key in ("initial_weights", "sample_order", "final_weights")},
        "peak_bytes": end.get("peak_bytes"),
        "threads": end.get("threads"),
        "notes": [event["text"] for event in events if event["event"] == "note"],
        "start": {key: value for key, value in start.items() if key not in ("event", "time")},
    }


def _first(events: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((event for event in events if event["event"] == kind), None)
