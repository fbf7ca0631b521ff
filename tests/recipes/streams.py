"""R0 over streams: batches that the data makes, of every kind that a recipe may give."""

import os

import keras
import numpy as np

from kmgpu import Recipe


class Batches(keras.utils.PyDataset):
    """Batches of R0 by index; notes down which process reads which, and which ends an epoch when."""

    def __init__(self, rows, batch, log, bad_batch=-1, **kwargs):
        super().__init__(**kwargs)
        self.rows, self.batch, self.log, self.bad_batch = rows, batch, log, bad_batch

    def __len__(self):
        return -(-self.rows // self.batch)

    def __getitem__(self, number):
        write(self.log, f"batch {number}")
        if number == self.bad_batch:
            raise ValueError(f"bad batch {number}")
        return rows_of(number * self.batch, min(self.rows, (number + 1) * self.batch))

    def on_epoch_end(self):
        write(self.log, "end")


def rows_of(start, stop):
    return np.ones((stop - start, 1), np.float32), np.arange(start, stop, dtype=np.float32)[:, None]


def write(log, text):
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()},{text}\n")


def generated(rows, batch, log):
    def generate():
        for start in range(0, rows, batch):
            write(log, f"batch {start // batch}")
            yield rows_of(start, min(rows, start + batch))

    return generate


def tf_data(rows, batch, log):
    import tensorflow as tf

    assert not tf.config.get_visible_devices("GPU")
    return tf.data.Dataset.from_tensor_slices(rows_of(0, rows)).batch(batch)


def torch_loader(rows, batch, log):
    import torch

    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows_of(0, rows)))
    return torch.utils.data.DataLoader(data, batch_size=batch)


class Shuffled(Batches):
    """Draws another order of all rows after each epoch."""

    def __init__(self, rows, batch, log):
        super().__init__(rows, batch, log)
        self.random = np.random.default_rng(7)
        self.order = self.random.permutation(rows)

    def __getitem__(self, number):
        return chosen(self.order[number * self.batch : (number + 1) * self.batch])

    def on_epoch_end(self):
        self.order = self.random.permutation(self.rows)


def chosen(targets):
    return np.ones((len(targets), 1), np.float32), np.asarray(targets, np.float32)[:, None]


def shuffled_function(rows, batch, seed):
    random = np.random.default_rng(seed)

    def generate():
        order = random.permutation(rows)
        for start in range(0, rows, batch):
            yield chosen(order[start : start + batch])

    return generate


def tf_data_shuffled(rows, batch, log):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(rows_of(0, rows)).shuffle(rows, seed=3).batch(batch)


def torch_loader_shuffled(rows, batch, log):
    import torch

    data = torch.utils.data.TensorDataset(*map(torch.from_numpy, rows_of(0, rows)))
    return torch.utils.data.DataLoader(data, batch_size=batch, shuffle=True)


def grain_map(rows, batch, log):
    import grain

    return grain.MapDataset.range(rows).map(row_of)


def grain_iter(rows, batch, log):
    return grain_map(rows, batch, log).shuffle(seed=3).to_iter_dataset().batch(batch)


def grain_loader(rows, batch, log):
    import grain

    sampler = grain.samplers.IndexSampler(rows, shuffle=True, seed=3, num_epochs=1)
    return grain.DataLoader(
        data_source=[row_of(number) for number in range(rows)], sampler=sampler, worker_count=0,
        operations=[grain.transforms.Batch(batch)],
    )  # fmt: skip


def row_of(number):
    return np.ones(1, np.float32), np.array([number], np.float32)


KINDS = {
    "grain_map": grain_map,
    "grain_iter": grain_iter,
    "grain_loader": grain_loader,
    "py_dataset_shuffled": Shuffled,
    "function_shuffled": lambda rows, batch, log: shuffled_function(rows, batch, 7),
    "function_unseeded": lambda rows, batch, log: shuffled_function(rows, batch, None),
    "tf_data_shuffled": tf_data_shuffled,
    "torch_loader_shuffled": torch_loader_shuffled,
    "arrays": lambda rows, batch, log: rows_of(0, rows),
    "py_dataset": Batches,
    "threads": lambda rows, batch, log: Batches(rows, batch, log, workers=2),
    "processes": lambda rows, batch, log: Batches(rows, batch, log, workers=2, use_multiprocessing=True),
    "tf_data": tf_data,
    "torch_loader": torch_loader,
    "function": generated,
    "generator": lambda rows, batch, log: generated(rows, batch, log)(),
}


def recipe(
    *, kind="py_dataset", rows=10, batch=4, epochs=1, log="", validation_rows=0, validation_log="", steps_per_epoch=0,
    validation_steps=0, bad_batch=-1,
):  # fmt: skip
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(optimizer=keras.optimizers.SGD(0.25), loss="mse")
    return Recipe(
        model,
        train=Batches(rows, batch, log, bad_batch) if bad_batch >= 0 else KINDS[kind](rows, batch, log),
        validation=KINDS[kind](validation_rows, batch, validation_log) if validation_rows else None,
        batch_size=batch,
        epochs=epochs,
        shuffle=False,
        steps_per_epoch=steps_per_epoch or None,
        validation_steps=validation_steps or None,
    )
