"""A table with categories, after the kind of keras.io/examples/structured_data/wide_deep_cross_networks."""

import os

import keras
import numpy as np
import torch
import torch.distributed as dist
from keras import layers
from statsmodels.datasets import fair
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

table = fair.load_pandas().data
numbers = table[["age", "yrs_married", "children", "educ"]].to_numpy("float32")
numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
categories = table[["rate_marriage", "religious", "occupation", "occupation_husb"]].to_numpy("int32")
x = np.concatenate([numbers, categories], axis=1).astype("float32")
y = (table["affairs"] > 0).to_numpy("float32")[:, None]
order = np.random.default_rng(0).permutation(len(y))
train, test = order[:5000], order[5000:]
x_train, y_train, x_test, y_test = x[train], y[train], x[test], y[test]


def build():
    inputs = keras.Input(shape=(8,))
    deep = [inputs[:, :4]]
    for column, count in ((4, 6), (5, 5), (6, 7), (7, 7)):
        deep.append(layers.Embedding(count, 4)(inputs[:, column]))
    x = layers.Dense(64, activation="relu")(layers.Concatenate()(deep))
    x = layers.Dropout(0.2)(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
    model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
    return model


def loss_function(y, outputs):
    return keras.ops.mean(keras.losses.binary_crossentropy(y, outputs))


def evaluate(module, loader, device):
    """Return the loss over the rows of all processes; the sampler repeats some where they do not divide."""
    module.eval()
    total, rows = torch.zeros(1, device=device), torch.zeros(1, device=device)
    with torch.no_grad():
        for x, y in loader:
            total += loss_function(y.to(device), module(x.to(device))) * len(x)
            rows += len(x)
    dist.all_reduce(total)
    dist.all_reduce(rows)
    return (total / rows).item()


def train(rank, world_size):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", os.environ.get("MASTER_PORT", "29511")
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{rank}" if gpu else "cpu")
    dist.init_process_group("nccl" if gpu else "gloo", rank=rank, world_size=world_size)
    if gpu:
        torch.cuda.set_device(device)
    keras.utils.set_random_seed(0)
    module = DistributedDataParallel(build().to(device), device_ids=[rank] if gpu else None)
    rows = TensorDataset(torch.as_tensor(x_train), torch.as_tensor(y_train))
    sampler = DistributedSampler(rows, world_size, rank, shuffle=True)
    loader = DataLoader(rows, batch_size=128 // world_size, sampler=sampler)
    held_out = TensorDataset(torch.as_tensor(x_test), torch.as_tensor(y_test))
    test_sampler = DistributedSampler(held_out, world_size, rank, shuffle=False)
    test_loader = DataLoader(held_out, batch_size=128 // world_size, sampler=test_sampler)
    optimizer = torch.optim.Adam(module.parameters())
    for epoch in range(5):
        sampler.set_epoch(epoch)
        module.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_function(y.to(device), module(x.to(device)))
            loss.backward()
            optimizer.step()
        val_loss = evaluate(module, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch + 1}", val_loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    world_size = torch.cuda.device_count() or 2
    torch.multiprocessing.spawn(train, args=(world_size,), nprocs=world_size)
