"""Texts told apart by a transformer encoder, with masks for what is padding.

Which of eight packages of Python's standard library a docstring is from; the texts come with Python.

Measured on JAX, seed 0, on 2 cores of a busy server: `tiny` tells 86 % of the held-out docstrings right after 4 epochs
and 39 seconds; always naming the most frequent package is right for 18 %.
"""

from typing import Literal

import keras
from keras import layers

from kmgpu import Recipe
from kmgpu.data.texts import PACKAGES, encode, python_docstrings, vocabulary, words

SIZES = {
    "tiny": {"depth": 1, "width": 64, "heads": 4, "epochs": 4},
    "base": {"depth": 4, "width": 256, "heads": 8, "epochs": 10},
}


class Positions(layers.Layer):
    """Adds a trained vector for each place in the sequence."""

    def __init__(self, **options):
        super().__init__(**options)
        self.supports_masking = True

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer=keras.initializers.RandomNormal(stddev=0.02))

    def call(self, x):
        return x + self.table


def block(x, heads, dropout):
    """One layer of a transformer encoder, normalised before each part (https://arxiv.org/abs/2002.04745)."""
    width = x.shape[-1]
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y)
    x = layers.Add()([x, layers.Dropout(dropout)(y)])
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * width, activation="gelu")(y)
    y = layers.Dense(width)(y)
    return layers.Add()([x, layers.Dropout(dropout)(y)])


def recipe(
    *,
    size: Literal["tiny", "base"] = "tiny",
    words_known=2000,
    length=64,
    dropout=0.1,
    batch_size=32,
    epochs=None,
    learning_rate=1e-3,
):
    preset = SIZES[size]
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words_known, preset["width"], mask_zero=True)(tokens)
    x = layers.Dropout(dropout)(Positions()(x))
    for _ in range(preset["depth"]):
        x = block(x, preset["heads"], dropout)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))  # over words, not over padding
    model = keras.Model(tokens, layers.Dense(len(PACKAGES))(x))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    def data(split):
        known = vocabulary((word for text in python_docstrings("train")[0] for word in words(text)), words_known)
        texts, labels = python_docstrings(split)
        return encode(map(words, texts), known, length), labels

    return Recipe(
        model,
        train=data("train"),
        validation=data("test"),
        batch_size=batch_size,
        epochs=epochs or preset["epochs"],
    )
