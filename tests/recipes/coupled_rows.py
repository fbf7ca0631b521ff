"""A layer that looks at all rows of a batch, or one whose state depends on them: shares of a batch cannot do that.

5 rows and a batch of them.
"""

import keras
import numpy as np
from branches import start
from keras import layers, ops

from kmgpu import Recipe


class LessTheMean(layers.Layer):
    """Each row less the mean of all."""

    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


class RemembersLargest(layers.Layer):
    """Divides by the largest number that it has seen."""

    def build(self, shape):
        self.largest = self.add_weight(shape=(), initializer="ones", trainable=False, name="largest")

    def call(self, x, training=False):
        if training:
            self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(x))))
        return x / self.largest


def recipe(*, kind="rows", rows=5, batch_size=5):
    layer = {"rows": LessTheMean, "state": RemembersLargest}[kind]
    random = np.random.default_rng(1)
    model = start(keras.Sequential([keras.Input((4,)), layer(), layers.Dense(2)]))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    x = 3 * random.normal(size=(rows, 4)).astype(np.float32)
    y = random.normal(size=(rows, 2)).astype(np.float32)
    return Recipe(model, train=(x, y), validation=(x[:3], y[:3]), batch_size=batch_size, epochs=2, shuffle=False)
