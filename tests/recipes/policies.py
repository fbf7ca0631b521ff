"""A small convolutional network with BatchNorm, under whatever policies of a recipe, and plain SGD."""

import keras
from conv import images
from keras import layers

from kmgpu import Recipe


class Centred(layers.Layer):
    """Couples the rows of a batch: subtracts their mean."""

    def call(self, x):
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def recipe(
    *, rows=45, batch_size=12, epochs=2, learning_rate=0.1, batch_norm="global", gradient_reduction="mean",
    accumulate=1, normalise=True, coupled=False,
):  # fmt: skip
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, activation="tanh"),
        *([layers.BatchNormalization(momentum=0.8)] if normalise else []),
        *([Centred()] if coupled else []),
        layers.Flatten(),
        layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.01)),
    ])  # fmt: skip
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return Recipe(
        model,
        train=images(rows, 1),
        validation=images(11, 2),
        batch_size=batch_size,
        epochs=epochs,
        accumulate=accumulate,
        batch_norm=batch_norm,
        gradient_reduction=gradient_reduction,
    )
