"""What is wrong with the data for a model is said before training, in one sentence."""

from __future__ import annotations

import json

import cells
import pytest

pytestmark = pytest.mark.workers

SCRIPT = """
import json
import numpy as np
from kmgpu.backends import common
keras = common.import_keras("jax")
from kmgpu.data.loader import Batch
from kmgpu.errors import UsageError

def batch(x, y=None):
    return Batch(0, np.arange(len(x)), 0, np.asarray(x, "float32"), y, None)

def classifier(**loss):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss))
    common.build(model, batch(np.zeros((4, 2)), np.zeros(4, "int32")))
    return model

class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(y_pred)

def said(check, *arguments):
    try:
        check(*arguments)
    except UsageError as error:
        return str(error)

four, labels = np.zeros((4, 2)), np.array([0, 1, 2, 0])
own = OwnLoss()
own.compile(loss="mse")
print(json.dumps([
    said(common.check_targets, classifier(), batch(four), "train"),
    said(common.check_targets, own, batch(four), "train"),
    said(common.check_labels, classifier(), labels, "train"),
    said(common.check_labels, classifier(), labels + 1, "train"),
    said(common.check_labels, classifier(), labels - 1, "validation"),
    said(common.check_labels, classifier(ignore_class=-1), labels - 1, "train"),
    said(common.check_labels, classifier(ignore_class=-1), labels - 2, "train"),
    said(common.check_validation, classifier(), batch(four, labels), batch(four, labels)),
    said(common.check_validation, classifier(), batch(four, labels), batch(np.zeros((4, 5)), labels)),
    said(common.check_validation, classifier(), batch(four, labels), batch(four, np.zeros((4, 7)))),
]))
"""


def test_what_a_model_cannot_use_is_named(tmp_path):
    answer = cells.python("-c", SCRIPT, folder=tmp_path)
    assert answer.code == 0, answer.err
    no_y, own_loss, good, high, low, ignored, beyond, alike, wide, labels = json.loads(answer.out.splitlines()[-1])
    assert no_y == "train is x alone, and the model's loss compares its output with a y; give train as (x, y)"
    assert own_loss is good is ignored is alike is None
    assert high.startswith("train has the label 3, and the model's 3 classes are numbered 0 to 2; number the labels")
    assert low.startswith("validation has the label -1, and") and beyond.startswith("train has the label -2, and")
    assert wide.startswith("validation does not fit the model: ") and "\n" not in wide and "(2,)" in wide
    assert labels.startswith("validation does not fit the model: ")
