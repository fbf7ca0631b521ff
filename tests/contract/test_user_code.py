"""Recipes as people write them: models at module level, what pickle refuses, frameworks that are asked too early."""

from __future__ import annotations

import cells
import pytest

from kmgpu.backends import BACKENDS, find

pytestmark = pytest.mark.workers
each_backend = pytest.mark.parametrize("backend", BACKENDS)

cells.add("early-devices", "early_devices", settings={"log": "FOLDER/devices.txt"}, order=-1)
cells.add("module-level", "module_level", devices=(2,))
cells.add("unpicklable", "unpicklable", devices=(2,))

SCRIPT = """
import keras  # before kmgpu, and on whatever backend
import kmgpu

with open("script.txt", "a") as file:
    file.write("once\\n")
result = kmgpu.train({recipe!r}, backend="torch", devices=2, device_kind="cpu", out="run")
((name, weight),) = result.weights.items()
print(name, float(weight[0]), result.outcome["start"]["framework"])
"""


@each_backend
@pytest.mark.parametrize("devices", cells.DEVICES)
def test_each_device_computes_its_own_rows_though_the_recipe_initialised_the_framework(ran, backend, devices):
    run = ran(backend, "early-devices", devices)
    assert run.weight == pytest.approx(0.5 * 3.5, rel=1e-5)
    shares = {tuple(line.split(",")) for line in run.lines("devices.txt")}
    computing = {device for device, rows in shares if rows == str(8 // devices)}
    assert len(computing) == devices
    if not find(backend).one_process_per_device:
        assert {"0", "1", "2", "3"}.issuperset(computing)


@each_backend
def test_a_model_built_at_module_level_trains(ran, backend):
    assert ran(backend, "module-level", 2).weight == pytest.approx(3.125, rel=1e-5)


@each_backend
def test_lambdas_and_local_classes_train_and_the_backend_is_the_one_asked_for(ran, backend):
    run = ran(backend, "unpicklable", 2)  # the file sets KERAS_BACKEND to torch
    assert run.weight == pytest.approx(3.125, rel=1e-5)
    assert run.outcome["start"]["framework"].startswith(f"{backend} ")


@each_backend
def test_a_model_of_local_classes_is_still_saved_or_a_note_says_why_not(ran, backend):
    run = ran(backend, "unpicklable", 2)
    assert run.rundir.model_file.exists() or any("model.keras was not written" in n for n in run.outcome["notes"])
    assert run.rundir.weights_file.exists()


def test_a_script_without_main_guard_runs_once_and_gets_the_trained_weights(tmp_path):
    recipe = str(cells.RECIPES / "unpicklable.py")
    (tmp_path / "script.py").write_text(SCRIPT.format(recipe=recipe))
    answer = cells.python("script.py", folder=tmp_path, KERAS_BACKEND="jax", COUNT_FILE=str(tmp_path / "count.txt"))
    assert answer.code == 0, answer.err
    name, weight, framework, _ = answer.out.split()[-4:]
    assert (name, framework) == ("sequential/scale/kernel", "torch") and float(weight) == pytest.approx(3.125, rel=1e-5)
    assert (tmp_path / "script.txt").read_text() == "once\n"
    assert len((tmp_path / "count.txt").read_text().split()) == 2  # one import of the recipe in each process
