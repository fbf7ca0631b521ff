"""Portable random numbers: the same on three frameworks, for each sample, on any number of devices."""

from __future__ import annotations

from pathlib import Path

import cells
import numpy as np
import pytest
from portable_draws import SLOW, WAYS
from scipy import stats

from kmgpu.backends import BACKENDS

pytestmark = pytest.mark.workers

PORTABLE = {"randomness": "portable"}
cells.add("random-layers", "random_layers", devices=(1, 2, 4), **PORTABLE)
cells.add("random-layers-accumulated", "random_layers", devices=(2,), settings={"accumulate": 3}, **PORTABLE)
cells.add("random-layers-again", "random_layers", devices=(1,), seed=3, **PORTABLE)

# Random123's known answers for these keys and counters, the two words of each xored, as the 32-bit form has them.
ANSWERS = {
    "zeros": 0x6B200159 ^ 0x99BA4EFE,
    "ones": 0x1CB996FC ^ 0xBB002BE7,
    "pi": 0xC4923A9C ^ 0x483DF7A0,
}
LAST_DIGITS = {"gamma", "gamma_small", "beta"}  # powers and logarithms of float64, a few ulp apart
ROUNDING = 1e-6


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Draws of every kind by backend."""
    folder = tmp_path_factory.mktemp("draws")
    script = Path(__file__).parents[1] / "portable_draws.py"
    found = {}
    for backend in BACKENDS:
        answer = cells.python(str(script), backend, f"{backend}.npz", folder=folder, limit=180)
        assert answer.code == 0, answer.err[-3000:]
        with np.load(folder / f"{backend}.npz") as arrays:
            found[backend] = dict(arrays)
    return found


def own(found):
    return [name for name in found if "/" not in name]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ANSWERS)
def test_threefry_gives_its_published_answers(drawn, backend, case):
    (word,) = drawn[backend][f"known/{case}"].astype(np.uint32)
    assert hex(word) == hex(ANSWERS[case])


@pytest.mark.parametrize("backend", BACKENDS)
def test_three_frameworks_draw_the_same_numbers(drawn, backend):
    truth = drawn["jax"]
    for name in own(truth):
        mine = drawn[backend][name]
        assert mine.dtype == truth[name].dtype and mine.shape == truth[name].shape, name
        if name in LAST_DIGITS:
            np.testing.assert_allclose(mine, truth[name], rtol=1e-6, err_msg=name)
        else:
            assert np.array_equal(mine, truth[name]), f"{name}: {np.mean(mine != truth[name]):.2g} of them differ"


@pytest.mark.parametrize(("backend", "way"), [(backend, way) for backend in BACKENDS for way in WAYS[backend]])
def test_compiled_or_not_the_numbers_are_the_same(drawn, backend, way):
    """jit; tf.function, with XLA and without; torch.compile of one graph, and torch without a C compiler."""
    compiled = {name.partition("/")[2]: value for name, value in drawn[backend].items() if name.startswith(f"{way}/")}
    left_out = SLOW if way == "dynamo" else set()
    assert set(compiled) == set(own(drawn[backend])) - {"streams"} - left_out
    for name, value in compiled.items():
        np.testing.assert_allclose(
            value, drawn[backend][name], rtol=1e-6 if name in LAST_DIGITS else 0, err_msg=name
        )  # fmt: skip


def test_they_are_those_of_jax_random_where_it_computes_in_float32(drawn):
    found = drawn["jax"]
    for name in ("bits", "uniform", "uniform_wide", "uniform_float16", "randint", "randint_wide"):
        assert np.array_equal(found[name], found[f"stock/{name}"]), name
    assert np.array_equal(found["dropout"] != 0, found["stock/kept"])
    apart = np.abs(found["normal"] - found["stock/normal"]).max()
    assert 0 < apart < 1e-4, "normal numbers are from float64, so they differ in the last digits alone"


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_are_drawn_by_their_place_in_the_whole(drawn, backend):
    whole, later = drawn[backend]["bits"], drawn[backend]["bits_from_row_3"]
    assert np.array_equal(later, whole[3:])


DISTRIBUTIONS = {
    "uniform": stats.uniform(),
    "uniform_odd": stats.uniform(2, 5.3),
    "normal": stats.norm(),
    "normal_moved": stats.norm(0.3, 1.7),
    "truncated_normal": stats.truncnorm(-2, 2),
    "gamma": stats.gamma(2.5),
    "gamma_small": stats.gamma(0.3),
    "beta": stats.beta(0.4, 0.9),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_numbers_are_distributed_as_they_are_named(drawn, name):
    assert stats.kstest(drawn["torch"][name], DISTRIBUTIONS[name].cdf).pvalue > 1e-3


def test_bits_are_even_and_independent_of_their_neighbours_and_keys(drawn):
    bits = np.unpackbits(drawn["torch"]["bits"].view(np.uint8)).astype(float)
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(bits.size)
    normal = drawn["torch"]["normal"]
    for lag in (1, 2, 32, 1000):
        assert abs(np.corrcoef(normal[:-lag], normal[lag:])[0, 1]) < 4 / np.sqrt(normal.size)
    counts = np.bincount(drawn["torch"]["randint"] + 5, minlength=1005)
    assert stats.chisquare(counts).pvalue > 1e-3
    trials = np.bincount(drawn["torch"]["binomial"].astype(int), minlength=21)[:14]
    expected = stats.binom(20, 0.3).pmf(np.arange(14))
    assert stats.chisquare(trials, expected / expected.sum() * trials.sum()).pvalue > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_uniform_within_every_step_and_replica(drawn, backend):
    streams = drawn[backend]["streams"].view(np.uint32)  # (steps, replicas, numbers)
    values = [stats.kstest(stream / 2.0**32, "uniform").pvalue for stream in streams.reshape(-1, streams.shape[-1])]
    assert min(values) > 1e-3 / len(values)
    assert stats.kstest(values, "uniform").pvalue > 1e-3  # neither worse than chance nor better
    bits = np.unpackbits(streams.view(np.uint8)).astype(float)
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(bits.size)
    bytes_of = np.bincount(streams.reshape(-1).view(np.uint8), minlength=256)
    assert stats.chisquare(bytes_of).pvalue > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_are_independent_over_replicas_and_steps(drawn, backend):
    """Keys of neighbouring steps differ by one bit or two; replicas of a step count on where another ended."""
    streams = drawn[backend]["streams"].view(np.uint32)
    steps, replicas, numbers = streams.shape
    uniform = streams.reshape(-1, numbers) / 2.0**32
    correlations = np.corrcoef(uniform)[np.triu_indices(steps * replicas, 1)] * np.sqrt(numbers)
    assert np.abs(correlations).max() < stats.norm.isf(1e-3 / correlations.size / 2)
    assert abs(correlations.std() - 1) < 4 / np.sqrt(2 * correlations.size)  # as chance has it
    for axis in (0, 1):  # bits that differ between one step and the next, one replica and the next
        one, next_one = np.moveaxis(streams, axis, 0)[:-1], np.moveaxis(streams, axis, 0)[1:]
        differing = np.unpackbits((one ^ next_one).view(np.uint8))
        assert abs(differing.mean() - 0.5) < 4 * 0.5 / np.sqrt(differing.size)
    pairs = np.histogram2d(uniform[0::2].ravel(), uniform[1::2].ravel(), bins=16, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(pairs.ravel()).pvalue > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("devices", (1, 2, 4))
def test_models_that_draw_train_alike_on_all_backends_and_devices(ran, backend, devices):
    same(ran(backend, "random-layers", devices), ran("jax", "random-layers", 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_accumulated_update_draws_what_the_whole_batch_draws(ran, backend):
    same(ran(backend, "random-layers-accumulated", 2), ran("jax", "random-layers", 1))


def same(run, truth):
    assert not [note for note in run.outcome["notes"] if "whole batch" in note]
    for name, value in truth.weights.items():
        np.testing.assert_allclose(run.weights[name], value, rtol=0, atol=ROUNDING, err_msg=name)
    for mine, theirs in zip(run.history, truth.history, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_seed_draws_other_numbers(ran, backend):
    one, other = ran(backend, "random-layers", 1), ran(backend, "random-layers-again", 1)
    assert one.losses[0] != pytest.approx(other.losses[0], rel=1e-3)
