"""Convolution, batch normalisation and a dense layer on random images, two epochs, evaluated on the same images."""

import keras
import numpy as np
from branches import start
from keras import layers

from kmgpu import Recipe


def images(rows):
    random = np.random.default_rng(5)
    return random.normal(size=(rows, 8, 8, 1)).astype(np.float32), random.integers(0, 3, rows).astype(np.int32)


def recipe(*, rows=32, batch_size=16):
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(3, 3, activation="tanh"),
        layers.BatchNormalization(),
        layers.Flatten(),
        layers.Dense(3),
    ])  # fmt: skip
    start(model)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return Recipe(model, train=images(rows), validation=images(rows), batch_size=batch_size, epochs=2)
