"""Losses that look at all rows of a batch, or that may: a branch for each. 10 rows in batches of 5."""

import keras
import numpy as np
from branches import branches, outputs_of, start
from keras import losses, ops

from kmgpu import Recipe


def one_number(y, p):
    return ops.mean(ops.square(y - p))


def of_each_row(y, p):
    return ops.mean(ops.square(y - p), axis=-1)


def contrastive(y, p):
    """Rows of one class are drawn together, others pushed apart; a value for each row, which all rows make."""
    apart = ops.sum(ops.square(p[:, None] - p[None]), axis=-1)
    same = ops.cast(ops.equal(ops.reshape(y, (-1, 1)), ops.reshape(y, (1, -1))), p.dtype)
    return ops.mean(same * apart + (1 - same) * ops.relu(2 - apart), axis=1)


def recipe(*, rows=10, batch_size=5):
    random = np.random.default_rng(1)
    real = random.normal(size=(rows, 3)).astype(np.float32)
    label = np.arange(rows, dtype=np.int32) % 3
    weight = random.uniform(0.2, 2.0, rows).astype(np.float32)
    found = {
        "circle": (losses.Circle(gamma=2.0), label, None),
        "contrastive": (contrastive, label, weight),
        "dice": (losses.Dice(), np.eye(3, dtype=np.float32)[label], None),
        "of_each_row": (of_each_row, real, weight),
        "one_number": (one_number, real, None),
        "tversky": (losses.Tversky(), np.eye(3, dtype=np.float32)[label], None),
    }
    activations = dict.fromkeys(found, "linear") | {"dice": "softmax", "tversky": "softmax"}
    inputs = keras.Input((4,))
    loss, y, weights = outputs_of(found)
    outputs = branches("dense", inputs, activations)
    outputs["circle"] = keras.layers.UnitNormalization()(outputs["circle"])
    model = start(keras.Model(inputs, outputs))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    x = random.normal(size=(rows, 4)).astype(np.float32)
    return Recipe(model, train=(x, y, weights), batch_size=batch_size, shuffle=False)
