"""Dropout that is always on, over rows of ones: what comes out is the mask of each row."""

import keras
import numpy as np
from keras import layers

from kmgpu import Recipe


class AlwaysDrops(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return keras.random.dropout(x, 0.5, seed=self.seeds)


def recipe(*, rows=8, batch_size=8):
    model = keras.Sequential([keras.Input((64,)), AlwaysDrops(), layers.Dense(64, kernel_initializer="identity")])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    ones = np.ones((rows, 64), np.float32)
    return Recipe(model, train=(ones, ones), batch_size=batch_size, shuffle=False)
