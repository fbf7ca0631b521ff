"""Optimizers, each with a weight of its own: every class of Keras, and what all of them can do to a gradient.

10 rows in batches of 5, two epochs: four updates.
"""

import keras
import numpy as np
from branches import start
from keras import layers, optimizers

from kmgpu import Recipe


class Several(optimizers.MultiOptimizer):
    """One that tells a learning rate, the first one's."""

    learning_rate = property(lambda self: self.optimizers[0].learning_rate)


def recipe(*, rows=10, batch_size=5):
    rate = optimizers.schedules.ExponentialDecay(0.1, decay_steps=1, decay_rate=0.5)
    by_name = {
        "adadelta": optimizers.Adadelta(1.0),
        "adafactor": optimizers.Adafactor(0.1),
        "adagrad": optimizers.Adagrad(0.1),
        "adam": optimizers.Adam(0.1),
        "adamax": optimizers.Adamax(0.1),
        "adamw": optimizers.AdamW(0.1, weight_decay=0.1),
        "amsgrad": optimizers.Adam(0.1, amsgrad=True),
        "ftrl": optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
        "lamb": optimizers.Lamb(0.1),
        "lion": optimizers.Lion(0.1),
        "muon": optimizers.Muon(0.1),
        "nadam": optimizers.Nadam(0.1),
        "rmsprop": optimizers.RMSprop(0.1, centered=True, momentum=0.9),
        "schedule_free": optimizers.ScheduleFreeAdamW(0.1),
        "sgd": optimizers.SGD(0.1),
        "nesterov": optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "clipvalue": optimizers.SGD(0.1, clipvalue=0.05),
        "clipnorm": optimizers.SGD(0.1, clipnorm=0.1),
        "global_clipnorm": optimizers.SGD(0.1, global_clipnorm=0.1),
        "weight_decay": optimizers.SGD(0.1, weight_decay=0.1),
        "ema": optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7),
        "ema_overwrites": optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2),
        "schedule": optimizers.SGD(rate),
        "accumulates": optimizers.Adam(0.1, gradient_accumulation_steps=2),
    }
    random = np.random.default_rng(1)
    inputs = keras.Input((3,))
    denses = [layers.Dense(2, use_bias=name == "global_clipnorm", name=name)(inputs) for name in by_name]
    model = start(keras.Model(inputs, layers.Concatenate()(denses)))
    choice = {f"{name}/.*": optimizer for name, optimizer in by_name.items()}
    model.compile(
        optimizer=Several(optimizers.OptimizerMap(optimizers.SGD(0.1), choice)),
        loss=keras.losses.MeanSquaredError(reduction="sum"),
    )
    x = random.normal(size=(rows, 3)).astype(np.float32)
    y = np.tile(10 * random.normal(size=(rows, 2)), len(by_name)).astype(np.float32)
    return Recipe(model, train=(x, y), batch_size=batch_size, epochs=2, shuffle=False)
