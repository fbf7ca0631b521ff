"""Interpreters and devices are checked, and refused in one sentence, before anything starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kmgpu import environment
from kmgpu.errors import MissingEnvironment, UsageError

FOUR_GPUS = [(f"GPU-{letter}1234", "NVIDIA Test") for letter in "abcd"]


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.setattr(environment, "_nvml_gpus", lambda: FOUR_GPUS)


@pytest.fixture
def no_gpus(monkeypatch):
    monkeypatch.setattr(environment, "_nvml_gpus", lambda: [])


@pytest.fixture
def everything_installed(monkeypatch):
    monkeypatch.setattr(environment, "installed", lambda modules: dict.fromkeys(modules, "1.0"))


def fake_python(folder: Path, reply: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{reply}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_running_interpreter_is_the_default(everything_installed):
    assert environment.interpreter("torch", environ={}) == sys.executable


def test_the_command_line_wins_over_the_variable(tmp_path, everything_installed):
    reply = json.dumps([[3, 12], {"jax": "0.10", "keras": "3.15", "numpy": "2", "safetensors": "0.8"}])
    path = fake_python(tmp_path, reply)
    assert environment.interpreter("jax", {"jax": path}, {"KMGPU_PYTHON_JAX": "/nowhere"}) == path
    assert environment.interpreter("jax", {"torch": "/nowhere"}, {"KMGPU_PYTHON_JAX": path}) == path


def test_an_interpreter_that_is_a_link_stays_a_link(tmp_path):
    """A virtual environment's python is a link; resolved, it would be the system's."""
    reply = json.dumps([[3, 12], {"jax": "0.10", "keras": "3.15", "numpy": "2", "safetensors": "0.8"}])
    link = tmp_path / "link"
    link.symlink_to(fake_python(tmp_path, reply))
    assert environment.interpreter("jax", {"jax": str(link)}, {}) == str(link)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: str(folder / "absent"), "no such file"),
        (lambda folder: str(folder), "this is a directory; name the interpreter in it"),
        (lambda folder: _environment(folder), "this is a directory; did you mean "),
        (lambda folder: _plain_file(folder), "not executable"),
        (lambda folder: fake_python(folder, "hello"), "not a working Python interpreter"),
        (lambda folder: fake_python(folder, '[[3, 9], {"jax": "1"}]'), "Python 3.9; kmgpu needs 3.11"),
    ],
)
def test_what_is_not_a_usable_python_is_named(tmp_path, make, said):
    with pytest.raises(MissingEnvironment) as caught:
        environment.interpreter("jax", {"jax": make(tmp_path)}, {})
    assert said in str(caught.value) and "--python jax=" in str(caught.value)
    assert caught.value.exit_code == 3


def _environment(folder: Path) -> str:
    (folder / "env" / "bin").mkdir(parents=True)
    fake_python(folder / "env" / "bin", "")
    return str(folder / "env")


def _plain_file(folder: Path) -> str:
    path = folder / "file"
    path.write_text("text")
    return str(path)


def test_a_missing_framework_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(environment, "installed", lambda modules: {**dict.fromkeys(modules, "1"), "tensorflow": None})
    with pytest.raises(MissingEnvironment, match="has no tensorflow, which tensorflow needs: .* -m pip install"):
        environment.interpreter("tensorflow", environ={})


def test_an_unknown_backend_of_python_is_a_usage_error(everything_installed):
    with pytest.raises(UsageError, match="did you mean 'jax'"):
        environment.interpreter("torch", {"jx": sys.executable}, {})


def test_another_interpreter_is_asked_the_same_question(tmp_path):
    found = environment._ask(sys.executable, "python", {"pytest": ["pytest"], "no_such_module": ["no-such-module"]})
    assert found == {"pytest": pytest.__version__, "no_such_module": None}


def test_a_folder_with_the_name_of_a_framework_is_not_the_framework(tmp_path, monkeypatch):
    (tmp_path / "notaframework").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert environment.installed({"notaframework": ["notaframework"]}) == {"notaframework": None}


def test_no_driver_means_no_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails
    assert environment.visible_gpus({}) == ()
    assert environment.machine({})["gpus"] == []


@pytest.mark.parametrize(
    ("mask", "expected"),
    [(None, "abcd"), ("", ""), ("-1", ""), ("1,0", "ba"), ("3", "d"), ("GPU-b", "b"), ("GPU-c1234, 0", "ca")],
)
def test_the_mask_picks_and_orders_gpus(four_gpus, mask, expected):
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert environment.visible_gpus(environ) == tuple(f"GPU-{letter}1234" for letter in expected)


@pytest.mark.parametrize("mask", ["7", "0,7", "GPU-x", "GPU-", "0,,1", "words"])
def test_a_mask_that_names_absent_gpus_is_refused(four_gpus, mask):
    with pytest.raises(MissingEnvironment, match="NVML sees 4 GPUs"):
        environment.visible_gpus({"CUDA_VISIBLE_DEVICES": mask})


def test_on_a_machine_without_gpus_a_mask_is_refused_unless_the_cpu_is_asked_for(no_gpus):
    environ = {"CUDA_VISIBLE_DEVICES": "7"}
    with pytest.raises(MissingEnvironment, match="names '7', but NVML sees no GPUs"):
        environment.resolve_devices("auto", 4, environ=environ)
    assert environment.resolve_devices("cpu", 4, environ=environ) == ("cpu", 4, None)
    assert environment.resolve_devices("auto", 4, environ={"CUDA_VISIBLE_DEVICES": ""}) == ("cpu", 4, None)


def test_auto_takes_gpus_where_there_are_some(four_gpus):
    assert environment.resolve_devices("auto", 4, environ={}) == ("gpu", 4, None)
    assert environment.resolve_devices("auto", 1, environ={"CUDA_VISIBLE_DEVICES": ""}) == ("cpu", 1, None)
    assert environment.resolve_devices("auto", None, (2, 0), {}) == ("gpu", 2, (2, 0))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (("tpu", 1), UsageError, "--device-kind is 'tpu'"),
        (("auto", 0), UsageError, "--devices is 0; it is a count of at least 1"),
        (("cpu", -2), UsageError, "--devices is -2"),
        (("cpu", True), UsageError, "count of at least 1"),
        (("cpu", 65), UsageError, "at most 64 virtual CPU devices"),
        (("cpu", 1, (0,)), UsageError, "--device-kind is cpu"),
        (("gpu", 5), MissingEnvironment, "--devices is 5, found 4 visible GPUs"),
        (("auto", 5), MissingEnvironment, "--devices is 5, found 4 visible GPUs"),
        (("gpu", 2, (0, 4)), MissingEnvironment, "--device-ids is 0,4, found 4 visible GPUs"),
        (("gpu", 2, (1, 1)), UsageError, "names a device twice"),
        (("gpu", 1, (1, 2)), UsageError, "--devices is 1, but --device-ids names 2"),
        (("gpu", 1, (-1,)), UsageError, "whole numbers from 0"),
        (("gpu", 1, ()), UsageError, "whole numbers from 0"),
    ],
)
def test_impossible_devices_are_refused(four_gpus, arguments, error, said):
    with pytest.raises(error) as caught:
        environment.resolve_devices(*arguments, environ={})
    assert said in str(caught.value)


def test_without_gpus_asking_for_one_says_found_and_asked(no_gpus):
    with pytest.raises(MissingEnvironment, match="--device-kind is gpu, and no GPU is visible; make one"):
        environment.resolve_devices("gpu", 1, environ={})
    with pytest.raises(MissingEnvironment, match="--device-ids 0 picks GPUs, and none is visible"):
        environment.resolve_devices("auto", 1, (0,), environ={})


def test_the_description_of_the_machine_holds_no_secret_and_no_name():
    environ = {"WANDB_API_KEY": "secret", "SECRET_TOKEN": "secret", "OMP_NUM_THREADS": "2", "USER": "secret"}
    described = environment.machine(environ)
    assert "secret" not in json.dumps(described)
    assert os.uname().nodename not in described.values()
    assert described["variables"] == {"OMP_NUM_THREADS": "2"}
    assert described["cores"] >= 1 and described["memory_bytes"] > 0


def test_looking_for_a_framework_does_not_import_it():
    program = (
        "import sys\nfrom kmgpu import environment\nenvironment.machine()\n"
        "for backend in ('torch', 'tensorflow', 'jax'):\n"
        "    try: environment.interpreter(backend, environ={})\n    except Exception: pass\n"
        "print({'keras', 'torch', 'tensorflow', 'jax', 'numpy'} & set(sys.modules))"
    )
    command, project = [sys.executable, "-c", program], Path(__file__).parents[1]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=project).stdout
    assert printed.strip() == "set()"
