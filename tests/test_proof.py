"""A comparison's proof is made once for all that it rests on, fails loudly, and is not remembered when it fails."""

from __future__ import annotations

import sys
from pathlib import Path

import fake_parity
import pytest

from kmgpu import backends, environment, proof, proving
from kmgpu.errors import Interrupted, RunFailed, UsageError
from kmgpu.report import parity as report


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No GPU, every framework in version 1, and a cache of its own."""
    monkeypatch.setattr(environment, "_nvml_gpus", lambda: [])
    monkeypatch.setattr(environment, "interpreter", lambda backend, python=None: (python or {}).get(backend, "here"))
    monkeypatch.setattr(environment, "versions", lambda backend, path: {backend: "1"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text("def recipe(*, batch_size=64):\n    ...\n")
    return path


@pytest.fixture
def parity(monkeypatch):
    """Stands for kmgpu.proving.parity: all cells agree but those that it is told of; keeps what it was asked."""

    def fake(recipe, *, out, **asked):
        fake.asked.append({"recipe": recipe, **asked})
        if fake.error is not None:
            raise fake.error
        cells = proving.grid(asked["backends"], asked["devices"])
        home, *others = (f"{backend}-{backends.find(backend).name}-{devices}" for backend, devices in cells)
        found = {name: fake.cells.get(name, fake_parity.cell()) for name in others}
        path = Path(f"{out}-{len(fake.asked)}")
        return report.read(fake_parity.directory(path, found, fake_parity.reference(), home))

    fake.asked, fake.cells, fake.error = [], {}, None
    monkeypatch.setattr(proving, "parity", fake)
    return fake


ASKED = {
    "backends": ["torch", "jax"], "devices": [1, 2], "settings": {}, "batch_size": None, "seed": 0, "python": {},
    "device_kind": "auto",
}  # fmt: skip


def prove(recipe, **asked):
    return proof.prove(recipe, out=Path("out"), **{**ASKED, **asked})


def test_the_check_is_short_and_of_the_very_cells(parity, recipe):
    found = prove(recipe, settings={"batch_size": 8}, seed=3)
    (asked,) = parity.asked
    assert callable(asked.pop("show"))
    assert asked == {
        **ASKED, "recipe": recipe, "settings": {"batch_size": 8}, "seed": 3, "steps": 5, "dtype": "float32",
    }  # fmt: skip
    assert found.ok and not found.unproved and found.sentence.startswith(
        "Same mathematics proved: 3 cells compute what torch on 1 device computes, over 2 steps in float32: "
        "largest difference 2e-7, tolerance 1e-5"
    )


def test_what_was_proved_is_not_proved_again(parity, recipe):
    noisy = fake_parity.off(fake_parity.cell(), 0, "gradients", "dense/kernel", [3e-3, 5e-6, 3e-3])
    parity.cells["torch-ddp-2"] = noisy
    assert "over 2 steps" in prove(recipe).sentence
    lines = []
    again = prove(recipe, show=lines.append)
    assert len(parity.asked) == 1 and again.ok
    assert again.sentence.startswith(
        "Same mathematics proved: 3 cells compute what torch on 1 device computes, over 5 steps in float32: largest "
        "difference 5e-6, tolerance 1e-5, 1 kink flip apart (on "
    )
    assert "for what is the same today" in again.sentence
    assert "nothing that it rests on has changed" in lines[0]


@pytest.mark.parametrize(
    "asked",
    [
        {"backends": ["jax", "torch"]}, {"backends": ["torch", "tensorflow"]}, {"devices": [1, 2, 4]},
        {"settings": {"batch_size": 8}}, {"batch_size": 32}, {"seed": 1}, {"device_kind": "cpu"},
        {"python": {"jax": "/opt/python"}},
    ],
)  # fmt: skip
def test_another_request_is_proved_anew(parity, recipe, asked):
    prove(recipe)
    prove(recipe, **asked)
    assert len(parity.asked) == 2


@pytest.mark.parametrize("asked", [{"backends": ["torch"]}, {"devices": [2]}, {"devices": [2, 1]}])
def test_a_part_of_what_was_proved_is_proved(parity, recipe, asked):
    prove(recipe)
    assert prove(recipe, **asked).ok and len(parity.asked) == 1


def test_cells_that_agreed_beside_one_that_did_not_are_proved(parity, recipe):
    parity.cells["torch-ddp-2"] = "process 1 was killed"
    assert not prove(recipe).ok
    assert prove(recipe, devices=[1]).ok and len(parity.asked) == 1
    assert not prove(recipe, devices=[2]).ok and len(parity.asked) == 2


def test_another_recipe_version_or_machine_is_proved_anew(parity, recipe, monkeypatch):
    prove(recipe)
    recipe.write_text(recipe.read_text() + "# changed\n")
    prove(recipe)
    monkeypatch.setattr(environment, "versions", lambda backend, path: {backend: "2"})
    prove(recipe)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    prove(recipe)
    monkeypatch.setattr(environment, "_cpu_model", lambda: "another")
    prove(recipe)
    assert len(parity.asked) == 5


def test_the_neighbours_that_a_recipe_imports_count_and_no_others(recipe, tmp_path):
    recipe.write_text("import keras, mine\ndef recipe(*, a=1):\n    from parts.layers import f\n")
    (tmp_path / "mine.py").write_text("import deeper\n")
    (tmp_path / "deeper.py").write_text("import mine, sys\n")
    (tmp_path / "other.py").write_text("")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "layers.py").write_text("this is no Python\n")
    found = [str(path.relative_to(tmp_path)) for path in proof.sources(recipe)]
    assert sorted(found) == ["deeper.py", "mine.py", "parts/layers.py", "tiny.py"]


def test_kmgpu_itself_counts(recipe, monkeypatch):
    def keys():
        return proof.keys(recipe, "torch", [("jax", 1), ("jax", 2)], python={}, seed=0)

    before = keys()
    assert before == keys() and len(set(before)) == 2
    digest, adapter = proof._digest, Path(environment.__file__).parent / "backends" / "adapter.py"
    monkeypatch.setattr(proof, "_digest", lambda path: "changed" if path == adapter else digest(path))
    assert not {*before} & {*keys()}


def test_a_cell_that_parts_is_named_and_not_remembered(parity, recipe):
    parity.cells["torch-ddp-2"] = fake_parity.off(fake_parity.cell(), 1, "loss", "", [0.1])
    found = prove(recipe)
    assert (found.ok, found.parted, list(found.unproved)) == (False, True, [("torch", 2)])
    assert found.sentence.startswith("NOT THE SAME MATHEMATICS: torch on 2 devices parts from torch on 1 device. ")
    assert "parts in step 1: loss off by 0.1" in found.sentence and "Likely: " in found.sentence
    prove(recipe)
    assert len(parity.asked) == 2


def test_a_cell_that_fails_is_unproved_and_does_not_part(parity, recipe):
    parity.cells["jax-data_parallel-1"] = "process 0 was killed"
    found = prove(recipe)
    assert (found.ok, found.parted, list(found.unproved)) == (False, False, [("jax", 1)])
    assert found.sentence.startswith("Same mathematics: NOT PROVED: jax on 1 device failed.")


def test_without_a_reference_nothing_is_proved(parity, recipe):
    parity.error = RunFailed("process 0 was killed by SIGKILL\n  last line")
    found = prove(recipe)
    assert found.ok is False and not found.parted and len(found.unproved) == 4
    assert "NOT PROVED" in found.sentence and found.sentence.endswith("killed by SIGKILL.")


@pytest.mark.parametrize("error", [Interrupted("stopped", 2), UsageError("the recipe returns None")])
def test_an_interruption_and_a_wrong_request_are_raised(parity, recipe, error):
    parity.error = error
    with pytest.raises(type(error)):
        prove(recipe)


def test_one_cell_alone_needs_no_proof(parity, recipe):
    found = prove(recipe, backends=["jax"], devices=[1])
    assert found.ok is None and not parity.asked and "nothing to compare it with" in found.sentence
    assert prove(recipe, backends=["jax"], devices=[2]).ok, "one device of the same backend is its reference"


def test_a_cache_that_cannot_be_used_is_no_error(parity, recipe, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert prove(recipe).ok and prove(recipe).ok and len(parity.asked) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prove(recipe)
    next((tmp_path / "cache").rglob("*.json")).write_text("{")
    assert prove(recipe).ok and len(parity.asked) == 4


def test_the_cache_is_where_such_things_are(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert proof._file("a") == Path.home() / ".cache" / "kmgpu" / "proofs" / "a.json"
    assert sys.platform != "linux" or proof._file("a").is_absolute()
