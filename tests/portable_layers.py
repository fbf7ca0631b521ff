"""Every layer of Keras that draws, trained with portable numbers: python portable_layers.py BACKEND OUT.npz

"<layer>" is what it gives for a batch of six rows, "<layer>/shares" what two devices with two and four of them give.
"""

import inspect
import sys

import numpy as np

from kmgpu.backends import common, find

ROWS, SHARES = 6, ((0, 2), (2, 4))
VALUES = {"value_range": (0, 1)}
IMAGE, STEPS, FLAT, VOLUME = (8, 8, 3), (5, 4), (6,), (3, 4, 4, 2)
LAYERS = {  # name of the class -> (arguments, shape of a sample); the seed is given beside
    "Dropout": ({"rate": 0.4}, FLAT),
    "SpatialDropout1D": ({"rate": 0.4}, STEPS),
    "SpatialDropout2D": ({"rate": 0.4}, IMAGE),
    "SpatialDropout3D": ({"rate": 0.4}, VOLUME),
    "AlphaDropout": ({"rate": 0.4}, FLAT),
    "GaussianDropout": ({"rate": 0.4}, FLAT),
    "GaussianNoise": ({"stddev": 0.4}, FLAT),
    "Attention": ({"dropout": 0.4}, STEPS),
    "AdditiveAttention": ({"dropout": 0.4}, STEPS),
    "MultiHeadAttention": ({"num_heads": 2, "key_dim": 3, "dropout": 0.4}, STEPS),
    "GroupQueryAttention": (
        {"head_dim": 3, "num_query_heads": 4, "num_key_value_heads": 2, "dropout": 0.4}, STEPS,
    ),
    "LSTM": ({"units": 3, "dropout": 0.3, "recurrent_dropout": 0.3}, STEPS),
    "GRU": ({"units": 3, "dropout": 0.3, "recurrent_dropout": 0.3}, STEPS),
    "SimpleRNN": ({"units": 3, "dropout": 0.3, "recurrent_dropout": 0.3}, STEPS),
    "ConvLSTM1D": ({"filters": 2, "kernel_size": 2, "dropout": 0.3, "recurrent_dropout": 0.3}, (3, 4, 2)),
    "ConvLSTM2D": ({"filters": 2, "kernel_size": 2, "dropout": 0.3, "recurrent_dropout": 0.3}, (3, 4, 4, 2)),
    "ConvLSTM3D": ({"filters": 2, "kernel_size": 2, "dropout": 0.3, "recurrent_dropout": 0.3}, (2, 3, 3, 3, 2)),
    "CutMix": ({}, IMAGE),
    "MixUp": ({}, IMAGE),
    "RandAugment": (VALUES, IMAGE),
    "RandomBrightness": ({"factor": 0.3, **VALUES}, IMAGE),
    "RandomColorDegeneration": ({"factor": 0.5, **VALUES}, IMAGE),
    "RandomColorJitter": (
        {"brightness_factor": 0.2, "contrast_factor": 0.2, "saturation_factor": 0.2, "hue_factor": 0.2, **VALUES},
        IMAGE,
    ),
    "RandomContrast": ({"factor": 0.3, **VALUES}, IMAGE),
    "RandomCrop": ({"height": 5, "width": 6}, IMAGE),
    "RandomErasing": ({"factor": 0.8, **VALUES}, IMAGE),
    "RandomFlip": ({}, IMAGE),
    "RandomGaussianBlur": ({"factor": 0.8, **VALUES}, IMAGE),
    "RandomGrayscale": ({"factor": 0.5}, IMAGE),
    "RandomHue": ({"factor": 0.3, **VALUES}, IMAGE),
    "RandomInvert": ({"factor": 0.5, **VALUES}, IMAGE),
    "RandomPerspective": ({"factor": 0.8}, IMAGE),
    "RandomPosterization": ({"factor": 4, **VALUES}, IMAGE),
    "RandomRotation": ({"factor": 0.2}, IMAGE),
    "RandomSaturation": ({"factor": 0.4, **VALUES}, IMAGE),
    "RandomSharpness": ({"factor": 0.5, **VALUES}, IMAGE),
    "RandomShear": ({"x_factor": 0.3, "y_factor": 0.3}, IMAGE),
    "RandomTranslation": ({"height_factor": 0.3, "width_factor": 0.3}, IMAGE),
    "RandomZoom": ({"height_factor": 0.3, "width_factor": 0.3}, IMAGE),
    "Solarization": ({"threshold_factor": (0.2, 0.8), **VALUES}, IMAGE),
}
SAME_NAME = {"GroupedQueryAttention": "GroupQueryAttention"}
OTHERS = {"JaxLayer"}  # hands a seed to a function of the user's, which draws with jax.random, on JAX and TensorFlow
CELLS = {"LSTMCell", "GRUCell", "SimpleRNNCell"}  # what the layers above are made of
NOT_ALIKE = {"RandAugment"}  # its draws are the same, and what it makes of them differs between torch and TensorFlow
COUPLED = {"CutMix", "MixUp"}  # they mix the rows of a batch, so a device alone cannot compute its own


def drawing_layers(layers):
    """Return the names of Keras's layers that take a seed, among other things to initialise weights."""
    found = {}
    for name, cls in vars(layers).items():
        if inspect.isclass(cls) and "seed" in inspect.signature(cls.__init__).parameters:
            found[cls.__name__] = name
    return set(found)


def main(backend, out):
    import importlib

    keras = common.import_keras(backend)
    randomness = importlib.import_module("kmgpu.backends.common.randomness")
    importlib.import_module("kmgpu.backends.replacements").install(float64=False)
    randomness.set_randomness(importlib.import_module(find(backend).words))
    keras.utils.set_random_seed(0)
    found, failed = {"layers": np.array(sorted(drawing_layers(keras.layers)))}, {}
    for number, (name, (arguments, shape)) in enumerate(LAYERS.items()):
        try:
            found |= {f"{name}{way}": value for way, value in both(keras, randomness, name, arguments, shape, number)}
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"[:300]
    np.savez(out, **found, failed=np.array([f"{name}: {why}" for name, why in failed.items()]))


def both(keras, randomness, name, arguments, shape, number):
    layer = getattr(keras.layers, name)(**arguments, seed=number)
    inputs = keras.Input(shape)
    calls = {"Attention": 2, "AdditiveAttention": 2}.get(name, 1)
    if calls == 2:
        outputs = layer([inputs, inputs], training=True)
    elif "MultiHead" in name or "Group" in name:
        outputs = layer(inputs, inputs, training=True)
    else:
        outputs = layer(inputs, training=True)
    model = keras.Model(inputs, outputs)
    random = np.random.default_rng(0)
    weights = [random.normal(size=weight.shape).astype("float32") * 0.5 for weight in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value)
    x = np.random.default_rng(1).uniform(size=(ROWS, *shape)).astype("float32")
    randomness.learn_draws(model, x)
    states = [common.to_numpy(variable.value) for variable in model.non_trainable_variables]

    def step(rows, here):
        for variable, value in zip(model.non_trainable_variables, states, strict=True):
            variable.assign(value)
        call = compiled(keras, model)
        groups = (model.trainable_variables, model.non_trainable_variables)
        values, others = ([variable.value for variable in group] for group in groups)
        with common.use(here):
            for _ in range(2):  # the second step draws other numbers
                outputs, others = call(values, others, keras.ops.convert_to_tensor(x[rows]))
        return common.to_numpy(outputs)

    whole = step(slice(0, ROWS), common.Sharding(rows=ROWS, size=ROWS, update=ROWS))
    parts = [
        step(slice(first, first + rows), common.Sharding(2, index, first, rows, ROWS, ROWS))
        for index, (first, rows) in enumerate(SHARES)
    ]
    return [("", whole), ("/shares", np.concatenate(parts))]


def compiled(keras, model):
    """Return the step as a function of weights, states and rows; on JAX compiled in one piece."""

    def call(values, others, rows):
        return model.stateless_call(values, others, rows, training=True)

    if keras.backend.backend() != "jax":
        return call
    import jax

    return jax.jit(call)


if __name__ == "__main__":
    main(*sys.argv[1:])
