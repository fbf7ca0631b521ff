"""A parity check runs the reference first, each backend in one launch, keeps what fails, and tells it all."""

from __future__ import annotations

import copy
import io
import sys
from pathlib import Path

import fake_parity
import pytest
from fake_parity import cell, off, reference
from rich.console import Console

import kmgpu
from kmgpu import environment, proving, training
from kmgpu.errors import Interrupted, RunFailed, UsageError
from kmgpu.report import matrix
from kmgpu.report import parity as report
from kmgpu.rundir import read_json

KERNEL = fake_parity.WEIGHTS[0]


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No GPU, every framework installed, and a working directory of its own."""
    monkeypatch.setattr(environment, "_nvml_gpus", lambda: [])
    monkeypatch.setattr(environment, "interpreter", lambda backend, python=None: sys.executable)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text('"""A tiny recipe."""\ndef recipe(*, batch_size=64, learning_rate=0.001):\n    ...\n')
    return path


class FakeRun:
    """Stands for kmgpu.training.run: writes what cells leave, or fails at some, as told by their names."""

    def __init__(self):
        self.launches = []  # names of the run directories of each
        self.jobs = {}
        self.cells = {}  # name -> parity.json
        self.failures = {}  # name -> error; the cells behind it get no turn
        self.before_the_first = set()  # names at which the process fails before it comes to any cell
        self.reference = reference(sizes=[64, 29])

    def __call__(self, rundirs, *, show):
        self.launches.append([rundir.path.name for rundir in rundirs])
        error = None
        for rundir in rundirs:
            name, job = rundir.path.name, rundir.job()
            self.jobs[name] = job
            error = error or self.failures.get(name)
            if error is not None:
                fake_parity.write(rundir, None, reason=str(error))
                if name not in self.failures or name in self.before_the_first:
                    rundir.events_file.unlink()
                continue
            if job.options["reference"] is not None:
                assert Path(job.initial_weights).is_file() and (Path(job.options["reference"]) / "parity").is_dir()
            own = self.reference if job.options["reference"] is None else self.cells.get(name, cell())
            fake_parity.write(rundir, copy.deepcopy(own))
        if error is not None:
            raise error


@pytest.fixture
def run(monkeypatch):
    fake = FakeRun()
    monkeypatch.setattr(training, "run", fake)
    return fake


def parity(recipe, **asked):
    return proving.parity(recipe, **{"backends": ["torch", "jax"], "devices": [1, 2], "steps": 2, **asked})


def test_where_a_recipe_wants_it_each_cell_is_compared_with_the_reference_for_its_devices(tmp_path):
    """For 2 devices the reference here made another number of steps, so that a cell cannot agree with the wrong one."""
    home = reference(as_devices={"1": reference(), "2": reference(steps=3)}, facts={"batch_norm": "replica"})
    cells = {"jax-data_parallel-1": cell(), "jax-data_parallel-2": cell(steps=3)}
    path = fake_parity.directory(tmp_path / "p", cells, home)
    result = report.read(path)
    assert [made.verdict.word for made in result.cells] == ["agrees", "agrees"]
    assert "Policy: batch_norm='replica'" in " ".join(matrix.heading(result))


def test_the_reference_knows_for_which_numbers_of_devices_it_stands(run, recipe):
    parity(recipe, devices=[2, 3])
    assert run.jobs["torch-ddp-1"].options["as_devices"] == [1, 2, 3]
    assert all("as_devices" not in job.options for name, job in run.jobs.items() if name != "torch-ddp-1")


def shown(result, width=80):
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(matrix.terminal(result))
    return console.file.getvalue()


# --- what is run


def test_the_reference_comes_first_and_each_backend_is_one_launch(run, recipe):
    lines = []
    result = parity(recipe, backends=["torch", "tensorflow", "jax"], devices=[4, 1, 2], show=lines.append)
    assert result.ok and run.launches == [
        ["torch-ddp-1", "torch-ddp-2", "torch-ddp-4"],
        ["tensorflow-mirrored-1", "tensorflow-mirrored-2", "tensorflow-mirrored-4"],
        ["jax-data_parallel-1", "jax-data_parallel-2", "jax-data_parallel-4"],
    ]
    assert [cell.name for cell in result.cells] == sum(run.launches, [])[1:]
    assert "8 cells against torch on 1 device, 2 steps in float32" in lines[0]
    assert "torch ddp on 1, 2 and 4 devices" in lines


def test_all_cells_start_from_the_references_weights_and_read_its_steps(run, recipe):
    result = parity(recipe, seed=3, batch_size=30, settings={"learning_rate": 0.1}, dtype="float64", keep_random=True)
    home = (result.path / "torch-ddp-1").absolute()
    for name, job in run.jobs.items():
        first = name == "torch-ddp-1"
        assert job.initial_weights == (None if first else str(home / "initial_weights.safetensors"))
        assert job.options == {
            "steps": 2, "dtype": "float64", "reference": None if first else str(home), "keep_random": True,
            **({"as_devices": [1, 2]} if first else {}),
        }  # fmt: skip
        assert (job.mode, job.seed, job.batch_size, job.settings) == ("parity", 3, 30, {"learning_rate": 0.1})


def test_the_reference_is_added_and_that_is_said(run, recipe):
    lines = []
    result = parity(recipe, devices=[2], show=lines.append)
    assert run.launches == [["torch-ddp-1", "torch-ddp-2"], ["jax-data_parallel-2"]]
    assert [cell.name for cell in result.cells] == ["torch-ddp-2", "jax-data_parallel-2"]
    assert "torch on 1 device is the reference, so it runs too; --devices does not name it" in lines


def test_one_file_tells_it_all_and_the_copies_of_the_model_are_gone(run, recipe):
    result = parity(recipe)
    assert result.path.parent == Path("parity") and result.path.name.endswith("-tiny")
    written = read_json(result.path / "parity.json")
    assert written["ok"] and written["tolerance"] == 1e-5 and written["sizes"] == [64, 29]
    assert [each["verdict"] for each in written["cells"]] == ["agrees"] * 3
    assert written["cells"][0]["largest"]["gradients"] == fake_parity.ROUNDING
    assert "| torch 2 | 2e-7 | 0 | 2e-7 |" in (result.path / "parity.md").read_text() == result.markdown()
    assert not (result.path / "torch-ddp-1" / "parity").exists()


def test_it_is_a_function_of_the_package(run, recipe):
    assert kmgpu.parity is proving.parity


# --- what fails


def test_a_cell_that_fails_is_kept_and_the_ones_behind_it_get_another_launch(run, recipe):
    run.failures["torch-ddp-2"] = RunFailed("process 1 was killed by SIGKILL\n  last line")
    lines = []
    result = parity(recipe, devices=[1, 2, 4], show=lines.append)
    assert run.launches[:2] == [["torch-ddp-1", "torch-ddp-2", "torch-ddp-4"], ["torch-ddp-4"]]
    assert {cell.name: cell.verdict.word for cell in result.cells if cell.backend == "torch"} == {
        "torch-ddp-2": "failed", "torch-ddp-4": "agrees",
    }  # fmt: skip
    assert not result.ok and "    torch-ddp-2 failed: process 1 was killed by SIGKILL" in lines
    assert result.sentence == "torch on 2 devices failed"
    assert "torch on 2 devices failed: process 1 was killed by SIGKILL (see" in " ".join(shown(result).split())


def test_a_backend_whose_process_does_not_start_is_not_started_for_each_cell(run, recipe):
    run.failures["jax-data_parallel-1"] = RunFailed("no jaxlib")
    run.before_the_first.add("jax-data_parallel-1")
    result = parity(recipe, devices=[1, 2, 4])
    assert len(run.launches) == 2
    assert [cell.verdict.reason for cell in result.cells if cell.backend == "jax"] == ["no jaxlib"] * 3


def test_a_reference_that_fails_ends_it(run, recipe):
    run.failures["torch-ddp-1"] = RunFailed("process 0 was killed by SIGKILL")
    with pytest.raises(RunFailed, match="SIGKILL"):
        parity(recipe)
    assert len(run.launches) == 1


def test_an_interruption_ends_it_and_removes_the_copies_of_the_model(run, recipe):
    run.failures["jax-data_parallel-1"] = Interrupted("stopped by SIGINT", 2)
    with pytest.raises(Interrupted):
        parity(recipe, out="here")
    assert Path("here/torch-ddp-1").is_dir() and not Path("here/torch-ddp-1/parity").exists()


def test_a_cell_that_ends_well_without_its_file_has_failed(run, recipe):
    result = parity(recipe, out="here")
    (result.path / "jax-data_parallel-2" / "parity.json").unlink()
    assert [cell.verdict.reason for cell in proving.conclude(result.path).cells][2] == (
        "it ended without writing parity.json"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"recipe": "tinny"}, "no recipe 'tinny'"),
        ({"backends": ["torch", "jxa"]}, "did you mean 'jax'"),
        ({"backends": ["jax"], "devices": [1]}, "nothing to compare jax on 1 device with"),
        ({"devices": [0, 1]}, "--devices is 0"),
        ({"devices": [2, 2]}, "names something twice"),
        ({"devices": 2}, "--devices is 2; it is a list"),
        ({"steps": 0}, "--steps is 0"),
        ({"dtype": "float46"}, "--dtype is 'float46' (did you mean 'float64'?); it is float32 or float64"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"settings": {"epoch": 3}}, "tiny has no setting 'epoch'"),
        ({"device_kind": "tpu"}, "--device-kind is 'tpu'"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(run, recipe, asked, said):
    arguments = {"recipe": recipe, **asked}
    with pytest.raises(UsageError) as caught:
        parity(arguments.pop("recipe"), **arguments)
    assert said in str(caught.value)
    assert not run.launches and not Path("parity").exists()


def test_it_is_not_written_into_a_directory_in_use(run, recipe):
    Path("used").mkdir()
    Path("used/file").write_text("")
    with pytest.raises(UsageError, match="not an empty directory"):
        parity(recipe, out="used")


# --- what is told


def directory(cells, of=None, **asked):
    return report.read(fake_parity.directory(Path("here"), cells, of or reference(sizes=[64, 29]), **asked))


def test_the_heading_says_what_was_compared():
    text = " ".join(shown(directory({"jax-data_parallel-2": cell()})).split())
    assert "digits_cnn: 1 cell compared with torch on 1 device, the reference, over 2 steps in float32." in text
    assert "Batches: 1 step of 64 and 1 step of 29 samples; 29 does not divide over all numbers of devices." in text
    assert "Tolerance: 1e-5, relative; the noise floor" in text and "Randomness: off" in text
    assert "virtual CPU devices, not GPUs" in text


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([64, 64], "2 steps of 64 samples, all of them even over the devices: uneven batches were not compared."),
        ([64, 1], "1 does not divide over all numbers of devices, and 1 is fewer than 2 devices."),
        (None, "64 samples in the first step."),
    ],
)
def test_the_heading_says_how_even_the_batches_are(sizes, said):
    assert said in " ".join(matrix.heading(directory({"jax-data_parallel-2": cell()}, reference(sizes=sizes))))


def test_float64_has_no_noise_floor():
    result = directory({"jax-data_parallel-2": cell(1e-15)}, dtype="float64")
    text = shown(result)
    assert result.ok and "noise floor" not in text and "judged at 1e-9" in " ".join(text.split())


def test_the_table_fits_80_columns_whatever_the_numbers():
    worst = off(off(cell(1.1e-10), 0, "gradients", KERNEL, [1.23e-13, 4e-3, 1e-3]), 1, "gradients", KERNEL, [123.4])
    cells = {"tensorflow-mirrored-16": worst, "tensorflow-mirrored-2": cell(2e-5), "jax-data_parallel-1": "dead"}
    text = shown(directory(cells))
    assert max(map(len, text.splitlines())) <= 80
    assert "PARTS" in text and "FAILED" in text and "123" in text
    (row,) = [line for line in text.splitlines() if line.startswith("tensorflow 16")]
    assert len(row.split()) == 9


def test_a_failure_is_one_line_with_first_step_first_variable_and_cause():
    bad = off(off(cell(), 1, "loss", "", [0.02]), 1, "gradients", KERNEL, [0.5])
    result = directory({"jax-data_parallel-1": bad, "jax-data_parallel-2": bad, "torch-ddp-2": cell()})
    ((style, said),) = matrix.remarks(result)
    assert style == "red" and said.startswith(
        "jax on 1 and 2 devices part in step 1: loss off by 0.02 (noise 2e-7); first variable: gradient of "
        "dense/kernel off by 0.5 (noise 2e-7); 1 of 2 steps part. Likely: jax differs from torch on one device already"
    )
    assert result.sentence == "jax on 1 and 2 devices part from torch on 1 device"


def test_what_one_device_does_decides_about_the_cause_on_several():
    bad = off(cell(), 0, "loss", "", [0.02])
    result = directory({"jax-data_parallel-1": cell(), "jax-data_parallel-2": bad})
    assert "one device agrees and 2 do not" in result.cells[1].cause


def test_kinks_noise_chaos_and_warnings_are_told_apart():
    kink = off(cell(), 0, "gradients", KERNEL, [3e-3, 2e-7, 2e-7])
    chaos, wild = cell(), cell()
    chaos["trajectory"] = fake_parity.trajectory([1e-7, 5e-4])
    wild["trajectory"] = fake_parity.trajectory([1e-7, 0.02])
    of = reference(floor_trajectory=fake_parity.trajectory([1e-7, 1e-4]), sizes=[64, 64])
    of["floor"][0]["gradients"][KERNEL] = 2e-5
    noisy = off(cell(), 0, "gradients", KERNEL, [3e-5])
    names = ("torch-ddp-2", "tensorflow-mirrored-1", "jax-data_parallel-1", "jax-data_parallel-2")
    result = directory(dict(zip(names, (kink, noisy, chaos, wild), strict=True)), of)
    assert result.ok and [cell.verdict.in_words for cell in result.cells] == [
        "agrees with 1 kink flip", "within rounding noise", "agrees", "agrees",
    ]  # fmt: skip
    said = "\n".join(f"{style}: {sentence}" for style, sentence in matrix.remarks(result))
    assert "torch on 2 devices in 1 step (up to 0.003)" in said
    assert "yellow: tensorflow on 1 device: beyond 1e-5, within 3 times the reference's own noise, 1 time" in said
    assert "~ not judged: later steps amplify rounding, which takes the reference itself to 1e-4" in said
    assert "yellow: warning: jax on 2 devices runs free to 0.02, beyond 0.001 and 100 times" in said
    assert "~5e-4" in shown(result) and "agrees, 1 kink" in shown(result)
    assert "1 kink flip apart, 1 cell within rounding noise only" in result.sentence


def test_what_an_adapter_has_to_say_is_said_once():
    note = "the loss <lambda> is computed over the whole batch"
    cells = {name: cell() | {"facts": {"notes": [note]}} for name in ("torch-ddp-2", "torch-ddp-4")}
    result = directory({**cells, "jax-data_parallel-1": cell()})
    assert matrix.remarks(result) == [("", f"note (torch on 2 and 4 devices): {note}")]


def test_a_run_directory_is_no_parity_check(recipe, tmp_path):
    with pytest.raises(UsageError, match="not the directory of a parity check"):
        report.read(tmp_path)
