"""What is wrong with a run, an input or an output is said before anything starts."""

from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path

import fake_runs
import numpy as np
import pytest

from kmgpu import exporting, using
from kmgpu.errors import MissingEnvironment, UsageError
from kmgpu.rundir import RunDir


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def refuse(*given, **named):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(using.training, "run", refuse)
    monkeypatch.setattr("kmgpu.environment.installed", lambda modules: dict.fromkeys(modules, "1"))


@pytest.fixture
def trained(tmp_path) -> RunDir:
    """A run of a model with the inputs a (rows of 2) and b (rows of any length)."""
    recipe = tmp_path / "recipe.py"
    recipe.write_text('"""Two."""\ndef recipe(): ...\n')
    job = dataclasses.replace(fake_runs.job("torch", 1), recipe=str(recipe), settings={})
    rundir = RunDir.create(tmp_path / "run", job)
    rundir.weights_file.touch()
    write_model(rundir, {"a": [None, 2], "b": [None, None]})
    return rundir


def write_model(rundir: RunDir, inputs: dict) -> None:
    layers = [
        {"class_name": "InputLayer", "config": {"name": name, "batch_shape": shape}} for name, shape in inputs.items()
    ]
    with zipfile.ZipFile(rundir.model_file, "w") as archive:
        archive.writestr("config.json", json.dumps({"config": {"layers": layers}}))


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


ONES = np.ones((3, 2))


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"a": ONES}, "holds a, the model has the inputs a, b"),
        ({"a": ONES, "c": ONES}, "holds a, c, the model has the inputs a, b"),
        ({"a": np.ones((3, 5)), "b": ONES}, "a has rows of shape (5,), the model takes (2)"),
        ({"a": np.ones(3), "b": ONES}, "a has rows of shape (), the model takes (2)"),
        ({"a": ONES, "b": np.ones((4, 2))}, "different numbers of rows (a 3, b 4)"),
        ({"a": ONES, "b": np.full((3, 2), "x")}, "b has dtype <U1"),
        ({"a": np.ones((0, 2)), "b": np.ones((0, 2))}, "at least one row"),
        ({"a": ONES, "b": np.float32(1)}, "b has shape ()"),
    ],
)
def test_an_input_that_the_model_does_not_take_is_refused(tmp_path, trained, arrays, said):
    with pytest.raises(UsageError) as refused:
        using.predict(trained.path, saved(tmp_path / "x.npz", **arrays))
    assert said in str(refused.value)


def test_one_input_may_have_any_name(tmp_path, trained):
    write_model(trained, {"pixels": [None, 2]})
    with pytest.raises(AssertionError, match="a worker was started"):
        using.predict(trained.path, saved(tmp_path / "x.npz", anything=ONES))
    with pytest.raises(UsageError, match=r"pixels has rows of shape \(3,\)"):
        using.predict(trained.path, np.ones((2, 3)))


def test_files_that_are_no_arrays_are_refused(tmp_path, trained):
    (tmp_path / "x.npy").write_bytes(b"no array")
    np.save(tmp_path / "objects.npy", np.array([{}, {}]), allow_pickle=True)
    for name, said in [("x.npy", "cannot be read"), ("x.csv", ".npy or .npz"), ("y.npy", "no such file")]:
        with pytest.raises(UsageError, match=said):
            using.predict(trained.path, tmp_path / name)
    with pytest.raises(UsageError, match="dtype object"):
        using.predict(trained.path, tmp_path / "objects.npy")


def test_an_output_that_exists_is_refused_without_force(tmp_path, trained):
    x, y = saved(tmp_path / "x.npz", a=ONES, b=ONES), tmp_path / "y.npy"
    y.write_text("precious")
    with pytest.raises(UsageError, match="--force"):
        using.predict(trained.path, x, output=y)
    assert y.read_text() == "precious"
    with pytest.raises(AssertionError, match="a worker was started"):
        using.predict(trained.path, x, output=y, force=True)
    with pytest.raises(UsageError, match="no directory"):
        using.predict(trained.path, x, output=tmp_path / "nowhere" / "y.npy")
    with pytest.raises(UsageError, match=".npy for one output or .npz for several"):
        using.predict(trained.path, x, output=tmp_path / "y.csv")


def test_a_run_without_what_is_asked_for_is_refused(trained):
    with pytest.raises(UsageError, match="no validation data; use --data train"):
        using.evaluate(trained.path)
    with pytest.raises(UsageError, match="did you mean 'train'"):
        using.evaluate(trained.path, data="trian")
    Path(trained.job().recipe).unlink()
    with pytest.raises(UsageError, match="is not at .*recipe.py any more"):
        using.evaluate(trained.path, data="train")
    trained.weights_file.unlink()
    with pytest.raises(UsageError, match="has no weights.safetensors, its status is unfinished"):
        using.evaluate(trained.path, data="train")
    with pytest.raises(UsageError, match="is not a run directory"):
        using.evaluate(trained.path / "nowhere")


def test_an_export_that_cannot_be_made_is_refused(tmp_path, monkeypatch, trained):
    with pytest.raises(UsageError, match="did you mean 'keras'"):
        exporting.export(trained.path, "kears")
    with pytest.raises(UsageError, match="ends in .weights.h5"):
        exporting.export(trained.path, "weights", output=tmp_path / "mine.h5")
    (tmp_path / "mine.keras").touch()
    with pytest.raises(UsageError, match="--force"):
        exporting.export(trained.path, "keras", output=tmp_path / "mine.keras")
    monkeypatch.setattr("kmgpu.environment.installed", lambda names: {name: "1" for name in names if name != "onnx"})
    monkeypatch.setattr("kmgpu.environment.packages", lambda path, names: dict.fromkeys(names))
    with pytest.raises(MissingEnvironment, match=r"needs onnx and onnxscript, .* -m pip install onnx onnxscript`"):
        exporting.export(trained.path, "onnx")
    trained.model_file.unlink()
    with pytest.raises(UsageError, match="no model.keras .* use --format weights"):
        exporting.export(trained.path, "keras", output=tmp_path / "other.keras")
    assert not (trained.path / "exports").exists() or not list((trained.path / "exports").iterdir())
