"""Draws docs/one-mask.svg: one dropout mask on three frameworks, with portable numbers and with each one's own.

python benchmarks/one_mask.py docs/one-mask.svg
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

BACKENDS = ("torch", "tensorflow", "jax")
ROWS, COLUMNS, RATE = 8, 24, 0.5
CELL, GAP, LEFT, TOP = 10, 24, 12, 44
KEPT, DROPPED, INK = "#1f77b4", "#e8eef4", "#222"
PROGRAM = f"""
import sys, keras, kmgpu, numpy as np
ones = np.ones(({ROWS}, {COLUMNS}), "float32")
def mask():
    return keras.ops.convert_to_numpy(keras.layers.Dropout({RATE}, seed=1)(ones, training=True)) != 0
native = mask()
with kmgpu.random.portable():
    portable = mask()
np.savez(sys.argv[1], native=native, portable=portable)
"""


def main(out):
    drawn = {}
    with tempfile.TemporaryDirectory() as folder:
        for backend in BACKENDS:
            path = Path(folder) / f"{backend}.npz"
            environment = {**os.environ, "KERAS_BACKEND": backend}
            subprocess.run([sys.executable, "-c", PROGRAM, str(path)], check=True, env=environment)
            with np.load(path) as arrays:
                drawn[backend] = dict(arrays)
    Path(out).write_text(picture(drawn), encoding="utf-8")
    same = all(np.array_equal(drawn[name]["portable"], drawn["jax"]["portable"]) for name in BACKENDS)
    kept = {name: int(drawn[name]["portable"].sum()) for name in BACKENDS}
    print(f"portable masks are {'equal' if same else 'NOT EQUAL'}; kept of {ROWS * COLUMNS}: {kept}")


def picture(drawn):
    wide, high = COLUMNS * CELL, ROWS * CELL
    width = 2 * LEFT + 3 * wide + 2 * GAP
    height = 2 * (TOP + high) + 28
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    rows = (("portable", "kmgpu.random.portable(): the same mask"), ("native", "each framework's own numbers"))
    for line, (kind, title) in enumerate(rows):
        top = TOP + line * (TOP + high)
        parts.append(f'<text x="{LEFT}" y="{top - 24}" font-size="14" fill="{INK}">{title}</text>')
        for column, backend in enumerate(BACKENDS):
            left = LEFT + column * (wide + GAP)
            parts.append(f'<text x="{left}" y="{top - 7}" font-size="12" fill="{INK}">{backend}</text>')
            for (row, place), kept in np.ndenumerate(drawn[backend][kind]):
                x, y = left + place * CELL, top + row * CELL
                colour = KEPT if kept else DROPPED
                parts.append(f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"/>')
    said = f"Dropout({RATE}, seed=1) of a batch of {ROWS} rows and {COLUMNS} features; blue is kept."
    parts.append(f'<text x="{LEFT}" y="{height - 8}" font-size="12" fill="{INK}">{said}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    main(*sys.argv[1:])
