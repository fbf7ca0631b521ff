"""Digits with a convnet, after the kind of keras.io/examples/vision/mnist_convnet."""

import os

import keras
import torch
import torch.distributed as dist
from keras import layers
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

digits = load_digits()
x = digits.images[..., None].astype("float32") / 16
y = digits.target
x_train, y_train, x_test, y_test = x[:1500], y[:1500], x[1500:], y[1500:]


def build():
    model = keras.Sequential(
        [
            keras.Input(shape=(8, 8, 1)),
            layers.Conv2D(32, kernel_size=3, padding="same", activation="relu"),
            layers.MaxPooling2D(pool_size=2),
            layers.Conv2D(64, kernel_size=3, padding="same", activation="relu"),
            layers.MaxPooling2D(pool_size=2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
    return model


def loss_function(y, outputs):
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs))


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
    for epoch in range(15):
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
