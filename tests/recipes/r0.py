"""One weight, ones as inputs, 0..rows-1 as targets: what plain SGD makes of it can be worked out by hand.

Each step moves w by half of (mean of the batch's targets - w), at a learning rate of 0.25.
"""

import keras
import numpy as np

from kmgpu import Recipe


def targets(rows, first=0):
    return np.ones((rows, 1), np.float32), np.arange(first, first + rows, dtype=np.float32)[:, None]


def recipe(
    *,
    rows=8,
    first=0,
    batch_size=4,
    epochs=1,
    learning_rate=0.25,
    optimizer="SGD",
    validation_rows=0,
    decay=0.0,
    bad_row=None,
    callback=None,
    steps_per_execution=1,
):
    x, y = targets(rows, first)
    if bad_row is not None:
        y[bad_row] = np.nan
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    if decay:
        learning_rate = keras.optimizers.schedules.ExponentialDecay(learning_rate, 1, decay)
    made = getattr(keras.optimizers, optimizer)(learning_rate)
    model.compile(optimizer=made, loss="mse", steps_per_execution=steps_per_execution)
    return Recipe(
        model,
        train=(x, y),
        validation=targets(validation_rows) if validation_rows else None,
        batch_size=batch_size,
        epochs=epochs,
        shuffle=False,
        callbacks=[getattr(keras.callbacks, callback)()] if callback else [],
    )
