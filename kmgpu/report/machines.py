"""On what a run was computed: runs on unlike machines are never ranked."""

from __future__ import annotations

from kmgpu.report.runs import Run


def device_kind(run: Run) -> str:
    """Return "cpu" or "gpu": by the framework's own names of what it used, whatever was asked for."""
    names = [str(name).lower() for name in run.start.get("devices") or ()]
    if names and all("cpu" in name for name in names):
        return "cpu"
    return run.start.get("device_kind", run.job.device_kind)


def machine(run: Run) -> str:
    """Return what a run was computed on, in words; runs on unlike machines are never ranked."""
    environment = run.environment
    if device_kind(run) == "cpu":
        return f"virtual CPU devices on {environment.get('cores', '?')} cores ({environment.get('cpu', 'unknown CPU')})"
    names = list(dict.fromkeys(environment.get("gpus") or ["unknown GPU"]))
    driver = environment.get("gpu_driver")
    return f"GPUs ({', '.join(names)}{f', driver {driver}' if driver else ''})"
