"""Two weights whose product is fitted, plain arithmetic, and callbacks of all kinds.

Inputs are ones and targets 0..7, in batches of four: the loss of a batch is the mean of (u v - target)^2.
"""

import json
import os
import sys
from pathlib import Path

import keras
import numpy as np

from kmgpu import Recipe

C = keras.callbacks


class Told(C.Callback):
    """Writes each hook, its logs and what the model says then."""

    def __init__(self, path, evaluates=False):
        super().__init__()
        self.path, self.evaluates = Path(path), evaluates

    def tell(self, hook, number=None, logs=None):
        weights = [float(weight.sum()) for weight in self.model.get_weights()]
        predicted = self.model.predict(np.ones((5, 1), np.float32), verbose=0)[:, 0].tolist()
        record = {"hook": hook, "number": number, "logs": logs, "weights": weights, "predicted": predicted}
        with self.path.open("a") as file:
            print(json.dumps(record | {"process": os.getpid(), "params": self.params}), file=file)

    def on_train_begin(self, logs=None):
        self.tell("train begin", logs=logs)

    def on_train_end(self, logs=None):
        self.tell("train end", logs=logs)

    def on_epoch_begin(self, epoch, logs=None):
        self.tell("epoch begin", epoch, logs)

    def on_epoch_end(self, epoch, logs=None):
        self.tell("epoch end", epoch, logs)
        self.model.save(self.path.with_name(f"from-callback-{epoch}.keras"))

    def on_train_batch_begin(self, batch, logs=None):
        self.tell("batch begin", batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        if self.evaluates:
            x, y = np.ones((5, 1), np.float32), np.arange(5, dtype=np.float32)[:, None]
            logs = logs | {"evaluated": self.model.evaluate(x, y, batch_size=3, verbose=0)}
        self.tell("batch end", batch, logs)

    def on_test_begin(self, logs=None):
        self.tell("test begin", logs=logs)

    def on_test_batch_end(self, batch, logs=None):
        self.tell("test batch end", batch, logs)

    def on_test_end(self, logs=None):
        self.tell("test end", logs=logs)


class Freezes(C.Callback):
    """Epoch 0 trains v alone, epoch 1 u alone; then both, and without momentum from epoch 3 on."""

    def on_train_begin(self, logs=None):
        self.model.get_layer("u").trainable = False

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.get_layer("u").trainable = True
            self.model.get_layer("v").trainable = False
        if epoch == 2:
            self.model.get_layer("v").trainable = True
        if epoch == 3:
            self.model.optimizer.momentum = 0.0


class Assigns(C.Callback):
    """Halves the weights after epoch 0, and sets another learning rate for each batch of epoch 1."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.model.set_weights([weight / 2 for weight in self.model.get_weights()])

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations >= 2:
            self.model.optimizer.learning_rate.assign(0.01 * (batch + 1))


class Stops(C.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


def recipe(*, kind="told", folder=".", epochs=4, momentum=0.5, learning_rate=0.02, seconds=0.0):
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="u"),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="v"),
        ]
    )
    optimizer = keras.optimizers.SGD(learning_rate, momentum=momentum, use_ema=kind == "ema", ema_momentum=0.5)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    folder = Path(folder)
    made = {
        "none": lambda: (),
        "told": lambda: [Told(folder / "told.jsonl")],
        "evaluates": lambda: [Told(folder / "told.jsonl", evaluates=True)],
        "early": lambda: [C.EarlyStopping(monitor="val_loss", mode="max", patience=1, restore_best_weights=True)],
        "plateau": lambda: [
            C.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=1e9),
            C.CSVLogger(str(folder / "log.csv")),
        ],
        "schedule": lambda: [
            C.LearningRateScheduler(lambda epoch, rate: rate / 2), C.CSVLogger(str(folder / "log.csv")),
        ],
        "files": lambda: [
            C.CSVLogger(str(folder / "log.csv")), C.ModelCheckpoint(str(folder / "epoch-{epoch}.keras")),
        ],
        "tensorboard": lambda: [
            C.CSVLogger(str(folder / "log.csv")), C.ModelCheckpoint(str(folder / "epoch-{epoch}.keras")),
            C.TensorBoard(str(folder / "board")),
        ],
        "backup": lambda: [C.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False)],
        "ema": lambda: [C.SwapEMAWeights(), Told(folder / "told.jsonl")],
        "freezes": lambda: [Freezes()],
        "assigns": lambda: [Assigns()],
        "stops": lambda: [Stops()],
        "stops in process 1": lambda: [Stops()] if sys.modules["torch"].distributed.get_rank() == 1 else [],
        "stops in a batch": lambda: [
            C.LambdaCallback(on_train_batch_end=lambda batch, logs: setattr(model, "stop_training", batch == 0))
        ],
    }[kind]()  # fmt: skip
    x, y = np.ones((8, 1), np.float32), np.arange(8, dtype=np.float32)[:, None]
    return Recipe(
        model, train=(x, y), validation=(x[:5], y[:5]), batch_size=4, epochs=epochs, shuffle=False, callbacks=made
    )
