"""A series forecast by an LSTM, after the kind of keras.io/examples/timeseries/timeseries_weather_forecasting."""

import os

import keras
import numpy as np
import torch
import torch.distributed as dist
from keras import layers
from statsmodels.datasets import co2
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

series = co2.load_pandas().data["co2"].interpolate().to_numpy("float32")
past, future = 52, 4
starts = range(len(series) - past - future)
x = np.stack([series[i : i + past] - series[i + past - 1] for i in starts])[..., None]
y = np.stack([series[i + past : i + past + future] - series[i + past - 1] for i in starts])
x_train, y_train, x_test, y_test = x[:1700], y[:1700], x[1700:], y[1700:]


def build():
    inputs = keras.Input(shape=(past, 1))
    outputs = layers.Dense(future)(layers.LSTM(32)(inputs))
    model = keras.Model(inputs, outputs)
    model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.003), loss="mse", metrics=["mae"])
    return model


def loss_function(y, outputs):
    return keras.ops.mean(keras.losses.mean_squared_error(y, outputs))


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
    loader = DataLoader(rows, batch_size=64 // world_size, sampler=sampler)
    held_out = TensorDataset(torch.as_tensor(x_test), torch.as_tensor(y_test))
    test_sampler = DistributedSampler(held_out, world_size, rank, shuffle=False)
    test_loader = DataLoader(held_out, batch_size=64 // world_size, sampler=test_sampler)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.003)
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
