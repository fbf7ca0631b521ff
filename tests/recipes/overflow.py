"""R0 with one row whose gradient is beyond float16 at the first loss scale (32768), and within at half of it."""

import keras
import numpy as np

from kmgpu import Recipe


def recipe(*, target=6.0, epochs=3):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse", auto_scale_loss=False)
    y = np.array([0, 0, 0, target], np.float32)[:, None]
    return Recipe(model, train=(np.ones_like(y), y), batch_size=4, epochs=epochs, shuffle=False)
