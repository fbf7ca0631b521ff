"""Images cut into patches and read by a transformer.

Dosovitskiy et al., https://arxiv.org/abs/2010.11929; `full` has the sizes of DeiT-Ti (https://arxiv.org/abs/2012.12877)
on CIFAR-10, `tiny` reads the 1,797 real 8x8 digits that ship with scikit-learn.

Measured on JAX, seed 0, on 2 cores of a busy server: `tiny` reads 95.6 % of the held-out digits after 20 epochs and 38
seconds.
"""

from typing import Literal

import keras
from keras import layers

from kmgpu import Recipe
from kmgpu.data.datasets import digits, keras_images

SIZES = {
    "tiny": {"side": 8, "channels": 1, "patch": 2, "depth": 2, "width": 48, "heads": 4, "epochs": 20},
    "full": {"side": 32, "channels": 3, "patch": 4, "depth": 12, "width": 192, "heads": 3, "epochs": 100},
}


class Positions(layers.Layer):
    """Adds a trained vector for each place in the image."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer=keras.initializers.TruncatedNormal(stddev=0.02))

    def call(self, x):
        return x + self.table


def block(x, heads, dropout):
    """One layer of the encoder."""
    width = x.shape[-1]
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y)
    x = layers.Add()([x, layers.Dropout(dropout)(y)])
    y = layers.LayerNormalization(epsilon=1e-6)(x)
    y = layers.Dense(4 * width, activation="gelu")(y)
    y = layers.Dense(width)(y)
    return layers.Add()([x, layers.Dropout(dropout)(y)])


def recipe(*, size: Literal["tiny", "full"] = "tiny", dropout=0.0, batch_size=64, epochs=None, learning_rate=1e-3):
    preset = SIZES[size]
    side, channels, patch = preset["side"], preset["channels"], preset["patch"]
    inputs = keras.Input((side, side, channels))
    x = layers.Conv2D(preset["width"], patch, strides=patch)(inputs)  # each patch on its own
    x = layers.Reshape(((side // patch) ** 2, preset["width"]))(x)
    x = layers.Dropout(dropout)(Positions()(x))
    for _ in range(preset["depth"]):
        x = block(x, preset["heads"], dropout)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization(epsilon=1e-6)(x))
    model = keras.Model(inputs, layers.Dense(10)(x))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def data(split):
        return digits(split) if size == "tiny" else keras_images("cifar10", split)

    return Recipe(
        model,
        train=data("train"),
        validation=data("test"),
        batch_size=batch_size,
        epochs=epochs or preset["epochs"],
    )
