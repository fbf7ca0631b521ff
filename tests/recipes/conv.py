"""A small convolutional network on made-up images; with smooth layers, or with the kinks of ReLU and max pooling."""

import contextlib

import keras
import numpy as np
from keras import layers

from kmgpu import Recipe


def images(rows, seed):
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, 8, 8, 1)).astype(np.float32), random.integers(0, 3, rows).astype(np.int32)


def recipe(*, rows=45, validation_rows=11, batch_size=12, epochs=5, steps=None, smooth=True, remat=False):
    activation, pooling = ("tanh", layers.AveragePooling2D) if smooth else ("relu", layers.MaxPooling2D)
    with keras.RematScope(mode="full") if remat else contextlib.nullcontext():
        hidden = [
            layers.Conv2D(4, 3, padding="same", activation=activation),
            pooling(2),
            layers.Conv2D(6, 3, activation=activation),
            layers.Flatten(),
            layers.Dense(3),
        ]
    model = keras.Sequential([keras.Input((8, 8, 1)), *hidden])
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return Recipe(
        model,
        train=images(rows, 1),
        validation=images(validation_rows, 2),
        batch_size=batch_size,
        epochs=epochs,
        steps_per_epoch=steps,
    )
