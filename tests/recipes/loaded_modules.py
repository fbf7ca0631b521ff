"""R0 whose data write down, at their last row, which packages the process has loaded."""

import os
import sys

import keras
import numpy as np

from kmgpu import Recipe


class Spy:
    def __init__(self, rows, folder):
        self.rows, self.folder = rows, folder

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index == self.rows - 1:
            names = sorted({name.partition(".")[0] for name in sys.modules} | {n for n in sys.modules if "kmgpu" in n})
            with open(f"{self.folder}/modules-{os.getpid()}.txt", "w", encoding="utf-8") as file:
                file.write("\n".join(names))
        return np.ones(1, np.float32), np.array([index], np.float32)


def recipe(*, folder="", rows=8, batch_size=4):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")
    return Recipe(model, train=Spy(rows, folder), validation=Spy(1, folder), batch_size=batch_size, shuffle=False)
