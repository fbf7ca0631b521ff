"""A row of weights for each sample, which starts at zero and is moved where dropout keeps it: the masks of training."""

import keras
import numpy as np
from keras import layers

from kmgpu import Recipe


def recipe(*, rows=16, batch_size=8):
    model = keras.Sequential([
        keras.Input((), dtype="int32"),
        layers.Embedding(rows, 64, embeddings_initializer="zeros"),
        layers.Dropout(0.5),
    ])  # fmt: skip
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=keras.losses.MeanSquaredError(reduction="sum"))
    numbers = np.arange(rows, dtype=np.int32)
    return Recipe(
        model, train=(numbers, np.ones((rows, 64), np.float32)), batch_size=batch_size, shuffle=False
    )
