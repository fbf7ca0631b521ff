"""R0 with a layer that makes constants in its call, with Keras and with torch itself."""

import keras
from r0 import targets

from kmgpu import Recipe

if keras.backend.backend() == "torch":
    import torch


class Constants(keras.layers.Layer):
    """Gives its input, by way of constants."""

    def call(self, x):
        one = keras.ops.cast(keras.ops.sum(keras.ops.arange(2)), x.dtype)
        if keras.backend.backend() == "torch":
            one = one * torch.tensor([1.0], device=x.device)
        return x * one


def recipe(*, rows=8, batch_size=4):
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), Constants(), dense])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")
    return Recipe(model, train=targets(rows), batch_size=batch_size, shuffle=False)
