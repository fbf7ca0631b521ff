"""An update of 14 rows, or of the last 10, in ``accumulate`` pieces: what divides a loss is counted over all of them.

Sequences of rows 0 to 4 and 19 to 21 have no valid step: pieces without any.
"""

import keras
import numpy as np
from branches import branches, outputs_of, sequences, start
from keras import layers, losses

from kmgpu import Recipe


def recipe(*, accumulate=3, rows=24, batch_size=14):
    random = np.random.default_rng(1)
    inputs = {"rows": keras.Input((4,), name="rows"), "steps": keras.Input((3, 4), name="steps")}
    real = random.normal(size=(rows, 3)).astype(np.float32)
    steps = random.normal(size=(rows, 3, 3)).astype(np.float32)
    weight = random.uniform(0.2, 2.0, rows).astype(np.float32)
    weighted_mean = losses.MeanSquaredError(reduction="mean_with_sample_weight")
    found = {
        "masked": ("mse", steps, None),
        "plain": ("mse", real, weight),
        "weighted": (weighted_mean, real, weight),
    }
    outputs = branches("dense", inputs["rows"], {"plain": "linear", "weighted": "linear"})
    outputs |= branches("dense_of_steps", layers.Masking(-1.0)(inputs["steps"]), {"masked": "linear"})
    loss, y, weights = outputs_of(found)
    model = start(keras.Model(inputs, outputs))
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, decay_steps=1, decay_rate=0.5)
    model.compile(
        optimizer=keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=1.0), loss=loss,
        weighted_metrics={"weighted": "mae"},
    )  # fmt: skip
    x = {
        "rows": random.normal(size=(rows, 4)).astype(np.float32),
        "steps": sequences(random, rows, 3, 4, (0, 1, 2, 3, 4, 19, 20, 21)),
    }
    return Recipe(
        model, train=(x, y, weights), batch_size=batch_size, epochs=1, shuffle=False, accumulate=accumulate
    )
