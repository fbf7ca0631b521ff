"""Batch normalisation in three forms, a branch for each: plain, renormalised, and over the valid steps of sequences.

10 rows in batches of 5, two epochs. Of the sequences, rows 3, 4, 8 and 9 have no valid step.
"""

import keras
import numpy as np
from branches import branches, sequences, start
from keras import layers

from kmgpu import Recipe


def recipe(*, rows=10, batch_size=5, batch_norm="global", masked=True):
    random = np.random.default_rng(1)
    inputs = {"rows": keras.Input((4,), name="rows"), "steps": keras.Input((3, 4), name="steps")}
    outputs = branches("dense", inputs["rows"], {"plain": "linear", "renormalised": "linear"})
    outputs["plain"] = layers.BatchNormalization(momentum=0.7, name="plain")(outputs["plain"])
    outputs["renormalised"] = layers.BatchNormalization(
        momentum=0.7, renorm=True, renorm_momentum=0.7, renorm_clipping={"rmax": 3.0, "rmin": 0.3, "dmax": 2.0},
        name="renormalised",
    )(outputs["renormalised"])  # fmt: skip
    valid = layers.Masking(-1.0)(inputs["steps"]) if masked else inputs["steps"]
    outputs["masked"] = layers.BatchNormalization(momentum=0.7, name="masked")(
        branches("dense_of_steps", valid, {"masked": "linear"})["masked"]
    )
    model = start(keras.Model(inputs, outputs))
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=dict.fromkeys(outputs, "mse"))
    x = {
        "rows": random.normal(1.0, 2.0, size=(rows, 4)).astype(np.float32),
        "steps": sequences(random, rows, 3, 4, (3, 4, 8, 9)),
    }
    y = {
        "plain": random.normal(size=(rows, 3)).astype(np.float32),
        "renormalised": random.normal(size=(rows, 3)).astype(np.float32),
        "masked": random.normal(size=(rows, 3, 3)).astype(np.float32),
    }
    return Recipe(
        model, train=(x, y), validation=(x, y), batch_size=batch_size, epochs=2, shuffle=False, batch_norm=batch_norm
    )
