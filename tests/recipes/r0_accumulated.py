"""R0 in batches of 2 with an optimizer that updates after two of them, as it would in batches of 4."""

import keras
from branches import without_bias
from r0 import targets

from kmgpu import Recipe


def recipe(*, rows=8, batch_size=2):
    model = keras.Sequential([keras.Input((1,)), without_bias()])
    model.compile(optimizer=keras.optimizers.SGD(0.25, gradient_accumulation_steps=2), loss="mse")
    return Recipe(model, train=targets(rows), batch_size=batch_size, shuffle=False)
