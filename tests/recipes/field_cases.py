"""Cases of bug reports that are exact for one batch of four rows and SGD(0.1), a branch for each.

masked: two of four sequences have no valid step, w 0.2, loss 1. penalised: L2(0.1) of a weight of one, w 0.98, penalty
0.1. a, b: two losses with weights of their own and samples of their own, w 0.1 each, losses 0.5 and 1.
"""

import keras
import numpy as np
from branches import without_bias
from keras import layers

from kmgpu import Recipe


def recipe(*, batch_size=4):
    ones = np.ones((4, 1), np.float32)
    sequences = np.ones((4, 2, 1), np.float32)
    sequences[2:] = -1.0
    row, zero, steps = keras.Input((1,), name="row"), keras.Input((1,), name="zero"), keras.Input((2, 1), name="steps")
    outputs = {
        "masked": without_bias(name="masked")(layers.Masking(-1.0)(steps)),
        "penalised": without_bias(
            name="penalised", kernel_initializer="ones", kernel_regularizer=keras.regularizers.L2(0.1)
        )(zero),
        "a": without_bias(name="a")(row),
        "b": without_bias(name="b")(row),
    }
    model = keras.Model({"row": row, "zero": zero, "steps": steps}, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss={"masked": "mse", "penalised": "mse", "a": "mse", "b": "mae"},
        loss_weights={"masked": 1.0, "penalised": 1.0, "a": 1.0, "b": 2.0},
    )
    y = {"masked": np.ones((4, 2, 1), np.float32), "penalised": 0 * ones, "a": ones, "b": 2 * ones}
    first = np.array([1, 1, 0, 0], np.float32)
    weights = {"masked": None, "penalised": None, "a": first, "b": 1 - first}
    x = {"row": ones, "zero": 0 * ones, "steps": sequences}
    return Recipe(model, train=(x, y, weights), batch_size=batch_size, shuffle=False)
