"""MNIST with a small convolutional network.

60,000 real 28x28 images, 10,000 more to validate. Keras downloads them once (11 MB); they are held once per host.
The model is the one of https://keras.io/examples/vision/mnist_convnet/, with logits instead of a softmax and
without its dropout, so that every framework computes the same.
"""

import keras
from keras import layers

from kmgpu import Recipe
from kmgpu.data.datasets import mnist


def recipe(*, batch_size=128, epochs=5, learning_rate=1e-3):
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return Recipe(
        model,
        train=mnist("train"),
        validation=mnist("test"),
        batch_size=batch_size,
        epochs=epochs,
    )
