"""Which process reads which row: every sample once per epoch at any number of devices, in a new order each epoch."""

from __future__ import annotations

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS, find
from kmgpu.data.order import OrderHash, epoch_order

pytestmark = pytest.mark.workers
each_backend = pytest.mark.parametrize("backend", BACKENDS)
everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)

ROWS, EPOCHS, BATCH, SEED = 16, 3, 4, 7
LOGS = {"log": "FOLDER/train.txt", "validation_log": "FOLDER/validation.txt"}

SHUFFLED = {**LOGS, "rows": ROWS, "epochs": EPOCHS}

cells.add("shuffled", "logged_rows", settings=SHUFFLED, seed=SEED)
cells.add("shuffled-again", "logged_rows", devices=(2,), settings=SHUFFLED, seed=SEED)
cells.add("shuffled-workers", "logged_rows", devices=(1, 2), settings=SHUFFLED, seed=SEED, workers=4)
cells.add("shuffled-uneven", "logged_rows", settings={**LOGS, "rows": 18, "batch_size": 5, "epochs": 2}, seed=SEED)
cells.add("validated", "logged_rows", settings={**LOGS, "rows": 8, "validation_rows": 7, "shuffle": False})


def reads(run: cells.Ran, name: str) -> dict[str, list[int]]:
    """The rows that each process has read, in its order."""
    rows: dict[str, list[int]] = {}
    for line in run.lines(name):
        process, index = line.split(",")
        rows.setdefault(process, []).append(int(index))
    return rows


def processes(backend: str, devices: int) -> int:
    return devices if find(backend).one_process_per_device else 1


def epochs_of(run: cells.Ran) -> list[list[list[int]]]:
    """What each process has read, epoch by epoch; processes in the order of what they read."""
    shares = [np.reshape(rows, (EPOCHS, -1)).tolist() for rows in reads(run, "train.txt").values()]
    return [list(epoch) for epoch in zip(*sorted(shares), strict=True)]


def order_hash(rows: int, batch: int, epochs: int) -> str:
    order = OrderHash()
    steps = -(-rows // batch)
    for epoch in range(epochs):
        indices = epoch_order(rows, SEED, epoch, shuffle=True)
        for step in range(steps):
            part = indices[step * batch : (step + 1) * batch]
            order.add(epoch * steps + step, np.arange(len(part)), part)
    return OrderHash.join(order.lanes)


@everywhere
def test_every_row_is_read_once_in_each_epoch(ran, backend, devices):
    for epoch in epochs_of(ran(backend, "shuffled", devices)):
        assert len(epoch) == processes(backend, devices)
        assert sorted(sum(epoch, [])) == list(range(ROWS))


@everywhere
def test_each_epoch_has_an_order_of_its_own(ran, backend, devices):
    epochs = epochs_of(ran(backend, "shuffled", devices))
    assert all(epochs[one] != epochs[two] for one, two in ((0, 1), (0, 2), (1, 2)))


@each_backend
@pytest.mark.parametrize("devices", (1, 2))
def test_threads_that_read_change_neither_the_order_nor_what_is_read(ran, backend, devices):
    by_threads, alone = (ran(backend, name, devices) for name in ("shuffled-workers", "shuffled"))
    assert by_threads.losses == alone.losses and by_threads.outcome["hashes"] == alone.outcome["hashes"]
    read = sum(reads(by_threads, "train.txt").values(), [])
    assert sorted(read) == sorted(EPOCHS * list(range(ROWS)))


@each_backend
def test_the_same_seed_gives_the_same_order_again(ran, backend):
    assert epochs_of(ran(backend, "shuffled", 2)) == epochs_of(ran(backend, "shuffled-again", 2))


@everywhere
def test_the_order_is_that_of_one_device_and_of_every_other_backend(ran, backend, devices):
    assert ran(backend, "shuffled", devices).outcome["hashes"]["sample_order"] == order_hash(ROWS, BATCH, EPOCHS)
    # With 4 devices the last batch has 3 rows, which all processes read and one counts.
    assert ran(backend, "shuffled-uneven", devices).outcome["hashes"]["sample_order"] == order_hash(18, 5, 2)


@everywhere
def test_rows_of_uneven_batches_are_read_once_too(ran, backend, devices):
    read = sum(reads(ran(backend, "shuffled-uneven", devices), "train.txt").values(), [])
    assert set(read) == set(range(18))
    shared = 3 * 2 * (processes(backend, devices) - 1) if devices == 4 else 0  # both epochs' last batches
    assert len(read) == 18 * 2 + shared


@everywhere
def test_a_score_counts_every_row_once_at_any_number_of_devices(ran, backend, devices):
    scores = ran(backend, "validated", devices).history[0]
    assert scores["val_loss"] == pytest.approx(4 + (3.125 - 3) ** 2, rel=1e-6)
    assert scores["val_positives"] == 6  # all but the row whose target is 0


@everywhere
def test_every_validation_row_is_read_once(ran, backend, devices):
    read = sum(reads(ran(backend, "validated", devices), "validation.txt").values(), [])
    assert set(read) == set(range(7))
    shared = 3 * (processes(backend, devices) - 1) if devices == 4 else 0  # the last batch has 3 rows for 4 processes
    assert len(read) == 7 + shared
