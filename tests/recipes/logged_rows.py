"""R0 over data objects that write down which process reads which row, and that can hold a bad row."""

import os
import time

import keras
import numpy as np

from kmgpu import Recipe


class LoggedRows:
    """Rows of R0 by index; each read appends "process id,index" to a file."""

    def __init__(self, rows, log, bad_row=-1, seconds=0.0):
        self.rows, self.log, self.bad_row, self.seconds = rows, log, bad_row, seconds

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        with open(self.log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()},{index}\n")
        if index == self.bad_row:
            raise ValueError(f"bad row {index}")
        time.sleep(self.seconds)
        return np.ones(1, np.float32), np.array([index], np.float32)


def recipe(
    *, rows=16, log="", validation_rows=0, validation_log="", batch_size=4, epochs=1, shuffle=True, bad_row=-1,
    seconds=0.0, ended="",
):  # fmt: skip
    def end(logs):
        with open(ended, "a", encoding="utf-8") as file:
            file.write("ended\n")

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    # Counts rows: once w is above 0, all but the one whose target is 0.
    positives = keras.metrics.TruePositives(thresholds=0.0, name="positives")
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse", metrics=[positives])
    return Recipe(
        model,
        train=LoggedRows(rows, log, bad_row, seconds),
        validation=LoggedRows(validation_rows, validation_log) if validation_rows else None,
        batch_size=batch_size,
        epochs=epochs,
        shuffle=shuffle,
        callbacks=[keras.callbacks.LambdaCallback(on_train_end=end)] if ended else [],
    )
