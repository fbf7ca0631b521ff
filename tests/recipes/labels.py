"""R0 with targets of shape (rows,) and (rows, 1), and the same classes as numbers and one-hot; steps_per_execution=4.

10 rows in batches of 4, so an epoch has fewer batches than an execution has steps. Both end at 5.8125.
"""

import keras
import numpy as np
from branches import without_bias
from keras import layers, losses
from r0 import targets

from kmgpu import Recipe


def recipe(*, rows=10, batch_size=4):
    inputs = keras.Input((1,))
    three = np.linspace(-1, 1, 3, dtype=np.float32)[None]
    outputs = {
        "flat": without_bias(name="flat")(inputs),
        "column": without_bias(name="column")(inputs),
        "weighted": without_bias(name="weighted")(inputs),
        **{
            name: layers.Dense(3, use_bias=False, kernel_initializer=keras.initializers.Constant(three), name=name)(
                inputs
            )
            for name in ("number", "one_hot")
        },
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.SGD(0.25),
        loss={
            "flat": "mse",
            "column": "mse",
            "weighted": "mse",
            "number": losses.SparseCategoricalCrossentropy(from_logits=True),
            "one_hot": losses.CategoricalCrossentropy(from_logits=True),
        },
        metrics={"number": "accuracy", "one_hot": "accuracy"},
        weighted_metrics={"column": "mae", "weighted": "mae"},
        steps_per_execution=4,
    )
    x, y = targets(rows)
    number = np.arange(rows, dtype=np.int32) % 3
    weight = 1 + np.arange(rows, dtype=np.float32) % 2
    weights = {"flat": None, "column": None, "weighted": weight, "number": None, "one_hot": None}
    y = {"flat": y[:, 0], "column": y, "weighted": y, "number": number, "one_hot": np.eye(3, dtype=np.float32)[number]}
    return Recipe(model, train=(x, y, weights), batch_size=batch_size, shuffle=False)
