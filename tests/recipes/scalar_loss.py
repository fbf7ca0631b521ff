"""R0 with a loss of the user's own that returns one number for the batch."""

import keras
from keras import ops
from r0 import targets

from kmgpu import Recipe


def mean_square(y, p):
    return ops.mean(ops.square(y - p))


def recipe(*, rows=10, batch_size=4):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss=mean_square)
    return Recipe(model, train=targets(rows), validation=targets(rows), batch_size=batch_size, shuffle=False)
