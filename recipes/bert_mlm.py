"""BERT as a masked language model: words hidden in a text are found from both sides.

Devlin et al., https://arxiv.org/abs/1810.04805. The text is Python's own language reference, which comes with Python;
one word is one token.
"""

from typing import Literal

import keras
import numpy as np
from keras import layers

from kmgpu import Recipe
from kmgpu.data.texts import encode, python_docs, vocabulary, words

SIZES = {  # the first one for trials, the others as in https://arxiv.org/abs/1908.08962 and in the paper
    "tiny": {"depth": 2, "width": 64, "heads": 4, "length": 32, "words": 1000, "epochs": 6},
    "mini": {"depth": 4, "width": 256, "heads": 4, "length": 128, "words": 5000, "epochs": 20},
    "base": {"depth": 12, "width": 768, "heads": 12, "length": 512, "words": 30522, "epochs": 40},
}
HIDDEN = 2  # the number of the token that hides a word


class Positions(layers.Layer):
    """Adds a trained vector for each place in the sequence."""

    def build(self, shape):
        self.table = self.add_weight(shape=shape[1:], initializer=keras.initializers.TruncatedNormal(stddev=0.02))

    def call(self, x):
        return x + self.table


def block(x, heads, dropout):
    """One layer of the encoder, normalised after each part, as in the paper."""
    width, initial = x.shape[-1], keras.initializers.TruncatedNormal(stddev=0.02)
    y = layers.MultiHeadAttention(heads, width // heads, dropout=dropout, kernel_initializer=initial)(x, x)
    x = layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, layers.Dropout(dropout)(y)]))
    y = layers.Dense(4 * width, activation="gelu", kernel_initializer=initial)(x)
    y = layers.Dense(width, kernel_initializer=initial)(y)
    return layers.LayerNormalization(epsilon=1e-12)(layers.Add()([x, layers.Dropout(dropout)(y)]))


class Masked:
    """Rows of (tokens with 15 % hidden, tokens, 1 where one is to be found); a row hides the same words in each epoch.

    Of the chosen tokens 80 % are hidden, 10 % replaced by any word and 10 % left, as in the paper.
    """

    def __init__(self, tokens, known, seed):
        self.tokens, self.known, self.seed = tokens, known, seed

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        random = np.random.default_rng([self.seed, index])
        y = self.tokens[index]
        chosen = random.random(y.shape) < 0.15
        chosen[random.integers(len(y))] = True  # one at least
        what = random.random(y.shape)
        x = np.where(chosen & (what < 0.8), HIDDEN, y)
        x = np.where(chosen & (what >= 0.9), random.integers(HIDDEN + 1, self.known, y.shape), x)
        return x.astype("int32"), y, chosen.astype("float32")


def encoder(tokens, preset, dropout):
    """Return what the encoder gives for each token, and the table of its embeddings."""
    table = layers.ReversibleEmbedding(
        preset["words"], preset["width"], embeddings_initializer=keras.initializers.TruncatedNormal(stddev=0.02)
    )
    x = layers.Dropout(dropout)(layers.LayerNormalization(epsilon=1e-12)(Positions()(table(tokens))))
    for _ in range(preset["depth"]):
        x = block(x, preset["heads"], dropout)
    return x, table


def recipe(
    *,
    size: Literal["tiny", "mini", "base"] = "tiny",
    dropout=0.1,
    batch_size=64,
    epochs=None,
    learning_rate=3e-3,
):
    preset = SIZES[size]
    length, width = preset["length"], preset["width"]
    tokens = keras.Input((length,), dtype="int32")
    x, table = encoder(tokens, preset, dropout)
    x = layers.LayerNormalization(epsilon=1e-12)(layers.Dense(width, activation="gelu")(x))
    model = keras.Model(tokens, table(x, reverse=True))
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=0.01, clipnorm=1.0),
        # the mean over the words to be found, however many a row has
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
        weighted_metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
    )
    known = vocabulary(words(python_docs("train")), preset["words"] - 1)
    known = {word: number + 1 for word, number in known.items()}  # 0: padding, 1: unknown, 2: hidden

    def rows(split, seed):
        text = words(python_docs(split))
        parts = [text[start : start + length] for start in range(0, len(text) - length + 1, length)]
        return Masked(encode(parts, known, length), preset["words"], seed)

    return Recipe(
        model,
        train=rows("train", 0),
        validation=rows("test", 1),
        batch_size=batch_size,
        epochs=epochs or preset["epochs"],
    )
