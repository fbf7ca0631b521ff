"""For recipes of several small models in one, so that a fault of one feature shows in its own weights.

Where it can be, all of them are columns of one dense layer: what TensorFlow traces grows with variables times devices.
"""

import keras
import numpy as np
from keras import layers

WIDTH = 3  # columns of a branch


class Columns(layers.Layer):
    """The columns of one branch; a mask goes along."""

    def __init__(self, number, **options):
        super().__init__(**options)
        self.number, self.supports_masking = number, True

    def call(self, inputs):
        return inputs[..., WIDTH * self.number : WIDTH * (self.number + 1)]


def branches(name, inputs, activations):
    """Return an output for each name of ``activations``; branch i, in the order of names, is columns 3i to 3i + 2."""
    joined = layers.Dense(WIDTH * len(activations), use_bias=False, name=name)(inputs)
    return {
        branch: layers.Activation(activations[branch])(Columns(number)(joined))
        for number, branch in enumerate(sorted(activations))
    }


def start(model, seed=0):
    """Give the trainable weights of a built model values of the test's own, the same on every backend."""
    random = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        variable.assign(random.normal(scale=0.4, size=tuple(variable.shape)).astype(np.float32))
    return model


def outputs_of(found):
    """Return losses, targets and weights by name from ``found``, which has them in triples."""
    return tuple({name: triple[place] for name, triple in found.items()} for place in range(3))


def sequences(random, rows, steps, features, empty_rows):
    """Sequences of 1 to ``steps`` valid steps, the rest of them -1; the rows named have no valid step."""
    values = random.normal(size=(rows, steps, features)).astype(np.float32)
    lengths = random.integers(1, steps + 1, rows)
    lengths[[row for row in empty_rows if row < rows]] = 0
    values[np.arange(steps) >= lengths[:, None]] = -1.0
    return values


def without_bias(**options):
    """A dense layer of one weight for each input, from zeros unless told otherwise."""
    return layers.Dense(1, use_bias=False, **{"kernel_initializer": "zeros", **options})


__all__ = ["branches", "keras", "outputs_of", "sequences", "start", "without_bias"]
