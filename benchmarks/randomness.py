"""What portable randomness costs in whole steps of a recipe, on each backend.

python benchmarks/randomness.py [--recipe FILE] [--backends LIST] [--devices N] [--repeats R] [--steps N]

Each run is a fresh process; native and portable alternate, and every other repeat begins with the other one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import kmgpu
from kmgpu.backends import BACKENDS
from kmgpu.report import runs
from kmgpu.report.statistics import step_seconds

KINDS = ("native", "portable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default=str(Path(__file__).with_name("transformer.py")))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    asked = parser.parse_args()
    print(f"{'backend':12}{'repeat':>7}{'native ms':>12}{'portable ms':>13}{'portable / native':>19}", flush=True)
    for backend in asked.backends.split(","):
        ratios = []
        for repeat in range(asked.repeats):
            found = {kind: measured(asked, backend, kind) for kind in KINDS[:: 1 if repeat % 2 == 0 else -1]}
            ratios.append(found["portable"] / found["native"])
            times = f"{found['native'] * 1000:12.2f}{found['portable'] * 1000:13.2f}"
            print(f"{backend:12}{repeat + 1:7}{times}{ratios[-1]:19.3f}", flush=True)
        print(f"{backend:12}{'median':>7}{'':25}{statistics.median(ratios):19.3f}", flush=True)


def measured(asked: argparse.Namespace, backend: str, kind: str) -> float:
    """Return the median seconds of a steady step of one run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        kmgpu.train(
            asked.recipe, backend=backend, devices=asked.devices, randomness=kind, max_steps=asked.steps,
            checkpoint_every="never", out=str(out), show=lambda line: None,
        )  # fmt: skip
        seconds = step_seconds(runs.load(out))
    assert seconds is not None, "no window without a compilation; ask for more --steps"
    return seconds


if __name__ == "__main__":
    main()
