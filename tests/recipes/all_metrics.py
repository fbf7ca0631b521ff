"""Every metric class of Keras, by what it looks at; 10 rows in batches of 5, rows weighted for some."""

import keras
import numpy as np
from branches import branches, start
from keras import metrics

from kmgpu import Recipe

FEW = {"num_thresholds": 9}


def recipe(*, rows=10, batch_size=5):
    by_output = {
        "real": [
            metrics.ConcordanceCorrelation(), metrics.CosineSimilarity(), metrics.LogCoshError(),
            metrics.MeanAbsoluteError(), metrics.MeanAbsolutePercentageError(), metrics.MeanSquaredError(),
            metrics.PearsonCorrelation(), metrics.R2Score(), metrics.RootMeanSquaredError(),
        ],
        "positive": [metrics.Accuracy(), metrics.MeanSquaredLogarithmicError(), metrics.Poisson()],
        "binary": [
            metrics.AUC(**FEW), metrics.AUC(curve="PR", multi_label=True, num_labels=3, name="auc_of_each", **FEW),
            metrics.BinaryAccuracy(), metrics.BinaryCrossentropy(), metrics.BinaryIoU(), metrics.F1Score(threshold=0.5),
            metrics.FalseNegatives(), metrics.FalsePositives(), metrics.FBetaScore(beta=2.0, average="macro"),
            metrics.Precision(), metrics.PrecisionAtRecall(0.5, **FEW), metrics.Recall(top_k=1),
            metrics.RecallAtPrecision(0.5, **FEW), metrics.SensitivityAtSpecificity(0.5, **FEW),
            metrics.SpecificityAtSensitivity(0.5, **FEW), metrics.TrueNegatives(), metrics.TruePositives(),
        ],
        "sign": [metrics.Hinge(), metrics.SquaredHinge()],
        "one_hot": [
            metrics.CategoricalAccuracy(), metrics.CategoricalCrossentropy(), metrics.CategoricalHinge(),
            metrics.KLDivergence(), metrics.OneHotIoU(3, [0, 2]), metrics.OneHotMeanIoU(3),
            metrics.TopKCategoricalAccuracy(2),
        ],
        "label": [
            metrics.IoU(3, [0, 1], sparse_y_pred=False), metrics.MeanIoU(3, sparse_y_pred=False),
            metrics.MeanMetricWrapper(keras.losses.sparse_categorical_crossentropy, name="wrapped"),
            metrics.SparseCategoricalAccuracy(), metrics.SparseCategoricalCrossentropy(),
            metrics.SparseTopKCategoricalAccuracy(2),
        ],
    }  # fmt: skip
    random = np.random.default_rng(1)
    real = random.normal(size=(rows, 3)).astype(np.float32)
    label = random.integers(0, 3, rows).astype(np.int32)
    y = {
        "real": real,
        "positive": np.maximum(real, 0),
        "binary": (real > 0).astype(np.float32),
        "sign": np.sign(real),
        "one_hot": np.eye(3, dtype=np.float32)[label],
        "label": label,
    }
    activations = {
        "real": "linear", "positive": "relu", "binary": "sigmoid", "sign": "tanh", "one_hot": "softmax",
        "label": "softmax",
    }  # fmt: skip
    weights = dict.fromkeys(y) | {
        name: random.uniform(0.2, 2.0, rows).astype(np.float32) for name in ("real", "one_hot", "binary")
    }
    inputs = keras.Input((4,))
    model = start(keras.Model(inputs, branches("dense", inputs, activations)))
    weighted = ("real", "one_hot")
    model.compile(
        optimizer=keras.optimizers.SGD(0.1),
        loss={name: "mse" if name == "real" else None for name in y},
        metrics={name: its_metrics for name, its_metrics in by_output.items() if name not in weighted},
        weighted_metrics={name: by_output[name] for name in weighted},
    )
    x = random.normal(size=(rows, 4)).astype(np.float32)
    data = (x, y, weights)
    return Recipe(model, train=data, validation=data, batch_size=batch_size, shuffle=False)
