"""What virtual CPU devices cannot show: each backend on GPUs, against itself on the CPU.

Trains digits_cnn for 2 epochs (46 steps) on each backend: on one CPU device, on one GPU, and on two where there are
two. All runs start from the same weights and see the same samples, so their losses must agree: that of the first step
to 1e-5, those of all steps to 1e-3 (relative). On CPU the three frameworks agree to 3e-7 over these 46 steps; a GPU's
convolutions add up in another order, and TF32 or another batch would already show in the first step. At the end it
says what the monitor read of each GPU.

    python benchmarks/gpu_check.py [--backends torch,jax] [--look] [--out DIR]

Exit code: 0 all agree, 1 something does not or did not run, 3 there is no GPU. `make gpu-check` sets up one environment
for each backend first; KMGPU_PYTHON_TORCH, KMGPU_PYTHON_TENSORFLOW and KMGPU_PYTHON_JAX name others.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also where kmgpu is not installed

import kmgpu
from kmgpu import environment, live
from kmgpu.errors import KmgpuError
from kmgpu.rundir import RunDir
from kmgpu.training import TrainResult

RECIPE, EPOCHS = "digits_cnn", 2
FIRST_STEP, ALL_STEPS = 1e-5, 1e-3  # largest relative difference of losses from those on the CPU
HEADER = ("backend", "devices", "result", "first step", "all steps", "ms/step", "peak MiB", "framework, devices")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="torch,tensorflow,jax", metavar="LIST")
    parser.add_argument("--look", action="store_true", help="only say whether there is a GPU")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the runs go; ./runs/gpu-check-TIME if left out")
    arguments = parser.parse_args()
    try:
        gpus = environment.visible_gpus()
    except KmgpuError as error:
        print(f"gpu-check: {error}")
        return error.exit_code
    if not gpus:
        print("gpu-check: there is no GPU here (NVML sees none), so nothing was checked.")
        return 3
    print(f"gpu-check: {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}: {', '.join(environment.machine()['gpus'])}")
    if arguments.look:
        return 0
    out = arguments.out or Path("runs", f"gpu-check-{time.strftime('%Y%m%d-%H%M%S')}")
    rows = check(arguments.backends.split(","), [1, 2] if len(gpus) > 1 else [1], out)
    table = [HEADER, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADER))]
    limits = f"at most {FIRST_STEP:g} at the first step, {ALL_STEPS:g} at all"
    print(f"\nRelative difference of losses from the same backend on one CPU device ({limits}):")
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in monitored(out):
        print(line)
    if len(gpus) == 1:
        print("Two GPUs were not checked: there is only one.")
    return 0 if all(row[2] == "ok" for row in rows) else 1


def check(backends: list[str], counts: list[int], out: Path) -> list[tuple[str, ...]]:
    """Return a row of text for each backend and number of GPUs."""
    rows: list[tuple[str, ...]] = []
    weights: Path | None = None
    for backend in backends:
        reference = train(backend, "cpu", 1, weights, out)
        if not isinstance(reference, str):
            weights = weights or RunDir(reference.path).initial_weights_file
        for count in counts:
            result = reference if isinstance(reference, str) else train(backend, "gpu", count, weights, out)
            if isinstance(result, str) or isinstance(reference, str):
                rows.append((backend, str(count), f"FAILED: {result}", "", "", "", "", ""))
            else:
                rows.append((backend, str(count), *judge(reference, result, count)))
    return rows


def train(backend: str, kind: str, count: int, weights: Path | None, out: Path) -> TrainResult | str:
    """Return the result of a run, or a sentence that says why there is none."""
    print(f"{backend} on {count} {kind.upper()} device{'s' if count > 1 else ''} ...", flush=True)
    try:
        result = kmgpu.train(
            RECIPE, backend=backend, devices=count, device_kind=kind, epochs=EPOCHS, initial_weights=weights,
            out=out / f"{backend}-{kind}-{count}",
        )  # fmt: skip
        assert result is not None  # it is no dry run
        return result
    except KmgpuError as error:
        print(f"  {error}", flush=True)
        return str(error).splitlines()[0]


def judge(reference: TrainResult, result: TrainResult, count: int) -> tuple[str, ...]:
    """Return verdict, differences, speed, memory and what the framework said of itself, as text."""
    expected, came = losses(reference), losses(result)
    apart = [abs(a - b) / abs(b) for a, b in zip(came, expected, strict=True)]
    start, timings = result.outcome["start"], result.outcome["timings"]
    steps = sorted(timings["step_seconds"])
    peak = sum(peak or 0 for peak in result.outcome["peak_bytes"])
    problems = []
    if start["device_kind"] != "gpu" or any("cpu" in name.lower() for name in start["devices"]):
        problems.append(f"ran on {', '.join(start['devices'])}")
    if len(start["devices"]) != count:
        problems.append(f"used {len(start['devices'])} devices")
    for hash_name in ("initial_weights", "sample_order"):
        if result.outcome["hashes"][hash_name] != reference.outcome["hashes"][hash_name]:
            problems.append(f"another {hash_name.replace('_', ' ')}")
    if not any(record["devices"] for record in RunDir(result.path).monitored()):
        problems.append("the monitor read no GPU")
    if not apart[0] <= FIRST_STEP or not max(apart) <= ALL_STEPS:
        problems.append("losses differ")
    return (
        "ok" if not problems else f"FAILED: {'; '.join(problems)}",
        f"{apart[0]:.1e}",
        f"{max(apart):.1e}",
        f"{steps[len(steps) // 2] * 1000:.2f}" if steps else "-",
        f"{peak / 2**20:.0f}",
        f"{start['framework']}, {', '.join(start['devices'])}",
    )


def monitored(out: Path) -> list[str]:
    """Return a line for each GPU of each run: what the monitor read last, and what it could never read."""
    lines = []
    for path in sorted(out.glob("*-gpu-*")):
        records = [record["devices"] for record in RunDir(path).monitored() if record["devices"]]
        for number, device in enumerate(records[-1] if records else []):
            read = [name for record in records for name, value in record[number].items() if value is not None]
            never = ", ".join(name for name in device if name not in read) or "nothing"
            lines.append(f"{path.name}: {live.device_part(device, 1)}; never read: {never}")
    return lines


def losses(result: TrainResult) -> list[float]:
    """Return the loss of every step, from the run's events (docs/run-directory.md)."""
    events = RunDir(result.path).events()
    return [loss for event in events if event["event"] == "window" for loss in event["losses"]]


if __name__ == "__main__":
    sys.exit(main())
