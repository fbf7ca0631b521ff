"""Models that draw while they train: which one is a setting. Smooth all through, so that rounding stays rounding."""

import keras
import numpy as np
from keras import layers, ops

from kmgpu import Recipe


class StochasticDepth(layers.Layer):
    """Leaves out its input for whole samples."""

    def __init__(self, rate, seed, **options):
        super().__init__(**options)
        self.rate, self.seed_generator = rate, keras.random.SeedGenerator(seed)

    def call(self, x, training=False):
        if not training:
            return x
        kept = keras.random.uniform((ops.shape(x)[0], 1), seed=self.seed_generator) < 1 - self.rate
        return x * ops.cast(kept, x.dtype) / (1 - self.rate)


class Sample(layers.Layer):
    """A normal sample around a mean, and its KL penalty."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seed_generator = keras.random.SeedGenerator(6)

    def call(self, inputs):
        mean, log_variance = inputs
        self.add_loss(-0.01 * ops.mean(ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=-1)))
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seed_generator)


class SampledInLoss(keras.Model):
    """A variational autoencoder that samples in its loss."""

    def __init__(self, **options):
        super().__init__(**options)
        self.encoder = layers.Dense(8, activation="tanh")
        self.mean, self.log_variance, self.decoder = layers.Dense(3), layers.Dense(3), layers.Dense(6)
        self.seed_generator = keras.random.SeedGenerator(8)

    def build(self, shape):
        self.encoder.build(shape)
        self.mean.build((None, 8))
        self.log_variance.build((None, 8))
        self.decoder.build((None, 3))

    def call(self, x):
        hidden = self.encoder(x)
        return ops.concatenate([self.mean(hidden), self.log_variance(hidden)], axis=-1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        mean, log_variance = y_pred[:, :3], y_pred[:, 3:]
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator) if training else 0.0
        decoded = self.decoder(mean + ops.exp(0.5 * log_variance) * noise)
        penalty = ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=-1)
        return ops.mean(ops.mean(ops.square(decoded - y), axis=-1) - 0.01 * penalty)


def dropout_mlp():
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, activation="tanh"),
            layers.Dropout(0.4),
            layers.Dense(16, activation="tanh"),
            layers.AlphaDropout(0.2, seed=2),
            layers.Dense(2),
        ]
    )


def noise_and_depth():
    x = inputs = keras.Input((6,))
    x = layers.Dense(8, activation="tanh")(layers.GaussianNoise(0.2)(x))
    for number in range(2):
        x = x + StochasticDepth(0.4, seed=number)(layers.Dense(8, activation="tanh")(x))
    return keras.Model(inputs, layers.Dense(2)(layers.GaussianDropout(0.2)(x)))


def augmented_cnn(mixed=False):
    x = inputs = keras.Input((8, 8, 3))
    x = layers.RandomFlip(seed=1)(x)
    x = layers.RandomRotation(0.1, seed=2)(x)
    x = layers.RandomCrop(7, 7, seed=3)(x)
    x = layers.MixUp(seed=4)(x) if mixed else x
    x = layers.Conv2D(4, 3, activation="tanh")(x)
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def vae():
    inputs = keras.Input((6,))
    x = layers.Dense(8, activation="tanh")(inputs)
    return keras.Model(inputs, layers.Dense(6)(Sample()([layers.Dense(3)(x), layers.Dense(3)(x)])))


MODELS = {
    "dropout_mlp": dropout_mlp, "noise_and_depth": noise_and_depth, "augmented_cnn": augmented_cnn, "vae": vae,
    "vae_in_loss": SampledInLoss, "mixed_cnn": lambda: augmented_cnn(mixed=True),
}  # fmt: skip


def recipe(*, model="dropout_mlp", batch_size=10):
    random = np.random.default_rng(1)
    shape = (8, 8, 3) if model.endswith("cnn") else (6,)
    x = random.normal(size=(33, *shape)).astype("float32")
    y = x if model.startswith("vae") else random.normal(size=(33, 2)).astype("float32")
    made = MODELS[model]()
    made.compile(optimizer=keras.optimizers.SGD(0.05), loss=None if model == "vae_in_loss" else "mse")
    return Recipe(made, train=(x, y), batch_size=batch_size, epochs=2)
