"""A small transformer with dropout after the embedding, on attention, and after each half of a block; for timing."""

import keras
import numpy as np
from keras import layers, ops

from kmgpu import Recipe


class Tokens(layers.Layer):
    """Embeddings of tokens and of their places."""

    def __init__(self, words, length, width, **options):
        super().__init__(**options)
        self.words, self.places = layers.Embedding(words, width), layers.Embedding(length, width)

    def build(self, shape):
        self.words.build(shape)
        self.places.build((shape[1],))

    def call(self, tokens):
        return self.words(tokens) + self.places(ops.arange(tokens.shape[1]))


def recipe(
    *, blocks=2, width=128, heads=4, length=64, words=256, dropout=0.1, rows=1280, batch_size=32, epochs=2,
):  # fmt: skip
    tokens = keras.Input((length,), dtype="int32")
    x = layers.Dropout(dropout)(Tokens(words, length, width)(tokens))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout)(y, y, use_causal_mask=True)
        x = x + layers.Dropout(dropout)(y)
        y = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dropout(dropout)(layers.Dense(width)(y))
    model = keras.Model(tokens, layers.Dense(words)(layers.LayerNormalization()(x)))
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3), loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    random = np.random.default_rng(0)
    data = random.integers(words, size=(rows, length + 1)).astype("int32")
    return Recipe(model, train=(data[:, :-1], data[:, 1:]), batch_size=batch_size, epochs=epochs)
