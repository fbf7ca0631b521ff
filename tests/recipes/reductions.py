"""One loss with every reduction, with weights of samples and of steps, and with masks; a branch for each.

10 rows in batches of 5. Of the sequences, rows 3 to 9 have no valid step: in the first batch one of two devices
has none, in the second one nobody has.
"""

import keras
import numpy as np
from branches import branches, outputs_of, sequences, start
from keras import losses

from kmgpu import Recipe

STEPS, FEATURES = 3, 4


def recipe(*, rows=10, batch_size=5, none="none"):
    """``none`` is the reduction of the branch of this name, which Keras's own fit refuses on most backends."""
    random = np.random.default_rng(1)
    weight = random.uniform(0.2, 2.0, rows).astype(np.float32)
    of_steps = random.uniform(0.2, 2.0, (rows, STEPS)).astype(np.float32)
    real = random.normal(size=(rows, 3)).astype(np.float32)
    steps = random.normal(size=(rows, STEPS, 3)).astype(np.float32)
    x = {
        "rows": random.normal(size=(rows, FEATURES)).astype(np.float32),
        "steps": sequences(random, rows, STEPS, FEATURES, range(3, rows)),
    }

    def loss(reduction):
        return losses.MeanSquaredError(reduction=reduction)

    of_rows = {
        "mean": (loss("mean"), real, None),
        "mean_with_sample_weight": (loss("mean_with_sample_weight"), real, weight),
        "none": (loss(none), real, None),
        "sum": (loss("sum"), real, None),
        "sum_over_batch_size": (loss("sum_over_batch_size"), real, None),
        "sum_weighted": (loss("sum"), real, weight),
        "weighted": (loss("sum_over_batch_size"), real, weight),
    }
    of_masked = {
        "masked": (loss("sum_over_batch_size"), steps, None),
        "masked_mean_with_sample_weight": (loss("mean_with_sample_weight"), steps, of_steps),
        "masked_sum": (loss("sum"), steps, None),
        "masked_weighted": (loss("sum_over_batch_size"), steps, np.repeat(weight[:, None], STEPS, axis=1)),
        "masked_weighted_steps": (loss("sum_over_batch_size"), steps, of_steps),
    }
    inputs = {"rows": keras.Input((FEATURES,), name="rows"), "steps": keras.Input((STEPS, FEATURES), name="steps")}
    outputs = branches("dense", inputs["rows"], dict.fromkeys(of_rows, "linear"))
    outputs |= branches("masked", keras.layers.Masking(-1.0)(inputs["steps"]), dict.fromkeys(of_masked, "linear"))
    losses_of, y, weights = outputs_of(of_rows | of_masked)
    model = start(keras.Model(inputs, outputs))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=losses_of)
    return Recipe(model, train=(x, y, weights), batch_size=batch_size, shuffle=False)
