"""What an installed kmgpu has: the shipped recipes, and what they import of it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kmgpu import recipe_card

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with a wheel of this checkout unpacked, as pip would."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed, code, folder):
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": str(installed)}, text=True,
        capture_output=True,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split()


def test_an_installed_kmgpu_has_every_recipe(installed, tmp_path):
    code = "import kmgpu; from kmgpu.recipe_card import shipped; print(kmgpu.__file__, *[c.name for c in shipped()])"
    where, *names = run(installed, code, tmp_path)
    assert where.startswith(str(installed)) and names == [card.name for card in recipe_card.shipped()]


def test_an_installed_kmgpu_begins_new_recipes_and_reads_their_data(installed, tmp_path):
    code = (
        "from kmgpu import scaffold; from kmgpu.data import datasets, files, texts; "
        "print(*scaffold.new('mine', 'gpt')); print(len(datasets.digits('test')[1]))"
    )
    assert run(installed, code, tmp_path) == ["mine.py", "char_gpt", "360"]
    assert (tmp_path / "mine.py").exists()


@pytest.mark.workers
def test_a_recipe_trains_from_an_installed_kmgpu(installed, tmp_path):
    code = (
        "import kmgpu; result = kmgpu.train('vae', backend='jax', device_kind='cpu', max_steps=2, epochs=1, "
        "settings={'size': 'tiny'}, out='run'); print(len(result.history))"
    )
    assert run(installed, code, tmp_path) == ["1"]
