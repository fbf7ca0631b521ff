"""Data beyond arrays trains as arrays do, on every backend: each batch is read once, by one process, for all."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import cells
import numpy as np
import pytest

from kmgpu import training
from kmgpu.backends import BACKENDS
from kmgpu.data.order import OrderHash, content_hashes
from kmgpu.errors import RunFailed

pytestmark = pytest.mark.workers
each_backend = pytest.mark.parametrize("backend", BACKENDS)
everywhere = pytest.mark.parametrize(
    ("backend", "devices"), [(backend, devices) for backend in BACKENDS for devices in cells.DEVICES]
)

OWN_MODULES = -1  # order of cells that load no other framework: before the cell that looks at what is loaded
FOREIGN = 2  # and of those that do

LOGS = {"log": "FOLDER/train.txt", "validation_log": "FOLDER/validation.txt"}
cells.add("py-dataset", "streams", order=OWN_MODULES, settings={**LOGS, "epochs": 3, "validation_rows": 7})
cells.add("py-dataset-processes", "streams", order=OWN_MODULES, settings={"kind": "processes", "epochs": 3})
cells.add("generated", "streams", order=OWN_MODULES, settings={"kind": "function", "epochs": 3})
cells.add(
    "generator", "streams", (2,), order=OWN_MODULES,
    settings={"kind": "generator", "rows": 10, "epochs": 1, "steps_per_epoch": 3},
)  # fmt: skip
cells.add("tf-data", "streams", order=FOREIGN, settings={"kind": "tf_data", "epochs": 3})
cells.add(
    "tf-data-steps", "streams", order=FOREIGN,
    settings={
        "kind": "tf_data", "rows": 12, "epochs": 3, "validation_rows": 12, "steps_per_epoch": 2, "validation_steps": 1,
    },
)  # fmt: skip
cells.add("torch-loader", "streams", (2,), order=FOREIGN, settings={"kind": "torch_loader", "epochs": 3})
RESUMED = {
    "py_dataset_shuffled": OWN_MODULES, "function_shuffled": OWN_MODULES, "function_unseeded": OWN_MODULES,
    "tf_data_shuffled": FOREIGN, "torch_loader_shuffled": FOREIGN,
}  # fmt: skip
IN_THE_FIRST, IN_THE_SECOND = "step-00000001", "step-00000005"  # of 3 batches an epoch
for kind, order in RESUMED.items():
    given = {"settings": {"kind": kind, "epochs": 3}, "checkpoints": {"every": {"steps": 1}, "keep": 99}}
    cells.add(f"whole-{kind}", "streams", (2,), order=order, **given)
    for place in (IN_THE_FIRST, IN_THE_SECOND):
        where = f"whole-{kind}-2/checkpoints/{place}"
        cells.add(f"{kind}-{place}", "streams", (2,), order=order, **given | {"checkpoints": {}}, resume=where)
if find_spec("grain") is not None:  # it imports jax where that is installed
    cells.add("grain-map", "streams", order=FOREIGN, settings={"kind": "grain_map", "epochs": 3})
    for kind in ("grain_iter", "grain_loader"):
        given = {"settings": {"kind": kind, "epochs": 3}, "checkpoints": {"every": {"steps": 1}, "keep": 99}}
        cells.add(f"whole-{kind}", "streams", (2,), order=FOREIGN, **given)
        where = f"whole-{kind}-2/checkpoints/{IN_THE_SECOND}"
        cells.add(f"resumed-{kind}", "streams", (2,), order=FOREIGN, **given | {"checkpoints": {}}, resume=where)
given = {"settings": {"kind": "tf_data_shuffled", "steps_per_epoch": 2, "epochs": 4}}
cells.add("whole-steps", "streams", (2,), order=FOREIGN, **given, checkpoints={"every": {"steps": 1}, "keep": 99})
cells.add(
    "resumed-steps", "streams", (2,), order=FOREIGN, **given, checkpoints={},
    resume="whole-steps-2/checkpoints/step-00000005",
)  # fmt: skip
cells.add("constants", "constants")
cells.add("memory-map", "memory_map", (2,), settings={"path": "FOLDER/x.bin"})

EPOCH = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]  # targets, batch by batch
FIRST_EPOCH, THREE_EPOCHS = 5.8125, 3 * EPOCH

PROJECT = Path(__file__).parents[2]
EXAMPLES = """
import json
import keras
import numpy as np
from kmgpu.data.feed import Wish
from kmgpu.data.stream_feed import open_feed

for text in json.load(open("examples.json")):
    names = {"np": np, "keras": keras}
    exec(text, names)
    feed = open_feed(names["train"], Wish("train", batch_size=16))
    feed.first()
    print(sum(batch.size for (batch,) in feed.epoch(0)))
"""
OF_GRAIN = """
import json, streams
print(json.dumps([y.ravel().tolist() for _, y in streams.KINDS["{}"](10, 4, "")]))
"""


def trained(batches: list[list[int]]) -> float:
    """What plain SGD makes of the one weight: each step moves it half the way to the mean of the targets."""
    weight = 0.0
    for targets in batches:
        weight += 0.5 * (float(np.mean(targets)) - weight)
    return weight


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-5)


@everywhere
@pytest.mark.parametrize("name", ("py-dataset", "py-dataset-processes", "generated", "tf-data"))
def test_a_stream_trains_as_arrays_do(ran, backend, devices, name):
    run = ran(backend, name, devices)
    assert run.weight == close(trained(THREE_EPOCHS))
    assert run.history[0]["loss"] == close(16.753125)
    start = run.outcome["start"]
    assert (start["batch_size"], start["rows"]) == (4, None)
    assert start["steps_per_epoch"] == (None if name == "generated" else 3)


@each_backend
@pytest.mark.parametrize("name", ("generator", "torch-loader"))
def test_a_generator_and_a_torch_loader_train_on_every_backend(ran, backend, name):
    assert ran(backend, name, 2).weight == close(trained(EPOCH if name == "generator" else THREE_EPOCHS))


@everywhere
def test_each_batch_is_read_once_by_one_process_and_an_epoch_ends_once_after_its_last_batch(ran, backend, devices):
    run = ran(backend, "py-dataset", devices)
    for name, batches in (("train.txt", 3), ("validation.txt", 2)):
        lines = [line.split(",") for line in run.lines(name)]
        assert len({process for process, _ in lines}) == 1
        epoch = [*(f"batch {number}" for number in range(batches)), "end"]
        assert [text for _, text in lines] == 3 * epoch
    assert run.history[0]["val_loss"] == close(4 + (FIRST_EPOCH - 3) ** 2)


@everywhere
def test_a_note_says_that_threads_stand_in_for_the_processes_of_a_pydataset(ran, backend, devices):
    notes = ran(backend, "py-dataset-processes", devices).outcome["notes"]
    assert any("asks for processes to read it, and is read by 2 threads" in note for note in notes)


@everywhere
@pytest.mark.parametrize("name", ("py-dataset", "generated", "tf-data"))
def test_the_order_hash_is_that_of_the_contents_whatever_backend_devices_and_kind(ran, backend, devices, name):
    order = OrderHash()
    for step, targets in enumerate(THREE_EPOCHS):
        y = np.array(targets, np.float32)[:, None]
        order.add(step, np.arange(len(y)), content_hashes([np.ones_like(y), y]))
    assert ran(backend, name, devices).outcome["hashes"]["sample_order"] == OrderHash.join(order.lanes)


@everywhere
def test_with_steps_per_epoch_an_epoch_goes_on_in_the_stream_and_validation_begins_anew(ran, backend, devices):
    run = ran(backend, "tf-data-steps", devices)
    batches = [list(range(4 * number, 4 * number + 4)) for number in (0, 1, 2, 0, 1, 2)]
    assert run.weight == close(trained(batches))
    assert run.outcome["steps"] == 6 and run.outcome["epochs"] == 3
    for epoch in range(3):
        weight = trained(batches[: 2 * epoch + 2])
        assert run.history[epoch]["val_loss"] == close(np.mean((np.arange(4) - weight) ** 2))


JOINED = [*(set(RESUMED) - {"function_unseeded"}), "steps"]


@each_backend
@pytest.mark.parametrize("kind", sorted(JOINED))
def test_a_stream_that_is_resumed_in_an_epoch_joins_without_a_repeat_or_a_gap(ran, backend, kind):
    whole = ran(backend, f"whole-{kind}", 2)
    assert len(set(whole.losses)) == len(whole.losses)  # each batch of each epoch is another one
    places = (IN_THE_FIRST, IN_THE_SECOND)
    names = {"resumed-steps": 5} if kind == "steps" else {f"{kind}-{place}": int(place[5:]) for place in places}
    for name, done in names.items():
        resumed = ran(backend, name, 2)
        assert resumed.losses == whole.losses[done:], name
        assert resumed.outcome["hashes"] == whole.outcome["hashes"], name
        assert not any("other batches" in note for note in resumed.outcome["notes"]), name


@everywhere
def test_rows_of_grain_train_as_arrays_do(ran, backend, devices):
    pytest.importorskip("grain", reason="it is a package of the recipe's own: pip install grain")
    assert ran(backend, "grain-map", devices).weight == close(trained(THREE_EPOCHS))


@each_backend
@pytest.mark.parametrize("kind", ("grain_iter", "grain_loader"))
def test_streams_of_grain_train_as_numpy_and_go_on(ran, backend, kind):
    pytest.importorskip("grain", reason="it is a package of the recipe's own: pip install grain")
    whole, resumed = ran(backend, f"whole-{kind}", 2), ran(backend, f"resumed-{kind}", 2)
    answer = cells.python("-c", OF_GRAIN.format(kind), folder=cells.RECIPES, KERAS_BACKEND="numpy")
    targets = json.loads(answer.out)
    assert sorted(sum(targets, [])) == list(range(10)) != sum(targets, [])
    assert whole.weight == close(trained(3 * targets))
    assert resumed.losses == whole.losses[5:] and resumed.outcome["hashes"] == whole.outcome["hashes"]


@each_backend
def test_a_stream_without_a_seed_is_told_to_have_lost_its_order(ran, backend):
    for place in (IN_THE_FIRST, IN_THE_SECOND):
        notes = ran(backend, f"function_unseeded-{place}", 2).outcome["notes"]
        assert len([note for note in notes if "give other batches than before the checkpoint" in note]) == 1


@everywhere
def test_the_wait_for_data_is_reported_apart(ran, backend, devices):
    events = ran(backend, "tf-data", devices).rundir.events()
    windows = [event for event in events if event["event"] == "window"]
    epochs = [event for event in events if event["event"] == "epoch"]
    assert all(0 <= window["waiting_seconds"] <= window["seconds"] for window in windows)
    assert all(0 < epoch["waiting_seconds"] <= epoch["seconds"] for epoch in epochs)


@everywhere
def test_constants_made_in_a_layer_are_on_its_device(ran, backend, devices):
    assert ran(backend, "constants", devices).weight == close(3.125)


@each_backend
def test_a_large_memory_map_is_copied_by_no_process(ran, backend):
    run = ran(backend, "memory-map", 2)
    data = (run.rundir.path / "x.bin").stat()
    assert data.st_size > 2.2 * 2**30
    # With the framework, pages of the map, and what is left of the cells before; a copy would come on top of these.
    assert max(run.outcome["peak_bytes"]) < 1.2 * data.st_size
    assert data.st_blocks * 512 < 2**30  # a hole in a file: nothing was written


def test_an_error_of_a_stream_ends_all_processes_and_names_the_batch(tmp_path):
    with cells.time_limit(60), pytest.raises(RunFailed) as failure:
        training.train(
            cells.RECIPES / "streams.py", backend="torch", devices=2, device_kind="cpu", out=tmp_path / "run",
            settings={"bad_batch": 1},
        )  # fmt: skip
    assert "ValueError: bad batch 1; batch 1 of train" in str(failure.value)
    assert str(failure.value).startswith("process 0 of 2 ")
    assert not cells.processes_of(tmp_path)


def test_each_example_of_the_page_is_64_samples(tmp_path):
    page = (PROJECT / "docs" / "recipes.md").read_text(encoding="utf-8")
    section = page.partition("## Data\n")[2].partition("## What is honoured")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "examples.json").write_text(json.dumps(examples))
    answer = cells.python("-c", EXAMPLES, folder=tmp_path, KERAS_BACKEND="torch")
    assert answer.code == 0, answer.err
    assert answer.out.split() == ["64"] * 7
