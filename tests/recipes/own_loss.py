"""R0 with a ``compute_loss`` of the model's own, in which the weight is penalised: w moves by 0.25 * (2 mean - 3 w)."""

import keras
from branches import without_bias
from keras import ops
from r0 import targets

from kmgpu import Recipe


class Penalised(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.5 * ops.sum(ops.square(self.trainable_variables[0]))


def recipe(*, rows=10, batch_size=4, accumulate=1):
    inputs = keras.Input((1,))
    model = Penalised(inputs, without_bias()(inputs))
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")
    return Recipe(
        model, train=targets(rows), validation=targets(7), batch_size=batch_size, shuffle=False, accumulate=accumulate
    )
