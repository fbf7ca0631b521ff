"""A subclassed model with weights that its call does not use, and a layer that keeps a feature in a list.

Targets are 1: w is 0.36 after two steps of SGD(0.1). ``unused`` and ``frozen`` keep what they had.
"""

import keras
import numpy as np
from branches import without_bias
from keras import layers

from kmgpu import Recipe


class Remembers(layers.Layer):
    """Called twice in a step: keeps a feature in a list, and takes it out again; another device's is wrong."""

    def __init__(self):
        super().__init__()
        self.kept = []

    def call(self, feature, output=None):
        if output is None:
            self.kept.append(feature)
            return feature
        assert len(self.kept) == 1, f"the list has {len(self.kept)} entries"
        return output + 100 * (self.kept.pop() - feature)


class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.used, self.unused = without_bias(name="used"), without_bias(name="unused", kernel_initializer="ones")
        self.frozen = without_bias(name="frozen", kernel_initializer="ones", trainable=False)
        self.remembers = Remembers()
        self.unused.build((None, 1))

    def call(self, x):
        number = x[:, 1:]
        self.remembers(number)
        return self.remembers(number, self.used(self.frozen(x[:, :1])))


def recipe(*, rows=8, batch_size=4):
    model = Model()
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    ones = np.ones((rows, 1), np.float32)
    x = np.concatenate([ones, np.arange(rows, dtype=np.float32)[:, None]], axis=1)
    return Recipe(model, train=(x, ones), batch_size=batch_size, shuffle=False)
