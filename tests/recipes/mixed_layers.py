"""Convolution with stride 2, batch normalisation, an embedding, layer normalisation and an LSTM."""

import keras
import numpy as np
from keras import layers

from kmgpu import Recipe


def recipe(*, rows=8, batch_size=5):
    random = np.random.default_rng(1)
    image, words = keras.Input((7, 7, 2), name="image"), keras.Input((6,), dtype="int32", name="words")
    x = layers.Conv2D(3, 3, strides=2, padding="same", activation="relu")(image)
    x = layers.BatchNormalization()(x)
    seen = layers.Reshape((16, 3))(x)
    read = layers.Embedding(9, 3, mask_zero=True)(words)
    read = layers.LSTM(4, return_sequences=True)(layers.LayerNormalization()(read))
    model = keras.Model(
        {"image": image, "words": words},
        {"last": layers.Dense(2)(layers.LSTM(3)(seen)), "read": layers.Dense(2, "softmax")(read)},
    )
    for variable in model.weights:
        if variable.dtype == "float32":
            values = random.normal(scale=0.5, size=tuple(variable.shape)).astype(np.float32)
            variable.assign(np.abs(values) if "variance" in variable.path else values)
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=dict.fromkeys(("last", "read"), "mse"))
    x = {
        "image": random.normal(size=(rows, 7, 7, 2)).astype(np.float32),
        "words": np.sort(random.integers(0, 9, (rows, 6)), axis=1)[:, ::-1].astype(np.int32),
    }
    y = {"last": np.zeros((rows, 2), np.float32), "read": np.zeros((rows, 6, 2), np.float32)}
    return Recipe(model, train=(x, y), batch_size=batch_size, shuffle=False)
