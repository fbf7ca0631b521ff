"""R0 with a dict of two inputs."""

import keras
from r0 import targets

from kmgpu import Recipe


def recipe(*, rows=10, batch_size=4):
    inputs = {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), name="b")}
    joined = keras.layers.Average()([inputs["a"], inputs["b"]])
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(joined))
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")
    x, y = targets(rows)
    return Recipe(model, train=({"a": x, "b": x}, y), batch_size=batch_size, shuffle=False)
