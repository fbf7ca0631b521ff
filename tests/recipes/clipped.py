"""One row for each of two devices, and a gradient of (3, 4) that clipnorm=1 makes (0.6, 0.8): w is (0.6, 0.8)."""

import keras
import numpy as np
from branches import without_bias

from kmgpu import Recipe


def recipe(*, batch_size=2):
    model = keras.Sequential([keras.Input((2,)), without_bias()])
    model.compile(optimizer=keras.optimizers.SGD(1.0, clipnorm=1), loss="mse")
    y = np.array([[3], [4]], np.float32)
    return Recipe(model, train=(np.eye(2, dtype=np.float32), y), batch_size=batch_size, shuffle=False)
