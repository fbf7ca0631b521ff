"""Two layers with Keras's default initial weights, which each framework draws differently from one seed."""

import keras
import numpy as np

from kmgpu import Recipe


def recipe(*, batch_size=8, epochs=1, learning_rate=0.1):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(learning_rate), loss="mse")
    random = np.random.default_rng(0)
    x, y = random.normal(size=(8, 4)).astype(np.float32), random.normal(size=(8, 1)).astype(np.float32)
    return Recipe(model, train=(x, y), batch_size=batch_size, epochs=epochs)
