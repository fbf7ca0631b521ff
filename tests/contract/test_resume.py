"""A run that goes on is the run that was not interrupted: bit for bit where it was, and within 1e-5 elsewhere."""

from __future__ import annotations

import csv

import cells
import numpy as np
import pytest

from kmgpu import checkpoints, resumption, training
from kmgpu.backends import BACKENDS
from kmgpu.rundir import RunDir
from kmgpu.worker import checkpoint

pytestmark = pytest.mark.workers

EXACT_DEVICES = (1, 2)
OPTIMIZERS = ("adam", "momentum", "average", "loss_scale", "accumulating")
SAVED = {"on_stop": True, "every": {"steps": 7}}
MIDDLE, LATER = "step-00000007", "step-00000014"  # of 15 steps, 5 in an epoch

DROPOUT = {"settings": {"dropout": 0.4}, "seed": 3}
EXACT = [(backend, devices) for backend in BACKENDS for devices in EXACT_DEVICES] + [("torch", 4)]

for devices in (*EXACT_DEVICES, 4):
    where = ("torch",) if devices == 4 else BACKENDS  # sums of four processes depend on DDP's buckets
    cells.add("whole", "resumed", (devices,), backends=where, checkpoints=SAVED, **DROPOUT)
    for name in (MIDDLE, LATER):
        cells.add(
            f"from-{name}", "resumed", (devices,), backends=where, checkpoints={}, **DROPOUT,
            resume=f"whole-{devices}/checkpoints/{name}",
        )  # fmt: skip
for optimizer in OPTIMIZERS:
    cells.add(f"whole-{optimizer}", "resumed", (2,), settings={"optimizer": optimizer}, checkpoints=SAVED)
PORTABLE = "portable"
cells.add(f"whole-{PORTABLE}", "resumed", (2,), checkpoints=SAVED, randomness="portable", **DROPOUT)

DECAY = {"rows": 4, "optimizer": "Adam", "learning_rate": 0.1, "decay": 0.5}
for devices in EXACT_DEVICES:
    cells.add("k25", "r0", (devices,), settings=DECAY, epochs=3, checkpoints={"every": {"epochs": 1}})
    cells.add(
        "k25-resumed", "r0", (devices,), settings=DECAY, epochs=3, checkpoints={"every": {"epochs": 1}},
        resume=f"k25-{devices}/checkpoints/step-00000002",
    )  # fmt: skip
ADAM = {"rows": 8, "optimizer": "Adam", "learning_rate": 0.1}
cells.add("k08", "r0", (2,), settings=ADAM, epochs=3, checkpoints={"every": {"epochs": 1}})
cells.add("k60", "r0", (4,), settings=ADAM, epochs=3, checkpoints={"every": {"epochs": 1}})
cells.add("k60", "r0", (2,), settings=ADAM, epochs=3, checkpoints={}, resume="k60-4/checkpoints/step-00000004")

EACH_STEP, SHARED = {"every": {"steps": 1}, "keep": 99}, "FOLDER/../table"
IN_AN_EPOCH, BETWEEN = "step-00000003", "step-00000004"  # of 2 steps an epoch
for kind, places in {"all": (IN_AN_EPOCH, BETWEEN), "swap": (BETWEEN,), "files": (IN_AN_EPOCH,)}.items():
    given = {"settings": {"kind": kind, "folder": SHARED}, "checkpoints": EACH_STEP}
    cells.add(f"remembers-{kind}", "remembering", (2,), **given)
    for place in places:
        cells.add(
            f"remembers-{kind}-{place}", "remembering", (2,), **given,
            resume=f"remembers-{kind}-2/checkpoints/{place}",
        )  # fmt: skip


@pytest.mark.parametrize(("backend", "devices"), EXACT)
@pytest.mark.parametrize("name", [MIDDLE, LATER])
def test_on_the_same_devices_it_is_bit_for_bit_the_run_that_was_not_interrupted(ran, backend, devices, name):
    whole, resumed = ran(backend, "whole", devices), ran(backend, f"from-{name}", devices)
    assert resumed.outcome["start"]["resumed"]["updates"] == int(name[5:])
    for kind in ("final_weights", "sample_order", "initial_weights"):
        assert resumed.outcome["hashes"][kind] == whole.outcome["hashes"][kind] is not None, kind
    assert resumed.history == whole.history and len(resumed.history) == 3
    assert resumed.losses == whole.losses[int(name[5:]) :]
    assert resumed.outcome["steps"] == whole.outcome["steps"] == 15


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("devices", EXACT_DEVICES)
def test_each_step_draws_from_another_seed(ran, backend, devices):
    """So that the test above can fail: what it restores is not what a run starts with."""
    folder = ran(backend, "whole", devices).rundir.path / "checkpoints"
    found = [checkpoint.read(checkpoints.read(folder / name)) for name in (MIDDLE, LATER)]
    for word in ("seed_generator_state", "/iteration", "_velocity", "moving_mean"):
        (name, *_) = [name for name in found[0] if word in name]
        assert not np.array_equal(found[0][name], found[1][name]), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("devices", EXACT_DEVICES)
def test_k25_the_schedule_and_the_iterations_go_on(ran, backend, devices):
    whole, resumed = ran(backend, "k25", devices), ran(backend, "k25-resumed", devices)
    assert resumed.weight == pytest.approx(0.17476, abs=5e-6)
    assert resumed.outcome["hashes"] == whole.outcome["hashes"]
    last = checkpoint.read(checkpoints.find(resumed.rundir.path)[0])
    (iterations,) = [int(value) for name, value in last.items() if name.endswith("/iteration")]
    assert iterations == 3


def remembered(run: cells.Ran) -> dict:
    """What callbacks remembered in the end, with the arrays."""
    last = checkpoints.find(run.rundir.path)[0]
    arrays = {name: value for name, value in checkpoint.read(last).items() if name.startswith("callbacks/")}
    return {"position": last.position, **last.manifest["callbacks"]} | {
        name: value.tolist() for name, value in arrays.items()
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "place"), [("all", IN_AN_EPOCH), ("all", BETWEEN), ("swap", BETWEEN)])
def test_callbacks_go_on_with_what_they_remember_and_nothing_is_done_twice(ran, backend, kind, place):
    whole, resumed = ran(backend, f"remembers-{kind}", 2), ran(backend, f"remembers-{kind}-{place}", 2)
    assert resumed.losses == whole.losses[int(place[5:]) :]
    assert resumed.history == whole.history
    assert resumed.outcome["hashes"] == whole.outcome["hashes"]
    assert remembered(resumed) == remembered(whole)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_callbacks_remember_is_what_they_have_done(ran, backend):
    """So that the test above can fail: it stopped early, and what was remembered is not what a run begins with."""
    whole = ran(backend, "remembers-all", 2)
    assert len(whole.history) == 4 and "EarlyStopping ended" in whole.outcome["notes"][-1]
    found = remembered(whole)
    early = found["remembered"]["EarlyStopping-0"]["attributes"]
    assert (early["wait"], early["best_epoch"], early["stopped_epoch"]) == (3, 0, 3)
    assert early["best"] == whole.history[0]["val_loss"]
    assert found["remembered"]["ReduceLROnPlateau-0"]["attributes"]["wait"] == 1
    counts = found["remembered"]["Counts-0"]["attributes"]
    assert counts["batches"] == 8 and counts["begun"] == {"dict": [[0, 1], [1, 1], [2, 1], [3, 1]]}
    assert found["settings"]["numbers"][0]["momentum"] == pytest.approx(0.5 * 0.75**4)
    middle = checkpoints.read(whole.rundir.path / "checkpoints" / IN_AN_EPOCH).manifest["callbacks"]
    assert not all(middle["settings"]["variables"])  # frozen in that epoch, and not in the recipe


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_table_goes_on_with_the_epochs_that_are_trained_again(ran, backend):
    whole, resumed = (ran(backend, name, 2) for name in ("remembers-files", f"remembers-files-{IN_AN_EPOCH}"))
    with (resumed.rundir.path.parent / "table" / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert [float(row["loss"]) for row in rows] == [epoch["loss"] for epoch in whole.history]
    notes = resumed.outcome["notes"]
    assert any("log.csv goes on; rows of epochs that are trained again are gone: 5" in note for note in notes)
    assert any("do not hold random (Generator) of the callback Forgets" in note for note in notes)


@pytest.fixture(scope="module")
def elsewhere(ran, tmp_path_factory):
    """Runs on each backend, on one device, from the checkpoints that each other backend wrote on two: one launch each.

    ``elsewhere(writer, reader, name)``; "k08" stays on two devices.
    """
    made: dict[str, dict] = {}

    def launch(reader: str) -> dict:
        folder = tmp_path_factory.mktemp(f"elsewhere-{reader}")
        found = {}
        for writer in (backend for backend in BACKENDS if backend != reader):
            for optimizer in (*OPTIMIZERS, PORTABLE):
                found[writer, optimizer] = ran(writer, f"whole-{optimizer}", 2).rundir.path / "checkpoints" / MIDDLE, 1
            path = ran(writer, "remembers-all", 2).rundir.path / "checkpoints" / IN_AN_EPOCH
            found[writer, "remembers"] = path, 1
            found[writer, "k08"] = ran(writer, "k08", 2).rundir.path / "checkpoints" / "step-00000004", 2
        rundirs = {}
        for key, (path, devices) in found.items():
            kept = checkpoints.read(path)
            wishes = resumption.wishes(kept, {"backend": reader, "devices": devices, "checkpoints": {}})
            job = training.make_job(resumption.recipe_of(kept, None), **wishes)
            rundirs[key] = RunDir.create(folder / "-".join(key), job)
        error, _ = cells.launch(list(rundirs.values()))
        assert error is None, error
        return {key: cells.Ran(rundir, []) for key, rundir in rundirs.items()}

    def get(writer: str, reader: str, name: str) -> cells.Ran:
        if reader not in made:
            made[reader] = launch(reader)
        return made[reader][writer, name]

    return get


directions = pytest.mark.parametrize(
    ("writer", "reader"), [(writer, reader) for writer in BACKENDS for reader in BACKENDS if writer != reader]
)


@directions
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_on_another_backend_and_fewer_devices_it_goes_on_with_the_optimizers_state(
    ran, elsewhere, writer, reader, optimizer
):
    whole, resumed = ran(writer, f"whole-{optimizer}", 2), elsewhere(writer, reader, optimizer)
    np.testing.assert_allclose(resumed.losses, whole.losses[7:], rtol=1e-5)
    for name, expected in whole.weights.items():
        apart = np.abs(resumed.weights[name] - expected).max() / np.abs(expected).max()
        assert apart < 1e-5, (name, apart)
    assert resumed.outcome["hashes"]["sample_order"] == whole.outcome["hashes"]["sample_order"]
    for epoch, expected in zip(resumed.history, whole.history, strict=True):
        assert epoch == pytest.approx(expected, rel=1e-5)


@directions
def test_callbacks_go_on_elsewhere_with_what_they_remember(ran, elsewhere, writer, reader):
    whole, resumed = ran(writer, "remembers-all", 2), elsewhere(writer, reader, "remembers")
    np.testing.assert_allclose(resumed.losses, whole.losses[3:], rtol=1e-5)
    assert len(resumed.history) == len(whole.history) == 4
    for name, expected in whole.weights.items():
        np.testing.assert_allclose(resumed.weights[name], expected, rtol=1e-5)


@directions
def test_in_the_middle_of_an_epoch_it_goes_on_with_the_same_dropout_on_another_backend(ran, elsewhere, writer, reader):
    whole, resumed = ran(writer, f"whole-{PORTABLE}", 2), elsewhere(writer, reader, PORTABLE)
    assert resumed.outcome["start"]["resumed"]["updates"] == 7  # of 5 in an epoch
    np.testing.assert_allclose(resumed.losses, whole.losses[7:], rtol=1e-5)
    for name, expected in whole.weights.items():
        np.testing.assert_allclose(resumed.weights[name], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@directions
def test_k08_a_run_goes_on_with_adam_on_two_devices_of_another_backend(ran, elsewhere, writer, reader):
    whole, resumed = ran(writer, "k08", 2), elsewhere(writer, reader, "k08")
    assert resumed.weight == pytest.approx(whole.weight, rel=1e-5)
    assert resumed.outcome["start"]["compiled"] == ran(reader, "k08", 2).outcome["start"]["compiled"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_k60_a_run_on_four_devices_goes_on_on_two(ran, backend):
    whole, resumed = ran(backend, "k60", 4), ran(backend, "k60", 2)
    assert resumed.weight == pytest.approx(whole.weight, rel=1e-6)
    assert resumed.history[:2] == whole.history[:2] and len(resumed.history) == 3
    names = [name.partition("/")[0] for name in checkpoint.read(checkpoints.find(whole.rundir.path)[0])]
    assert not any("module" in name for name in names)
