"""Layers with more than weights, a branch for each: penalties, shared, frozen, state of their own, repeated tokens.

A list of three inputs, a list of outputs. 10 rows in batches of 5.
"""

import keras
import numpy as np
from branches import start
from keras import layers, ops

from kmgpu import Recipe


class AddsMean(layers.Layer):
    """Adds a mean over the rows as a loss."""

    def call(self, x):
        self.add_loss(0.3 * ops.mean(ops.square(x)))
        return x


class Counts(layers.Layer):
    """Adds to its output how often it was called in training."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x, training=False):
        if training:
            self.calls.assign(self.calls + 1)
        return x + 0.1 * self.calls


def recipe(*, rows=10, batch_size=5):
    random = np.random.default_rng(1)
    x, ids, twice = keras.Input((4,)), keras.Input((4,), dtype="int32"), keras.Input((4,))

    def dense(name, **options):
        return layers.Dense(3, use_bias=False, name=name, **options)

    shared = dense("shared")
    words = layers.Embedding(6, 3, mask_zero=True, name="masked_tokens")(ids)
    frozen = dense("frozen", trainable=False, kernel_initializer=keras.initializers.Constant(0.5))
    outputs = [
        dense("penalised", kernel_regularizer=keras.regularizers.L1L2(0.02, 0.1))(x),
        dense("activity", activity_regularizer=keras.regularizers.L2(0.1))(x),
        AddsMean()(dense("added")(x)),
        layers.Add()([shared(x), shared(twice)]),
        frozen(layers.Dense(2, name="before_frozen", activation="tanh")(x)),
        layers.GlobalAveragePooling1D()(words),
        layers.Flatten()(layers.Embedding(6, 1, name="tokens")(ids))[:, :3],
        Counts()(dense("counted")(x)),
        layers.SpectralNormalization(dense("normalised"))(x),
        dense("constrained", kernel_constraint=keras.constraints.MaxNorm(0.5))(x),
        layers.LayerNormalization(name="layer_norm")(dense("before_norm")(x)),
    ]
    model = start(keras.Model([x, ids, twice], outputs))
    model.get_layer("spectral_normalization").vector_u.assign(np.array([[0.5, -0.3, 0.8]], np.float32))  # is drawn else
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=["mse"] * len(outputs))
    tokens = [
        [1, 1, 2, 0], [3, 1, 1, 1], [5, 0, 0, 0], [4, 0, 0, 0], [2, 2, 2, 2], [1, 4, 4, 0], [1, 2, 3, 4], [5, 5, 0, 0],
        [1, 1, 1, 0], [3, 0, 0, 0],
    ]  # fmt: skip
    first, last = (random.normal(size=(rows, 4)).astype(np.float32) for _ in range(2))
    y = [random.normal(size=(rows, 3)).astype(np.float32) for _ in outputs]
    ids = np.array(tokens[:rows])
    return Recipe(model, train=([first, ids, last], y), batch_size=batch_size, epochs=2, shuffle=False)
