"""R0 whose model is built when the file is imported, not in the function."""

import keras
from r0 import targets

from kmgpu import Recipe

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")


def recipe(*, rows=8, batch_size=4):
    return Recipe(model, train=targets(rows), batch_size=batch_size, shuffle=False)
