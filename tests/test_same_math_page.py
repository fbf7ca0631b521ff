"""The page on the same math tells of every feature that is tested, and what was measured."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import features

from kmgpu.backends import BACKENDS

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "same_math.py"
spec = importlib.util.spec_from_file_location("same_math", SCRIPT)
assert spec is not None and spec.loader is not None
same_math = importlib.util.module_from_spec(spec)
spec.loader.exec_module(same_math)
measured = json.loads(same_math.RESULTS.read_text(encoding="utf-8"))


def test_the_page_has_the_table_that_the_measurements_make():
    text = same_math.PAGE.read_text(encoding="utf-8")
    assert same_math.page(text, measured) == text, "run benchmarks/same_math.py"


def test_what_was_measured_are_the_features_that_are_tested():
    titles = [feature.title for feature in features.FEATURES]
    found = list(measured["features"])
    assert found[: len(titles)] == titles, "measure again, as benchmarks/same_math.py says"
    assert set(found[len(titles) :]) <= features.REFUSED_FEATURES.keys()


def test_what_was_measured_is_within_its_tolerance_on_all_numbers_of_devices():
    for feature in features.FEATURES:
        entries = measured["features"][feature.title]
        reference = feature.reference or (feature.cell, 1)
        for backend in BACKENDS:
            expected = [n for n in feature.devices if (backend, feature.cell, n) != ("jax", *reference)]
            entry = entries.get(backend)
            if entry is None:
                continue
            assert sorted(entry["devices"]) == sorted(expected), (feature.title, backend)
            assert entry["error"] < feature.tolerance
            assert entry["how"] == feature.expected(backend), (feature.title, backend)
