"""ImageNet with ResNet-50, on your own folders of images or on a synthetic stream that measures throughput.

He et al., https://arxiv.org/abs/1512.03385; `full` has the weights of keras.applications.ResNet50, by shape and order.
Without `images` nothing can be learned: one image is repeated, made of random numbers, so that no data are waited for.
With images="FOLDER", FOLDER/train and FOLDER/validation have a subfolder of images for each class.
"""

from pathlib import Path
from typing import Literal

import keras
import numpy as np
from keras import layers

from kmgpu import Recipe
from kmgpu.data.files import ImageFolder

SIZES = {  # blocks and filters of each stage
    "tiny": {"side": 32, "blocks": (1, 1, 1, 1), "filters": 8, "classes": 10, "rows": 256},
    "full": {"side": 224, "blocks": (3, 4, 6, 3), "filters": 64, "classes": 1000, "rows": 12_800},
}


class Synthetic:
    """Rows shaped as ImageNet's: one image of random numbers, with a label that changes."""

    def __init__(self, rows, side, classes):
        self.rows, self.classes = rows, classes
        self.image = np.random.default_rng(0).random((side, side, 3), np.float32)

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return self.image, np.int32(index % self.classes)


def convolution(x, filters, size, stride=1, padding="same"):
    x = layers.Conv2D(filters, size, strides=stride, padding=padding)(x)
    return layers.BatchNormalization(epsilon=1.001e-5)(x)


def block(x, filters, stride, first):
    """A bottleneck: fewer filters inside, and a way around, with weights where the shape changes."""
    around = convolution(x, 4 * filters, 1, stride) if first else x
    y = layers.ReLU()(convolution(x, filters, 1, stride))
    y = layers.ReLU()(convolution(y, filters, 3))
    y = convolution(y, 4 * filters, 1)
    return layers.ReLU()(layers.Add()([around, y]))


def recipe(*, size: Literal["tiny", "full"] = "tiny", images="", batch_size=64, epochs=1, learning_rate=0.05):
    preset = SIZES[size]
    side, classes = preset["side"], preset["classes"]
    if images:
        train, validation = (ImageFolder(Path(images) / name, size=(side, side)) for name in ("train", "validation"))
        classes = len(train.class_names)
    else:
        train, validation = Synthetic(preset["rows"], side, classes), None
    inputs = keras.Input((side, side, 3))
    x = layers.ReLU()(convolution(layers.ZeroPadding2D(3)(inputs), preset["filters"], 7, 2, "valid"))
    x = layers.MaxPooling2D(3, strides=2)(layers.ZeroPadding2D(1)(x))
    for stage, blocks in enumerate(preset["blocks"]):
        for number in range(blocks):
            stride = 2 if stage > 0 and number == 0 else 1
            x = block(x, preset["filters"] * 2**stage, stride, first=number == 0)
    model = keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return Recipe(model, train=train, validation=validation, batch_size=batch_size, epochs=epochs)
