"""A study file asks for comparisons, all of them checked before anything starts, and made one after the other."""

from __future__ import annotations

import sys
from pathlib import Path

import fake_runs
import pytest

from kmgpu import cli, environment, proof, studyfile, training
from kmgpu.errors import Interrupted, RunFailed, UsageError


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A machine without GPUs, where every framework is installed, and two recipes beside the study file."""
    monkeypatch.setattr(environment, "_nvml_gpus", lambda: [])
    monkeypatch.setattr(environment, "interpreter", lambda backend, python=None: sys.executable)
    monkeypatch.setattr(proof, "prove", lambda recipe, **asked: proof.Proof(True, "proved", {}))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text("def recipe(*, batch_size=64, epochs=3, rate=0.1):\n    ...\n")
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    """The directories of the runs that were made; ``trained.failures`` are raised by the runs of that name, once."""

    class Trained(list):
        failures: dict[str, Exception] = {}

    made = Trained()

    def train(recipe, *, out, backend, devices, batch_size, settings, epochs, seed, track, initial_weights, **rest):
        made.append(str(out))
        job = fake_runs.job(
            backend, devices, recipe=str(recipe), batch_size=batch_size or 64, epochs=epochs, settings=settings,
            seed=seed, track=track, initial_weights=initial_weights,
        )  # fmt: skip
        error = made.failures.pop("/".join(Path(out).parts[-2:]), None)
        if error is not None:
            fake_runs.write(Path(out), job, status="failed", reason=str(error))
            raise error
        fake_runs.write(Path(out), job)

    monkeypatch.setattr(training, "train", train)
    made.failures = {}
    return made


def write(text: str) -> Path:
    Path("study.toml").write_text(text)
    return Path("study.toml")


def test_a_list_makes_a_comparison_for_each_and_several_lists_all_of_them_combined():
    factors = 'recipe = ["one.py", "two.py"]\nbatch_size = [32, 64]\nseed = [3]\n'
    parts = studyfile.read(write(factors + 'backends = ["torch", "jax"]\nepochs = 2'))
    assert [part.name for part in parts] == [
        "one-batch_size-32", "one-batch_size-64", "two-batch_size-32", "two-batch_size-64",
    ]  # fmt: skip
    assert {(part.asked.backends, part.asked.seed, part.asked.epochs) for part in parts} == {(("torch", "jax"), 3, 2)}
    assert [part.asked.batch_size for part in parts] == [32, 64] * 2
    assert {part.asked.repeats for part in parts} == {1}


def test_settings_are_those_of_all_recipes_and_those_in_the_table_of_one():
    file = write('recipe = ["one.py", "two.py"]\n[settings]\nrate = 0.5\n[settings.two]\nrate = 0.25\nepochs = 7')
    assert [part.asked.settings for part in studyfile.read(file)] == [{"rate": 0.5}, {"rate": 0.25, "epochs": 7}]


def test_recipes_are_found_beside_the_file_and_by_name(folder, monkeypatch):
    file = write('recipe = ["one.py", "digits_mlp"]').absolute()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert [Path(part.asked.recipe).stem for part in studyfile.read(file)] == ["one", "digits_mlp"]


def test_a_budget_is_shared_by_the_comparisons():
    parts = studyfile.read(write('recipe = "one.py"\nseed = [1, 2, 3]\nbudget = "30m"'))
    assert [part.asked.budget_seconds for part in parts] == [600.0] * 3
    assert [part.asked.repeats for part in parts] == [None] * 3


def test_comparisons_are_made_in_turn_and_one_that_fails_takes_none_along(trained):
    trained.failures["one/torch-ddp-1-r0"] = UsageError("the recipe returns None")
    folder = studyfile.create(write('recipe = ["one.py", "two.py"]\nbackends = ["torch", "jax"]\ndevices = [1]'))
    lines: list[str] = []
    seen: list[str] = []
    made = studyfile.go_on(folder, show=lines.append, made=lambda part: seen.append(part.name))
    assert folder.parent == Path("studies") and folder.name.endswith("-study")
    assert (folder / "study.toml").read_text() == Path("study.toml").read_text()
    assert [(part.name, part.result is not None) for part in made] == [("one", False), ("two", True)]
    assert str(made[0].error) == "the recipe returns None" and seen == ["one", "two"]
    assert "comparison 2 of 2: two" in lines and "    the recipe returns None" in lines
    assert (folder / "two" / "comparison.md").exists()


def test_an_interrupted_study_goes_on_with_what_it_lacks(trained):
    trained.failures = {
        "one/jax-data_parallel-1-r0": RunFailed("out of luck"), "two/torch-ddp-1-r0": Interrupted("stopped", 2),
    }  # fmt: skip
    file = write('recipe = ["one.py", "two.py"]\nbackends = ["torch", "jax"]\ndevices = [1]')
    folder = studyfile.create(file, Path("s"))
    with pytest.raises(Interrupted):
        studyfile.go_on(folder)
    (folder / "two" / "torch-ddp-1-r0" / "outcome.json").unlink()
    Path("study.toml").unlink()
    before = len(trained)
    one, two = studyfile.go_on(folder)
    assert [Path(path).name for path in trained[before:]] == ["torch-ddp-1-r0", "jax-data_parallel-1-r0"]
    assert one.result is not None and [run.ok for run in one.result.runs] == [True, False]
    assert two.result is not None and two.result.ok


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('backends = ["jax"]', "study.toml names no recipe"),
        ('recipe = "one.py"\nbackend = 1', "has 'backend' (did you mean 'backends'?); it may have recipe, backends"),
        ('recipe = "one.py"\nout = "x"', "has 'out'"),
        ('recipe = "one.py', "is not TOML"),
        ('recipe = []', "recipe is an empty list"),
        ('recipe = [1]', "a recipe is 1; it is a name or a file"),
        ('recipe = "tree.py"', "study.toml: tree.py does not exist"),
        ('recipe = "digits"', "study.toml: no recipe 'digits'"),
        ('recipe = ["one.py", "one.py"]', "asks twice for one"),
        ('recipe = "one.py"\nseed = [1, 1]', "asks twice for one-seed-1"),
        ('recipe = "one.py"\nseed = [0, -1]', "--seed is -1"),
        ('recipe = "one.py"\nseed = ["a"]', "--seed is 'a'"),
        ('recipe = "one.py"\ndevices = 2', "--devices is 2; it is a list"),
        ('recipe = "one.py"\nprecision = "float12"', "--precision is 'float12'"),
        ('recipe = "one.py"\nprecision = ["float32", "tf32"]', "--precision tf32 is a mode of GPUs"),
        ('recipe = "one.py"\nrepeats = 2\nbudget = "1h"', "has repeats and budget"),
        ('recipe = "one.py"\nbudget = "soon"', "budget is 'soon'"),
        ('recipe = "one.py"\nprice = "yes"', "price is 'yes'; it is true or false"),
        ('recipe = "one.py"\nsettings = 3', "settings is 3; it is a table"),
        ('recipe = "one.py"\n[settings]\nepoch = 3', "study.toml: one has no setting 'epoch'"),
        ('recipe = "one.py"\n[settings.one]\nepoch = 3', "study.toml: one has no setting 'epoch'"),
        ('recipe = "one.py"\nscaling = "both"', "--scaling is 'both'"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_said_before_anything_starts(trained, text, said):
    with pytest.raises(UsageError) as caught:
        studyfile.create(write(text))
    assert said in str(caught.value)
    assert not trained and not Path("studies").exists()


def test_a_file_that_cannot_be_read_and_a_directory_that_is_no_study_are_named(folder):
    with pytest.raises(UsageError, match="cannot read the study file none.toml: No such file"):
        studyfile.create(Path("none.toml"))
    Path("binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read the study file binary.toml: it is not a text"):
        studyfile.create(Path("binary.toml"))
    (folder / "s").mkdir()
    (folder / "s" / "parts.json").write_text('{"format": 2, "parts": []}')
    with pytest.raises(UsageError, match="has format 2"):
        studyfile.go_on(folder / "s")
    with pytest.raises(UsageError, match="not an empty directory"):
        studyfile.create(write('recipe = "one.py"'), folder / "s")


def test_the_command_makes_a_study_and_a_report_over_it_and_goes_on_with_it(trained, capsys):
    file = write('recipe = ["one.py", "two.py"]\nbackends = ["torch", "jax"]\ndevices = [1]\nrepeats = 2')
    assert cli.run(["study", str(file), "--out", "s"]) == 0
    out = capsys.readouterr().out
    assert "comparison 2 of 2: two" in out and "A report over all of them is in s/report.html" in out
    page = Path("s/report.html").read_text()
    assert "one" in page and "two" in page and len(trained) == 8
    assert cli.run(["study", "s", "--quiet"]) == 0 and len(trained) == 8
    assert cli.run(["study", "s/two"]) == 0 and len(trained) == 8
    assert cli.run(["report", "--check", "s/report.html"]) == 0
