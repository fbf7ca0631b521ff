"""Models in which it is hard to see that rows of a batch matter to each other, one for each ``kind``.

10 rows in batches of 5, or 4 rows over and over.
"""

import keras
import numpy as np
from branches import start
from keras import layers, ops

from kmgpu import Recipe

ROWS, BATCH = 10, 5


class Centred(layers.Layer):
    """Each row less a part of the mean of all."""

    def __init__(self, part=1.0, only_backward=False, **options):
        super().__init__(**options)
        self.part, self.only_backward = part, only_backward

    def call(self, x):
        mean = self.part * ops.mean(x, axis=0, keepdims=True)
        return x - (mean - ops.stop_gradient(mean) if self.only_backward else mean)


class CentredLater(layers.Layer):
    """Each row less the mean of all, from its 11th step on."""

    def build(self, shape):
        self.step = self.add_weight(shape=(), initializer="zeros", trainable=False, name="step")

    def call(self, x, training=False):
        if training:
            self.step.assign(self.step + 1)
        return x - ops.where(self.step > 10, 1.0, 0.0) * ops.mean(x, axis=0, keepdims=True)


class Annealed(layers.Layer):
    """Adds a sum over the rows as a loss, with a weight that begins at zero and grows."""

    def build(self, shape):
        self.weight = self.add_weight(shape=(), initializer="zeros", trainable=False, name="weight")

    def call(self, x, training=False):
        self.add_loss(self.weight * 1.0 * ops.sum(ops.square(x)))  # torch wants to keep what it multiplies with
        if training:
            self.weight.assign(self.weight + 0.05)
        return x


class Running(layers.Layer):
    """Divides by a slow moving average, as it was before the batch."""

    def build(self, shape):
        self.scale = self.add_weight(
            shape=(shape[-1],), initializer="ones", trainable=False, name="scale", aggregation="mean"
        )

    def call(self, x, training=False):
        outputs = x / (self.scale * 1.0)  # torch wants to keep what it divides by
        if training:
            self.scale.assign(0.99 * self.scale + 0.01 * ops.mean(ops.square(x), axis=0))
        return outputs


class CountsRows(layers.Layer):
    """Multiplies by a number that grows with the rows; TensorFlow is told to add it up over replicas."""

    def build(self, shape):
        self.rows = self.add_weight(shape=(), initializer="ones", trainable=False, name="rows", aggregation="sum")

    def call(self, x, training=False):
        if training:
            self.rows.assign_add(0.1 * x.shape[0])
        return x * self.rows


@ops.custom_gradient
def clipped(x):
    """The input; what comes back through it is clipped."""

    def gradient(*upstream, **named):
        return ops.clip(named.get("upstream", upstream[-1] if upstream else None), -0.02, 0.02)

    return x * 1.0, gradient


class Clipped(layers.Layer):
    def call(self, x):
        return clipped(x)


def recipe(*, kind="", accumulate=1):
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(ROWS, width)).astype(np.float32) for width in (4, 3))
    inputs = keras.Input((4,))
    hidden = layers.Dense(4, activation="tanh")(inputs)
    loss, metrics, epochs = "mse", ["mae"], 2
    if kind == "only in a metric":
        outputs = {"a": layers.Dense(3, name="a")(hidden), "b": Centred(name="b")(layers.Dense(3)(hidden))}
        y, loss, metrics = {"a": y, "b": y}, {"a": "mse"}, {"b": ["mae"]}
    elif kind == "no axis but the rows":
        outputs, y, metrics = ops.squeeze(layers.Dense(1)(hidden), axis=-1), y[:, 0], ["mae", "mse"]
    elif kind == "over the rows":
        outputs, metrics = layers.Dense(3)(hidden), [keras.metrics.CosineSimilarity(axis=0, name="similarity")]
    elif kind == "made for a batch":
        inputs = keras.Input(batch_shape=(BATCH, 4))
        outputs = layers.Dense(3)(ops.reshape(ops.reshape(inputs, (4, BATCH)), (BATCH, 4)))
    else:
        layer = {
            "equal rows": Centred(0.5), "weakly": Centred(0.002, only_backward=True), "later": CentredLater(),
            "annealed": Annealed(), "running": Running(), "counts rows": CountsRows(), "clipped": Clipped(),
            "nothing": layers.Identity(),
        }[kind]  # fmt: skip
        outputs = layers.Dense(3)(layer(hidden))
    if kind == "equal rows":
        x[:BATCH] = x[0]
    if kind == "later":
        epochs = 10
    if kind == "clipped":
        outputs = layers.Dense(3)(Clipped()(Centred()(hidden)))
    model = start(keras.Model(inputs, outputs))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, metrics=metrics)
    batch_size = 4 if kind == "nothing" else BATCH  # 4, 4 and 2 rows
    return Recipe(
        model, train=(x, y), validation=(x, y), batch_size=batch_size, epochs=epochs, shuffle=False,
        accumulate=accumulate,
    )  # fmt: skip
