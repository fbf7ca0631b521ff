"""Two weights whose product is fitted, and callbacks that remember: what a resumed run must go on with."""

from collections import deque
from pathlib import Path

import keras
import numpy as np

from kmgpu import Recipe

C = keras.callbacks


class Counts(C.Callback):
    """Keeps plain attributes of many kinds, freezes a layer, and lowers the momentum and the rate by what it has seen.

    Its hooks are not to be run twice for one epoch.
    """

    def __init__(self):
        super().__init__()
        self.batches, self.last, self.sums, self.kinds = 0, deque(maxlen=3), np.zeros(2, "float32"), set()
        self.begun = {}

    def on_train_begin(self, logs=None):
        self.model.set_weights([np.full((1, 1), 1.25, "float32")] * 2)

    def on_epoch_begin(self, epoch, logs=None):
        self.begun[epoch] = self.begun.get(epoch, 0) + 1
        self.model.optimizer.momentum *= 0.75
        self.model.get_layer("u").trainable = epoch != 1
        self.resource = object()  # made anew

    def on_train_batch_end(self, batch, logs=None):
        assert self.resource
        self.batches += 1
        self.last.append(logs["loss"])
        self.sums += [1, np.float32(logs["mae"])]
        self.kinds.add(("batch", batch))
        if self.batches % 3 == 0:
            rate = keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)
            self.model.optimizer.learning_rate = float(rate) * 0.9


class Draws(C.Callback):
    """Moves a weight by what it draws, and says itself what it remembers."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(5)

    def on_epoch_end(self, epoch, logs=None):
        layer = self.model.get_layer("v")
        layer.set_weights([layer.get_weights()[0] + np.float32(0.01 * self.random.random())])

    def state_dict(self):
        return {"random": self.random.bit_generator.state}

    def load_state_dict(self, state):
        self.random.bit_generator.state = state["random"]


class Forgets(C.Callback):
    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(5)


def recipe(*, kind="all", folder=".", epochs=6):
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name=name) for name in ("u", "v")]
    model = keras.Sequential([keras.Input((1,)), *layers])
    optimizer = keras.optimizers.SGD(0.02, momentum=0.5, use_ema=kind == "swap", ema_momentum=0.5)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    if kind == "files":
        Path(folder).mkdir(exist_ok=True)
    made = {
        "all": lambda: [
            C.EarlyStopping(monitor="val_loss", min_delta=1e9, patience=3, mode="min", restore_best_weights=True),
            C.ReduceLROnPlateau(monitor="loss", min_delta=1e9, patience=2, factor=0.5),
            Counts(),
            Draws(),
        ],
        "swap": lambda: [C.SwapEMAWeights(swap_on_epoch=True)],
        "files": lambda: [C.CSVLogger(f"{folder}/log.csv"), Forgets()],
    }[kind]()
    x, y = np.ones((8, 1), np.float32), np.arange(8, dtype=np.float32)[:, None]
    return Recipe(
        model, train=(x, y), validation=(x[:5], y[:5]), batch_size=4, epochs=epochs, shuffle=False, callbacks=made
    )
