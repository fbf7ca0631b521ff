"""Keras's callbacks in a run: called once, as fit calls them, and followed on every device; known by hand."""

from __future__ import annotations

import csv
import json

import cells
import numpy as np
import pytest

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers
everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)
on_two = pytest.mark.parametrize(("backend", "devices"), [(backend, 2) for backend in BACKENDS])

for kind in ("none", "told", "plateau", "freezes"):
    cells.add(f"callbacks: {kind}", "with_callbacks", settings={"kind": kind, "folder": "FOLDER"})
for kind in ("early", "schedule", "files", "ema", "assigns", "stops", "stops in a batch"):
    cells.add(f"callbacks: {kind}", "with_callbacks", (2,), settings={"kind": kind, "folder": "FOLDER"})
for name, epochs in {"backup": 2, "from the backup": 4}.items():
    given = {"kind": "backup", "folder": "FOLDER/.."}
    cells.add(f"callbacks: {name}", "with_callbacks", (2,), settings=given, epochs=epochs)
given = {"kind": "stops in process 1", "folder": "FOLDER"}
cells.add("callbacks: stops in process 1", "with_callbacks", (2,), backends=("torch",), settings=given)
EVALUATING = (("torch", 2), ("tensorflow", 1), ("jax", 2))  # several TensorFlow devices refuse it
for backend, devices in EVALUATING:
    cells.add(
        f"callbacks: {backend} evaluates", "with_callbacks", (devices,), backends=(backend,),
        settings={"kind": "evaluates", "folder": "FOLDER"},
    )  # fmt: skip

BATCHES = (np.arange(4.0), np.arange(4.0, 8.0))


class ByHand:
    """The two weights, SGD with momentum, and what the recipe's loss says of them."""

    def __init__(self, rate: float = 0.02, momentum: float = 0.5):
        self.weights, self.speed = np.ones(2), np.zeros(2)
        self.rate, self.momentum = rate, momentum
        self.trained = np.array([True, True])
        self.average: np.ndarray | None = None

    def loss(self, targets: np.ndarray) -> float:
        return float(np.mean((np.prod(self.weights) - targets) ** 2))

    def step(self, targets: np.ndarray) -> None:
        gradient = 2 * np.mean(np.prod(self.weights) - targets) * self.weights[::-1]
        speed = self.momentum * self.speed - self.rate * gradient
        self.speed = np.where(self.trained, speed, self.speed)
        self.weights = np.where(self.trained, self.weights + speed, self.weights)
        self.average = self.weights if self.average is None else (self.average + self.weights) / 2

    def epoch(self) -> None:
        for targets in BATCHES:
            self.step(targets)


def close(value: object) -> object:
    return pytest.approx(value, rel=2e-5)


def weights(run: cells.Ran) -> list[float]:
    return [float(weight.reshape(())) for _, weight in sorted(run.weights.items())]


@everywhere
def test_each_hook_is_called_once_in_fits_order_with_the_state_of_that_moment(ran, backend, devices):
    run = ran(backend, "callbacks: told", devices)
    told = [json.loads(line) for line in run.lines("told.jsonl")]
    batches = [*("batch begin", "batch end") * 2]
    tests = ["test begin", *["test batch end"] * 2, "test end"]
    epoch = ["epoch begin", *batches, *tests, "epoch end"]
    assert [one["hook"] for one in told] == ["train begin", *epoch * 4, "train end"]
    assert [one["number"] for one in told if one["hook"].startswith("epoch")] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [one["number"] for one in told if one["hook"] == "batch end"] == [0, 1] * 4
    assert len({one["process"] for one in told}) == 1
    assert told[0]["params"] == {"epochs": 4, "steps": 2, "verbose": 0}
    hand = ByHand()
    expected = [hand.weights]
    for _ in range(4):
        for targets in BATCHES:
            hand.step(targets)
            expected.append(hand.weights)
    seen = [one["weights"] for one in told if one["hook"] in ("train begin", "batch end")]
    np.testing.assert_allclose(seen, expected, rtol=2e-5)
    for one in told:
        assert one["predicted"] == close([np.prod(one["weights"])] * 5)
    assert weights(run) == close(list(hand.weights))


@everywhere
def test_logs_hold_the_running_loss_and_metrics_and_the_epochs(ran, backend, devices):
    run = ran(backend, "callbacks: told", devices)
    told = [json.loads(line) for line in run.lines("told.jsonl")]
    hand = ByHand()
    first, before = hand.loss(BATCHES[0]), np.mean(np.abs(np.prod(hand.weights) - BATCHES[0]))
    ends = [one["logs"] for one in told if one["hook"] == "batch end"]
    assert ends[0] == {"loss": close(first), "mae": close(before)}
    hand.step(BATCHES[0])
    assert ends[1]["loss"] == close((first + hand.loss(BATCHES[1])) / 2)
    assert [one["logs"] for one in told if one["hook"] == "epoch end"] == run.history
    assert set(run.history[0]) == {"loss", "mae", "val_loss", "val_mae"}
    assert [one["logs"] for one in told if one["hook"] == "train end"] == [run.history[-1]]
    scores = [one["logs"] for one in told if one["hook"] == "test end"]
    assert scores == [{name: epoch[f"val_{name}"] for name in ("loss", "mae")} for epoch in run.history]


@everywhere
def test_a_callback_that_only_looks_changes_nothing(ran, backend, devices):
    told, none = ran(backend, "callbacks: told", devices), ran(backend, "callbacks: none", devices)
    assert told.losses == none.losses and told.history == none.history
    assert told.outcome["hashes"] == none.outcome["hashes"]
    assert any("Told looks at each batch" in note for note in told.outcome["notes"])
    assert not any("each batch" in note for note in none.outcome["notes"])


@pytest.mark.parametrize(("backend", "devices"), EVALUATING)
def test_a_callback_that_evaluates_in_a_batch_leaves_the_metrics_of_training_alone(ran, backend, devices):
    run = ran(backend, f"callbacks: {backend} evaluates", devices)
    none = ran(backend, "callbacks: none", devices)
    assert run.history == none.history and run.outcome["hashes"] == none.outcome["hashes"]
    hand = ByHand()
    for one in map(json.loads, run.lines("told.jsonl")):
        if one["hook"] == "batch end":
            hand.step(BATCHES[one["number"]])
            assert one["logs"]["evaluated"][0] == close(hand.loss(np.arange(5.0)))


@on_two
def test_early_stopping_stops_all_and_restores_the_best_weights(ran, backend, devices):
    run = ran(backend, "callbacks: early", devices)
    none = ran(backend, "callbacks: none", devices)
    scores = [epoch["val_loss"] for epoch in none.history]
    assert scores[1] < scores[0]  # so that, with mode "max", the first epoch is the best and the second the last
    assert run.history == none.history[:2]
    hand = ByHand()
    hand.epoch()
    assert weights(run) == close(list(hand.weights))
    assert "EarlyStopping ended the training after 4 steps, in epoch 2 of 4" in run.outcome["notes"]


@everywhere
def test_learning_rates_that_callbacks_set_are_the_same_on_any_number_of_devices(ran, backend, devices):
    sequences = {"plateau": [0.02, 0.02, 0.01, 0.005], "schedule": [0.01, 0.005, 0.0025, 0.00125]}
    for kind, rates in sequences.items():
        if kind == "schedule" and devices != 2:
            continue
        run = ran(backend, f"callbacks: {kind}", devices)
        with (run.rundir.path / "log.csv").open() as file:
            assert [float(row["learning_rate"]) for row in csv.DictReader(file)] == close(rates)
        hand = ByHand()
        for rate in rates:
            hand.rate = rate
            hand.epoch()
        assert weights(run) == close(list(hand.weights)), kind


@everywhere
def test_layers_frozen_and_unfrozen_between_epochs_train_exactly(ran, backend, devices):
    run = ran(backend, "callbacks: freezes", devices)
    hand = ByHand()
    for trained, momentum in (((0, 1), 0.5), ((1, 0), 0.5), ((1, 1), 0.5), ((1, 1), 0.0)):
        hand.trained, hand.momentum = np.array(trained, bool), momentum
        hand.epoch()
    assert weights(run) == close(list(hand.weights))


@on_two
def test_weights_and_rates_that_a_callback_assigns_are_trained_from(ran, backend, devices):
    run = ran(backend, "callbacks: assigns", devices)
    hand = ByHand()
    hand.epoch()
    hand.weights = hand.weights / 2
    for _ in range(3):
        for number, targets in enumerate(BATCHES, 1):
            hand.rate = 0.01 * number
            hand.step(targets)
    assert weights(run) == close(list(hand.weights))


@on_two
def test_a_stop_between_epochs_or_in_a_batch_is_the_end_for_all(ran, backend, devices):
    none = ran(backend, "callbacks: none", devices)
    run = ran(backend, "callbacks: stops", devices)
    assert run.history == none.history[:2] and run.losses == none.losses[:4]
    run = ran(backend, "callbacks: stops in a batch", devices)
    assert run.losses == none.losses[:1] and len(run.history) == 1
    assert "LambdaCallback ended the training after 1 steps, in epoch 1 of 4" in run.outcome["notes"]


def test_k14_what_another_process_than_the_first_would_decide_stops_nobody(ran):
    run, none = ran("torch", "callbacks: stops in process 1", 2), ran("torch", "callbacks: none", 2)
    assert run.losses == none.losses and run.outcome["hashes"] == none.outcome["hashes"]


@on_two
def test_validation_sees_the_moving_averages_and_they_are_the_weights_at_the_end(ran, backend, devices):
    run = ran(backend, "callbacks: ema", devices)
    hand = ByHand()
    told = [json.loads(line) for line in run.lines("told.jsonl")]
    validated = iter([one["weights"] for one in told if one["hook"] == "test batch end"][::2])
    for epoch in run.history:
        hand.epoch()
        assert next(validated) == close(list(hand.average))
        assert epoch["val_loss"] == close(np.mean((np.prod(hand.average) - np.arange(5)) ** 2))
    assert weights(run) == close(list(hand.average))


@on_two
def test_a_backup_is_made_and_a_run_begins_at_its_epoch(ran, backend, devices):
    ran(backend, "callbacks: backup", devices)
    run, none = ran(backend, "callbacks: from the backup", devices), ran(backend, "callbacks: none", devices)
    assert run.losses == none.losses[4:] and run.history == none.history[2:]
    assert run.outcome["hashes"]["final_weights"] == none.outcome["hashes"]["final_weights"]
    assert "a callback has restored a backup: training begins at epoch 3" in run.outcome["notes"]
    assert not any("each batch" in note for note in run.outcome["notes"])


@on_two
def test_files_are_written_once_however_many_processes_there_are(ran, backend, devices):
    run = ran(backend, "callbacks: files", devices)
    with (run.rundir.path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["loss"]) for row in rows] == close([epoch["loss"] for epoch in run.history])
    assert sorted(path.name for path in run.rundir.path.glob("epoch-*")) == [f"epoch-{n}.keras" for n in (1, 2, 3, 4)]
    events = [event for event in run.rundir.events() if event["event"] == "window"]
    assert not any("each batch" in note for note in run.outcome["notes"])
    assert len(events) == 4 + 1  # windows: the first step, which compiles, and what is left of each epoch


def test_tensorboard_too_writes_one_file_beside_one_table_and_one_checkpoint_an_epoch(tmp_path):
    answer = cells.kmgpu(
        "train", str(cells.RECIPES / "with_callbacks.py"), "--backend", "torch", "--devices", "4", "--device-kind",
        "cpu", "--epochs", "3", "--out", "run", "--set", "kind=tensorboard", "--set", "folder=.",
        folder=tmp_path, limit=120,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    (events,) = (tmp_path / "board" / "train").glob("events.out.tfevents.*")
    assert len(list((tmp_path / "board" / "validation").glob("events.out.tfevents.*"))) == 1
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + 3
    assert sorted(path.name for path in tmp_path.glob("epoch-*")) == [f"epoch-{n}.keras" for n in (1, 2, 3)]
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    tags = [value.tag for event in EventFileLoader(str(events)).Load() for value in event.summary.value]
    assert tags.count("epoch_loss") == 3 and tags.count("epoch_learning_rate") == 3
    assert len([line for line in answer.out.splitlines() if line.startswith("epoch ")]) == 3
