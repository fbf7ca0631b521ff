"""R0 out of what cannot be pickled: a lambda as loss, a layer class made in a function; each import is counted."""

import os

os.environ["KERAS_BACKEND"] = "torch"  # the habit of many files; the run's own choice must win

import keras
from keras import ops
from r0 import targets

from kmgpu import Recipe

if os.environ.get("COUNT_FILE"):
    with open(os.environ["COUNT_FILE"], "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")


def local_layer():
    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.kernel = self.add_weight(shape=(1,), initializer="zeros", name="kernel")

        def call(self, x):
            return x * self.kernel

    return Scale()


def recipe(*, rows=8, batch_size=4):
    model = keras.Sequential([keras.Input((1,)), local_layer()])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss=lambda y, p: ops.square(y - p))
    return Recipe(model, train=targets(rows), batch_size=batch_size, shuffle=False)
