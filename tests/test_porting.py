"""The porting guide: five examples become recipes in fewer than ten lines, and its table is what is counted."""

import importlib.util
import sys
from pathlib import Path

import cells
import pytest

from kmgpu import recipe_card

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("benchmarks_porting", ROOT / "benchmarks" / "porting.py")
assert spec is not None and spec.loader is not None
porting = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(porting)

def test_lines_are_counted_by_their_words():
    before = "import keras\n\nx = 1\nmodel.fit(x)\nprint(1)\n"
    assert porting.changed_lines(before, before) == 0
    assert porting.changed_lines(before, "import keras\ndef f():\n    x = 1\n\n    model.fit(x)\n    print(1)\n") == 1
    assert porting.changed_lines(before, "import keras\nx = 1\nreturn x\n") == 2


@pytest.mark.parametrize("example", porting.TITLES)
def test_an_example_becomes_a_recipe_in_fewer_than_ten_lines(example):
    assert 0 < porting.counts(example)["recipe"] < 10
    assert recipe_card.card(porting.EXAMPLES / example / "recipe.py").settings == {}


def test_the_table_of_the_guide_is_what_is_counted():
    text = porting.PAGE.read_text(encoding="utf-8")
    assert porting.page(text) == text, "run `python benchmarks/porting.py`"


@pytest.mark.long
@pytest.mark.workers
@pytest.mark.parametrize("example", porting.TITLES)
@pytest.mark.parametrize("way", ("script", *porting.WAYS[1:]))
def test_what_the_recipe_is_compared_with_runs(tmp_path, example, way):
    backend = way.removeprefix("by_hand_") if way != "script" else "jax"
    path = porting.EXAMPLES / example / f"{way}.py"
    answer = cells.python(str(path), folder=tmp_path, limit=300, KERAS_BACKEND=backend, MASTER_PORT="29517")
    assert answer.code == 0, answer.err[-2000:]
    assert "loss" in answer.out or "epoch" in answer.out
