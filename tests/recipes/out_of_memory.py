"""R0 whose seventh row, of the second process's share of the second step, does not fit into memory."""

import resource

import keras
import numpy as np

from kmgpu import Recipe


class Rows:
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 6:
            {"raised": raised, "host": host, "framework": framework}[self.how]()
        return np.ones(1, np.float32), np.full(1, index, np.float32)


def raised():
    raise MemoryError("no room for row 6")


def host():
    limit = 2**34
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    np.ones(limit, np.uint8)


def framework():
    keras.ops.ones((2**40,))


def recipe(*, how="raised"):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")
    return Recipe(model, train=Rows(how), batch_size=4, shuffle=False)
