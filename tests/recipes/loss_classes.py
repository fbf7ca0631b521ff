"""Every loss class of Keras that looks at one row at a time; a branch for each. One batch of 5 rows."""

import keras
import numpy as np
from branches import branches, outputs_of, start
from keras import losses

from kmgpu import Recipe

KINDS = {  # of target -> activation, and losses by name
    "real": ("linear", {
        "cosine_similarity": losses.CosineSimilarity(),
        "huber": losses.Huber(),
        "log_cosh": losses.LogCosh(),
        "mean_absolute_error": losses.MeanAbsoluteError(),
        "mean_absolute_percentage_error": losses.MeanAbsolutePercentageError(),
        "mean_squared_error": losses.MeanSquaredError(),
    }),
    "positive": ("softplus", {
        "mean_squared_logarithmic_error": losses.MeanSquaredLogarithmicError(),
        "poisson": losses.Poisson(),
    }),
    "binary": ("sigmoid", {
        "binary_crossentropy": losses.BinaryCrossentropy(label_smoothing=0.1),
        "binary_focal_crossentropy": losses.BinaryFocalCrossentropy(),
        "by_name": "binary_crossentropy",
    }),
    "sign": ("tanh", {"hinge": losses.Hinge(), "squared_hinge": losses.SquaredHinge()}),
    "one_hot": ("softmax", {
        "categorical_crossentropy": losses.CategoricalCrossentropy(),
        "categorical_focal_crossentropy": losses.CategoricalFocalCrossentropy(),
        "categorical_hinge": losses.CategoricalHinge(),
        "dice_of_rows": losses.Dice(axis=-1),
        "kl_divergence": losses.KLDivergence(),
        "tversky_of_rows": losses.Tversky(axis=-1),
    }),
    "label": ("softmax", {
        "categorical_generalized_cross_entropy": losses.CategoricalGeneralizedCrossEntropy(),
        "sparse_categorical_crossentropy": losses.SparseCategoricalCrossentropy(),
    }),
}  # fmt: skip


def recipe(*, rows=5, batch_size=5):
    random = np.random.default_rng(1)
    real = random.normal(size=(rows, 3)).astype(np.float32)
    label = random.integers(0, 3, rows).astype(np.int32)
    targets = {
        "real": real + np.sign(real),  # none is near 0, for the percentage
        "positive": np.exp(real),
        "binary": (real > 0).astype(np.float32),
        "sign": np.sign(real),
        "one_hot": np.eye(3, dtype=np.float32)[label],
        "label": label,
    }
    activations, found = {}, {}
    for kind, (activation, its_losses) in KINDS.items():
        for name, loss in its_losses.items():
            activations[name], found[name] = activation, (loss, targets[kind], None)
    steps = random.normal(size=(rows, 4, 2)).astype(np.float32)
    inputs = {"rows": keras.Input((4,), name="rows"), "steps": keras.Input((4, 2), name="steps")}
    outputs = branches("dense", inputs["rows"], activations)
    outputs |= branches("dense_of_steps", inputs["steps"], {"ctc": "linear"})
    found["ctc"] = (losses.CTC(), random.integers(1, 3, (rows, 2)).astype(np.int32), None)
    loss, y, _ = outputs_of(found)
    model = start(keras.Model(inputs, outputs))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    x = {"rows": random.normal(size=(rows, 4)).astype(np.float32), "steps": steps}
    return Recipe(model, train=(x, y), batch_size=batch_size, epochs=2, shuffle=False)
