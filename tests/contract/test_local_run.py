"""A local run is what was asked for, whatever the machine's environment, ports and interpreters are like."""

from __future__ import annotations

import re
import site
import subprocess
import sys
import venv
from pathlib import Path

import cells
import pytest

from kmgpu import checkpoints, training
from kmgpu.backends import BACKENDS, find
from kmgpu.rundir import RunDir

pytestmark = pytest.mark.workers

cells.add(
    "asked", "logged_rows", devices=(1, 2, 3, 4),
    settings={"log": "FOLDER/train.txt", "rows": 12, "batch_size": 12, "shuffle": False},
)  # fmt: skip

FRAMEWORKS = ("torch", "tensorflow", "jax", "jaxlib")


@pytest.mark.parametrize("devices", (1, 2, 3, 4))
@pytest.mark.parametrize("backend", BACKENDS)
def test_variables_of_other_launchers_do_not_alter_a_run(ran, backend, devices):
    run = ran(backend, "asked", devices)  # launched among cells.FOREIGN_VARIABLES, with port 29500 taken
    start = run.outcome["start"]
    expected = devices if find(backend).one_process_per_device else 1
    assert start["processes"] == expected and len(start["devices"]) == devices
    assert len(set(start["devices"])) == devices
    assert len({line.split(",")[0] for line in run.lines("train.txt")}) == expected
    assert run.weight == pytest.approx(0.5 * 5.5, rel=1e-5)
    assert start["backend"] == backend and start["framework"].startswith(f"{backend} ")
    assert (start["device_kind"], start["strategy"]) == ("cpu", find(backend).name)


def test_two_runs_at_once_do_not_meet(tmp_path):
    command = [
        sys.executable, "-c", cells.COMMAND_LINE, "train", str(cells.RECIPES / "r0.py"), "--backend", "torch",
        "--devices", "2", "--device-kind", "cpu",
    ]  # fmt: skip
    with cells.foreign_environment():
        both = [
            subprocess.Popen(
                [*command, "--out", str(tmp_path / name)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
            )
            for name in ("one", "two")
        ]  # fmt: skip
        said = [process.communicate(timeout=120)[0] for process in both]
    for process, name, text in zip(both, ("one", "two"), said, strict=True):
        assert process.returncode == 0, text
        assert cells.Ran(RunDir(tmp_path / name), []).weight == pytest.approx(3.125, rel=1e-5)
        first_lines = "\n".join(text.splitlines()[:4])
        assert "2 virtual CPU devices: no GPU is used" in first_lines and "strategy ddp" in first_lines
        assert "global batch 4, 2 per device, 2 steps per epoch" in first_lines and "learning rate 0.25" in first_lines


def test_k30_four_processes_take_a_directory_that_is_new_or_an_old_runs(tmp_path):
    options = ("train", str(cells.RECIPES / "r0.py"), "--backend", "torch", "--devices", "4", "--device-kind", "cpu")
    options += ("--out", "not/there/yet", "--checkpoint-every", "1epoch")
    assert cells.kmgpu(*options, "--epochs", "2", folder=tmp_path, limit=120).code == 0
    refused = cells.kmgpu(*options, folder=tmp_path)
    assert refused.code == 2 and "already holds a run" in refused.err
    again = cells.kmgpu(*options, "--force", folder=tmp_path, limit=120)
    assert again.code == 0, again.err
    rundir = RunDir(tmp_path / "not" / "there" / "yet")
    assert rundir.outcome()["epochs"] == 1 and len(checkpoints.listed(rundir.path)) == 1
    assert sorted(path.name for path in rundir.path.parent.iterdir()) == ["yet"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interpreter_without_kmgpu_runs_the_workers(tmp_path, monkeypatch, backend):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    python = foreign_python(tmp_path / "foreign", backend)
    others = [name for name in FRAMEWORKS if not name.startswith(backend)]
    for name in ("kmgpu", "typer", *others):
        assert subprocess.run([python, "-c", f"import {name}"], stderr=subprocess.DEVNULL).returncode != 0, name
    result = training.train(
        cells.RECIPES / "r0.py", backend=backend, devices=2, device_kind="cpu", python={backend: str(python)},
        out=tmp_path / "run",
    )  # fmt: skip
    assert result is not None
    assert cells.Ran(RunDir(result.path), []).weight == pytest.approx(3.125, rel=1e-5)
    assert RunDir(result.path).job().python == str(python)


def foreign_python(folder: Path, backend: str) -> Path:
    """Make an environment that has Keras and one framework, but neither kmgpu nor what its command line needs."""
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = folder.glob("lib/python3*/site-packages")
    left_out = ["kmgpu", "typer", "psutil", "pynvml", "nvidia_ml_py", "pytest", "sklearn"]
    left_out += [f"{name}{end}" for name in FRAMEWORKS if not name.startswith(backend) for end in ("", "_cpu")]
    for entry in (entry for place in site.getsitepackages() for entry in Path(place).iterdir()):
        distribution = re.split(r"[-.]", entry.name.lower().lstrip("_"))[0]
        if entry.suffix != ".pth" and distribution not in left_out:
            (packages / entry.name).symlink_to(entry)
    return folder / "bin" / "python"
