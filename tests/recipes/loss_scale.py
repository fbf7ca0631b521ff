"""A loss that is scaled by 2**15: in the second of three batches the scaled gradient of row 7 alone is infinite.

That update is left out. The gradient of the others is 1, the clipped one 0.5: w is 0.1 after two steps of SGD(0.1).
"""

import keras
import numpy as np
from branches import without_bias

from kmgpu import Recipe


def recipe(*, rows=10, batch_size=4):
    model = keras.Sequential([keras.Input((1,)), without_bias()])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, global_clipnorm=0.5))
    model.compile(optimizer=optimizer, loss="mae")
    x = np.ones((rows, 1), np.float32)
    x[7] = 1e36
    return Recipe(model, train=(x, np.full((rows, 1), 1e37, np.float32)), batch_size=batch_size, shuffle=False)
