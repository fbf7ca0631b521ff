"""A small smooth network with batch statistics and, if asked for, dropout: what a resumed run must get right."""

import keras
import numpy as np

from kmgpu import Recipe

OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
    "loss_scale": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01), initial_scale=1024.0),
    "accumulating": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=3),
}


def recipe(*, optimizer="adam", dropout=0.0, epochs=3):
    random = np.random.default_rng(0)
    x = random.normal(size=(45, 6)).astype("float32")
    y = np.digitize(x.sum(axis=1), (-1.0, 1.0)).astype("int32")
    layers = [keras.layers.Dense(8, activation="tanh"), keras.layers.BatchNormalization()]
    if dropout:  # seeds that are a function of nothing but the run's
        layers.append(keras.layers.Dropout(dropout))
    layers.append(keras.layers.Dense(3, kernel_initializer=keras.initializers.GlorotUniform(seed=1)))
    layers[0].kernel_initializer = keras.initializers.GlorotUniform(seed=2)
    model = keras.Sequential([keras.Input((6,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=OPTIMIZERS[optimizer](), loss=loss, metrics=["accuracy"])
    return Recipe(model, train=(x, y), validation=(x[:9], y[:9]), batch_size=9, epochs=epochs)  # 5 steps an epoch
