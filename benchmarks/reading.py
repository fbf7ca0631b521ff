"""How much of a run waits for its data: rows that take time to read, by threads; and digits_cnn, whose rows are there.

    python benchmarks/reading.py [--backends torch,tensorflow,jax] [--results FILE]

Each row of the first recipe takes 2 ms to come, as from a disk or a network, and none of the processor. The training
step beside it is small. Prints and keeps, for each backend and number of threads, the samples per second and the part
of the time in which the step waited.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also where kmgpu is not installed

import kmgpu

WORKERS = (1, 2, 4, 8, 16)
SLOW = '''
import time

import keras
import numpy as np
from kmgpu import Recipe


class Slow:
    def __len__(self):
        return 512

    def __getitem__(self, index):
        time.sleep(0.002)
        return np.full((16, 16, 3), index / 512, "float32"), index % 10


def recipe():
    layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Recipe(model, train=Slow(), batch_size=32, epochs=2)
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="torch,tensorflow,jax")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="kmgpu-reading-") as name:
        recipe = Path(name, "slow.py")
        recipe.write_text(SLOW)
        for backend in arguments.backends.split(","):
            for workers in WORKERS:
                rows.append(measured(backend, recipe, workers, Path(name)))
            rows.append(measured(backend, "digits_cnn", 1, Path(name), epochs=5))
    if arguments.results is not None:
        kept = json.loads(arguments.results.read_text()) if arguments.results.exists() else []
        backends = {row["backend"] for row in rows}
        arguments.results.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in kept if row["backend"] not in backends]
        arguments.results.write_text(json.dumps(kept + rows, indent=1) + "\n")
    return 0


def measured(backend: str, recipe: str | Path, workers: int, folder: Path, **wish: int) -> dict:
    out = folder / f"{backend}-{Path(recipe).stem}-{workers}"
    result = kmgpu.train(recipe, backend=backend, device_kind="cpu", workers=workers, out=out, **wish)
    assert result is not None
    times = result.outcome["timings"]
    row = {
        "backend": backend, "recipe": Path(recipe).stem, "workers": workers,
        "samples_per_second": round(times["steady_samples"] / times["steady_seconds"], 1),
        "waits": round(times["waiting_seconds"] / times["steady_seconds"], 4),
    }  # fmt: skip
    print(row, flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
