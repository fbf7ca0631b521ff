"""A layer adds the sum over the rows of its squares as a loss: w 0.92 and loss 0.4 after one step of SGD(0.1)."""

import keras
import numpy as np
from branches import without_bias
from keras import layers, ops

from kmgpu import Recipe


class AddsSum(layers.Layer):
    def call(self, x):
        self.add_loss(0.1 * ops.sum(ops.square(x)))
        return x


def recipe(*, rows=4, batch_size=4):
    model = keras.Sequential([keras.Input((1,)), without_bias(kernel_initializer="ones"), AddsSum()])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    ones = np.ones((rows, 1), np.float32)
    return Recipe(model, train=(ones, ones), batch_size=batch_size, shuffle=False)
