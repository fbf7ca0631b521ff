"""The gallery is made from the recipes and from what was measured, and its figures show that."""

import importlib.util
import re
import sys
from pathlib import Path

from kmgpu import recipe_card

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("benchmarks_gallery", ROOT / "benchmarks" / "gallery.py")
assert spec is not None and spec.loader is not None
gallery = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gallery)


def test_the_page_is_what_recipes_and_results_say():
    text = gallery.PAGE.read_text(encoding="utf-8")
    assert gallery.page(gallery.measured()) == text, "run `python benchmarks/gallery.py`"
    for card in recipe_card.shipped():
        assert f"## {card.name}\n" in text and card.summary in text


def test_every_measured_recipe_has_its_figure():
    for name, runs in gallery.measured().items():
        figure = (gallery.FIGURES / f"{name}.svg").read_text(encoding="utf-8")
        assert figure == gallery.figure(gallery.recipes.GOALS[name].score, runs)


def test_a_figure_has_a_line_for_each_seed_from_its_first_to_its_last_epoch():
    def run(*scores):
        return {"history": [{"val_accuracy": score} for score in scores]}

    runs = {"torch": {"0": run(0.5, 0.75, 1.0), "1": run(0.5, 0.6, 0.7)}, "jax": {"0": run(0.6, 0.7, 0.8)}}
    figure = gallery.figure("val_accuracy", runs)
    lines = re.findall(r'points="([^"]*)"', figure)
    assert len(lines) == 3 and all(len(line.split()) == 3 for line in lines)
    first = [tuple(map(float, point.split(","))) for point in lines[0].split()]
    left, right = gallery.LEFT, gallery.WIDTH - gallery.RIGHT
    top, bottom = gallery.TOP, gallery.HEIGHT - gallery.BOTTOM
    assert first[0] == (left, bottom) and first[-1] == (right, top), "the lowest and the highest score"
    assert ">val_accuracy<" in figure and ">torch<" in figure and ">JAX<" in figure and ">TensorFlow<" not in figure
