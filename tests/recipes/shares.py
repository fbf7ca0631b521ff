"""What depends on how rows are shared, small enough for eight devices: masks, weights and batch statistics.

20 rows in batches of 10, two epochs. Sequences of the rows 4 to 9 have no valid step.
"""

import keras
import numpy as np
from branches import sequences, start
from keras import layers, losses

from kmgpu import Recipe


def recipe(*, rows=20, batch_size=10):
    random = np.random.default_rng(1)
    row, steps = keras.Input((4,), name="row"), keras.Input((3, 4), name="steps")
    masked = layers.Dense(2, use_bias=False, name="dense_of_steps")(layers.Masking(-1.0)(steps))
    norm = layers.BatchNormalization(momentum=0.7, name="norm")(layers.Dense(2, use_bias=False, name="dense")(row))
    model = start(keras.Model({"row": row, "steps": steps}, {"masked": masked, "norm": norm}))
    model.compile(
        optimizer=keras.optimizers.SGD(0.05, global_clipnorm=1.0),
        loss={"masked": "mse", "norm": losses.MeanSquaredError(reduction="mean_with_sample_weight")},
        metrics={"norm": "mae"},
    )
    x = {
        "row": random.normal(1.0, 2.0, size=(rows, 4)).astype(np.float32),
        "steps": sequences(random, rows, 3, 4, range(4, 10)),
    }
    y = {
        "masked": random.normal(size=(rows, 3, 2)).astype(np.float32),
        "norm": random.normal(size=(rows, 2)).astype(np.float32),
    }
    weights = {"masked": None, "norm": random.uniform(0.2, 2.0, rows).astype(np.float32)}
    return Recipe(model, train=(x, y, weights), batch_size=batch_size, epochs=2, shuffle=False)
