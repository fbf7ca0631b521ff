"""Layers that draw, a branch for each: dropout of many kinds, noise, image layers, stochastic depth, sampling.

A batch of 5 rows. With ``slow``, which XLA compiles for long, an LSTM and image layers too. Smooth all through, so
that rounding stays rounding.
"""

import keras
import numpy as np
from keras import layers, ops

from kmgpu import Recipe


class StochasticDepth(layers.Layer):
    """Leaves out its input for whole samples."""

    def __init__(self, rate, **options):
        super().__init__(**options)
        self.rate, self.seed_generator = rate, keras.random.SeedGenerator(5)

    def call(self, x, training=False):
        if not training:
            return x
        kept = keras.random.uniform((ops.shape(x)[0], 1), seed=self.seed_generator) < 1 - self.rate
        return x * ops.cast(kept, x.dtype) / (1 - self.rate)


class Sample(layers.Layer):
    """A normal sample around a mean, and its KL penalty (a variational autoencoder's middle)."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(6)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        self.add_loss(-0.01 * ops.mean(ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=-1)))
        return mean + ops.exp(0.5 * log_variance) * noise


class NoisyWeights(layers.Layer):
    """Adds to its weights a noise that no sample has for itself; the weights have as many rows as a small batch."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(7)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3), initializer="glorot_uniform", name="kernel")

    def call(self, x, training=False):
        noise = keras.random.normal(self.kernel.shape, stddev=0.1, seed=self.seed_generator) if training else 0.0
        return ops.matmul(x, self.kernel + noise)


def recipe(*, rows=5, batch_size=5, accumulate=1, slow=False):
    random = np.random.default_rng(1)
    inputs = {"x": keras.Input((4,), name="x"), "image": keras.Input((6, 6, 2), name="image")}
    x = layers.Dense(6, activation="tanh")(inputs["x"])
    steps = layers.Reshape((3, 2))(x)
    branches = [
        layers.Dropout(0.4, seed=1)(x),
        layers.Dropout(0.4)(x),
        layers.Dropout(0.4, noise_shape=(None, 1, 2), seed=2)(steps),
        layers.Dropout(0.4, noise_shape=(1, 3, 2), seed=3)(steps),
        layers.SpatialDropout1D(0.4, seed=4)(steps),
        layers.GaussianNoise(0.3, seed=5)(x),
        layers.GaussianDropout(0.3, seed=6)(x),
        layers.AlphaDropout(0.3, seed=7)(x),
        layers.MultiHeadAttention(2, 3, dropout=0.3, seed=9)(steps, steps),
        StochasticDepth(0.4)(x),
        Sample()([layers.Dense(3)(x), layers.Dense(3)(x)]),
        NoisyWeights()(x),
    ]
    if slow:
        branches.append(layers.LSTM(3, dropout=0.3, recurrent_dropout=0.2, seed=8)(steps))
        image = layers.RandomFlip(seed=10)(inputs["image"])
        image = layers.RandomTranslation(0.2, 0.2, seed=11)(image)
        image = layers.RandomRotation(0.1, seed=12)(image)
        branches.append(layers.Conv2D(2, 3, activation="tanh")(image))
    else:
        branches.append(layers.Conv2D(2, 3, activation="tanh")(inputs["image"]))
    model = keras.Model(inputs, layers.Dense(2)(layers.Concatenate()([layers.Flatten()(b) for b in branches])))
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss="mse", metrics=["mae"])
    data = {
        "x": random.normal(size=(rows, 4)).astype(np.float32),
        "image": random.normal(size=(rows, 6, 6, 2)).astype(np.float32),
    }
    y = random.normal(size=(rows, 2)).astype(np.float32)
    return Recipe(
        model, train=(data, y), validation=(data, y), batch_size=batch_size, epochs=2, shuffle=False,
        accumulate=accumulate,
    )
