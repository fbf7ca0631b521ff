"""A comparison proves that its runs started from the same weights, and that they are together after one step."""

from __future__ import annotations

import cells
import numpy as np
import pytest

import kmgpu
from kmgpu.backends import BACKENDS
from kmgpu.rundir import RunDir

pytestmark = pytest.mark.workers


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "compared"
    return kmgpu.compare(
        cells.RECIPES / "default_weights.py", devices=[2], seed=1, device_kind="cpu", parity=False, out=out
    )


def test_all_backends_start_from_the_weights_that_the_first_has_drawn(study):
    assert study.ok and [run.job.backend for run in study.runs] == list(BACKENDS)
    (initial,) = {run.outcome["hashes"]["initial_weights"] for run in study.runs}
    files = {RunDir(run.path).initial_weights_file.read_bytes() for run in study.runs}
    assert len(files) == 1
    assert len(initial) == 64
    assert initial[:8] in study.markdown() and initial[:8] in (study.path / "comparison.json").read_text()


def test_they_are_together_after_one_step(study):
    reference, *others = [cells.Ran(RunDir(run.path), []) for run in study.runs]
    assert len(reference.losses) == 1
    for run in others:
        assert run.losses == pytest.approx(reference.losses, rel=1e-5)
        assert run.weights.keys() == reference.weights.keys()
        for name, theirs in reference.weights.items():
            np.testing.assert_allclose(run.weights[name], theirs, rtol=1e-5, atol=1e-6)
