"""Two dense layers, each update in several batches; what the devices exchange for gradients is written down.

A line "update" for each update (for each one that is traced, where steps are compiled), and below it a line for each
all-reduce of a gradient: its bytes. It patches the worker's adapter, so it is the last recipe of its process.
"""

import importlib
import math
import os
import re

import keras
import numpy as np

from kmgpu import Recipe

BACKEND = keras.backend.backend()


def write(line):
    with open(keras.exchanges, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def watch_torch():
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    def hook(group, bucket):
        if torch.distributed.get_rank() == 0:
            write(bucket.buffer().numel() * bucket.buffer().element_size())
        return allreduce_hook(group, bucket)

    def init(self, module, process_group=None, **options):
        original(self, module, process_group=process_group, **options)
        self.register_comm_hook(process_group, hook)

    DistributedDataParallel.__init__ = init
    before_each_update("torch_ddp", lambda adapter, update: write("update") if adapter.process == 0 else None)


def watch_tensorflow():
    import tensorflow as tf

    programs = importlib.import_module("kmgpu.backends.tf_programs")
    original, train = tf.distribute.ReductionToOneDevice.batch_reduce_implementation, programs.train

    def batch_reduce(self, operation, pairs, options):
        write(sum(math.prod(value.values[0].shape) * value.values[0].dtype.size for value, _ in pairs))
        return original(self, operation, pairs, options)

    def traced_train(adapter, values, specs):
        write("update")
        return train(adapter, values, specs)

    tf.distribute.ReductionToOneDevice.batch_reduce_implementation = batch_reduce
    programs.train = traced_train


def watch_jax():
    def count(adapter, update):
        arguments = [trees for trees, _ in update], tuple(spec for _, spec in update)
        text = adapter._train.lower(adapter._state, *arguments).compile().as_text()
        write("update")
        for shapes in re.findall(r"= (.*?) all-reduce(?:-start)?\(", text):
            sizes = [[int(n) for n in dims.split(",") if n] for dims in re.findall(r"f32\[(.*?)\]", shapes)]
            write(4 * sum(map(math.prod, sizes)))

    before_each_update("jax_data_parallel", count)


def before_each_update(module, told):
    adapter = importlib.import_module(f"kmgpu.backends.{module}").Adapter
    original = adapter.train_step

    def train_step(self, update):
        told(self, update)
        return original(self, update)

    adapter.train_step = train_step


def recipe(*, path="", rows=32, batch_size=16, accumulate=4):
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(50, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, 20)).astype(np.float32), random.normal(size=(rows, 1)).astype(np.float32)
    if not hasattr(keras, "exchanges"):  # the file of the current run, where a second import of this file finds it
        {"torch": watch_torch, "tensorflow": watch_tensorflow, "jax": watch_jax}[BACKEND]()
    keras.exchanges = path or os.devnull
    return Recipe(model, train=(x, y), batch_size=batch_size, accumulate=accumulate)
