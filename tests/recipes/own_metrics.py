"""Metrics of the user's own: one whose state is no sum, a function that looks at all rows, one that a layer keeps.

10 rows in batches of 5.
"""

import keras
import numpy as np
from branches import start
from keras import layers, ops

from kmgpu import Recipe


class Largest(keras.metrics.Metric):
    """The largest error of all rows."""

    def __init__(self, **options):
        super().__init__(**options)
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")

    def update_state(self, y, p, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.max(ops.abs(y - p))))

    def result(self):
        return self.largest


def spread(y, p):
    """The distance of the smallest and the largest output of a batch."""
    return ops.max(p) - ops.min(p)


class Watches(layers.Layer):
    """Keeps the sum and the mean of its inputs in metrics, or the largest of them."""

    def __init__(self, kept, **options):
        super().__init__(**options)
        if kept == "maximum":
            self.watching = [Largest(name="watched_maximum")]
        else:
            self.watching = [keras.metrics.Mean(name="watched_mean"), keras.metrics.Sum(name="watched_sum")]

    def call(self, x):
        for metric in self.watching:
            metric.update_state(*((x, 0 * x) if isinstance(metric, Largest) else (x,)))
        return x


def recipe(*, rows=10, batch_size=5, kept=""):
    """Two outputs with two losses; with ``kept`` ("sums" or "maximum") a layer keeps metrics too."""
    random = np.random.default_rng(1)
    inputs = keras.Input((4,))
    x = Watches(kept)(inputs) if kept else inputs
    outputs = {name: layers.Dense(2, name=name)(x) for name in ("a", "b")}
    model = start(keras.Model(inputs, outputs))
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss={"a": "mse", "b": "mae"},
        metrics={"a": [Largest(name="largest"), spread], "b": ["mae"]},
    )
    y = {name: random.normal(size=(rows, 2)).astype(np.float32) for name in outputs}
    data = random.normal(size=(rows, 4)).astype(np.float32), y
    return Recipe(model, train=data, validation=data, batch_size=batch_size, shuffle=False)
