"""Intervals cover what they say, equal things tie, and a planted slowdown is found as often as it should be."""

from __future__ import annotations

import itertools
import math

import fake_studies
import numpy as np
import pytest
import scipy.stats

from kmgpu.report import ranking, ratios, runs, statistics, student

# --- student.py


@pytest.mark.parametrize("degrees", [1, 2, 4, 7, 30, 1000])
def test_quantiles_and_probabilities_are_scipys(degrees):
    for confidence in (0.5, 0.9, 0.95, 0.999):
        expected = scipy.stats.t.ppf((1 + confidence) / 2, degrees)
        assert student.quantile(confidence, degrees) == pytest.approx(expected, rel=1e-9)
    for t in (0.0, 0.01, 0.7, 2.0, 30.0, 1e4, math.inf):
        assert student.two_sided(t, degrees) == pytest.approx(2 * scipy.stats.t.sf(t, degrees), rel=1e-9, abs=1e-13)


# --- ratios.py


def test_a_ratio_is_taken_within_blocks():
    """A machine that slows down over the study moves both cells, and not their ratio."""
    slow = [1.0, 1.3, 1.7, 2.5]
    mine, other = ({block: speed / slow[block] for block in range(4)} for speed in (110.0, 100.0))
    ratio = ratios.paired(mine, other)
    assert ratio.value == pytest.approx(1.1) and ratio.low == pytest.approx(1.1) and ratio.blocks == 4
    apart = ratios.paired(mine, {block: speed for block, speed in other.items() if block > 1})
    assert apart.blocks == 2
    assert ratios.paired(mine, {}) is None


def test_one_block_has_a_value_and_no_interval():
    ratio = ratios.paired({0: 3.0}, {0: 2.0})
    assert (ratio.value, ratio.low, ratio.p, ratio.blocks) == (pytest.approx(1.5), None, None, 1)
    (judged,) = ratios.judge([ratio])
    assert judged.word == "unknown" and "nobody knows" in judged.why


@pytest.mark.parametrize("blocks", [2, 3, 5, 8])
@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_intervals_cover_what_they_say(blocks, noise):
    """The true ratio is in 95 % of intervals, also where one process in twenty has five times the noise."""
    draws = np.random.default_rng(blocks)
    logs = draws.normal(size=(3000, blocks)) * 0.05
    if noise == "heavy":
        logs *= np.where(draws.random(logs.shape) < 0.05, 5.0, 1.0)
    found = [ratios.of_logs(list(row + math.log(1.2))) for row in logs]
    covered = np.mean([ratio.low <= 1.2 <= ratio.high for ratio in found])
    assert 0.935 <= covered <= 0.97, f"{covered:.3f} of intervals hold the true ratio"


def test_holm_is_what_scipys_users_compute_by_hand():
    approx = pytest.approx
    assert ratios.holm([0.01, 0.04, 0.03, None]) == [approx(0.03), approx(0.06), approx(0.06), None]
    assert ratios.holm([0.9, 0.8]) == [1.0, 1.0]
    assert ratios.holm([]) == []


@pytest.mark.parametrize(
    ("logs", "word", "why"),
    [
        ([0.1, 0.11, 0.09, 0.1], "faster", ""),
        ([-0.1, -0.11, -0.09, -0.1], "slower", ""),
        ([0.1, -0.09, 0.12, -0.1], "tie", "inside the interval"),
        ([0.0100, 0.0101, 0.0099, 0.0100], "tie", "under 2%"),
        ([0.03, 0.05, 0.02, 0.04], "tie", "it may be under 2%"),
        ([0.0, 0.0, 0.0], "tie", "inside the interval"),
    ],
)
def test_a_tie_is_named_a_tie_and_why(logs, word, why):
    (judged,) = ratios.judge([ratios.of_logs(logs)])
    assert (judged.word, judged.why) == (word, why)


def test_equal_things_are_told_apart_far_less_often_than_once_in_twenty():
    draws = np.random.default_rng(5).normal(size=(2000, 8)) * 0.03 * math.sqrt(2)
    words = [judged.word for row in draws for judged in ratios.judge([ratios.of_logs(list(row))])]
    assert 1 - words.count("tie") / len(words) < 0.02


def test_what_is_beyond_its_own_interval_may_be_chance_among_many():
    lucky = ratios.of_logs([0.07, 0.11, 0.05, 0.13])
    assert lucky.p < 0.05 and ratios.judge([lucky])[0].word == "faster"
    equal = [ratios.of_logs([0.1, -0.1, 0.05, -0.06]) for _ in range(9)]
    judged = ratios.judge([lucky, *equal])[0]
    assert (judged.word, judged.why) == ("tie", "not beyond chance among so many comparisons")


def test_noise_is_what_is_left_when_cells_and_blocks_are_taken_out():
    draws = np.random.default_rng(0)
    blocks, cells = 40, (100.0, 150.0, 300.0)
    mood = np.exp(draws.normal(size=blocks) * 0.5)
    groups = [
        {block: speed * mood[block] * math.exp(draws.normal() * 0.03) for block in range(blocks)} for speed in cells
    ]
    assert ratios.spread(groups) == pytest.approx(0.03, rel=0.2)
    alone = {block: 100 * math.exp(draws.normal() * 0.03) for block in range(blocks)}
    assert ratios.spread([alone]) == pytest.approx(0.03, rel=0.3)
    assert ratios.spread([{0: 1.0}, {0: 2.0}]) is None and ratios.spread([]) is None


def test_the_smallest_difference_that_is_seen_is_seen_in_four_cases_of_five():
    noise, blocks = 0.03, 6
    size = ratios.smallest(noise, blocks)
    draws = np.random.default_rng(1).normal(size=(2000, 2, blocks)) * noise
    found = [ratios.of_logs(list(mine - other + math.log1p(size))) for mine, other in draws]
    seen = [judged.word == "faster" for ratio in found for judged in ratios.judge([ratio])]
    assert np.mean(seen) == pytest.approx(0.8, abs=0.04)
    assert ratios.smallest(noise, 1) is None


# --- whole studies, written and read: A/A, and planted slowdowns

TWENTY = range(20)
CURVE = (1.0, 1.01, 1.02, 1.03, 1.05, 1.10)  # of the time of a step


def found(path, seed, factor):
    """What a study says of jax beside a torch that is planted ``factor`` times as slow, both as fast otherwise."""
    seconds = dict.fromkeys(("torch", "jax"), 0.01)
    fake = fake_studies.Fake(
        backends=("torch", "jax"), devices=(1,), repeats=8, seed=seed, epochs=3, seconds=seconds, window_noise=0.03,
        slower={("torch", 1): factor},
    )  # fmt: skip
    made, sentences = runs.load_all(runs.find([fake.write(path).parent]))
    assert len(made) == 16 and not sentences
    ((comparison,),) = ranking.compare([made])
    return comparison


def test_a_planted_slowdown_is_found_and_equal_things_are_not_told_apart(tmp_path):
    """20 studies of 8 processes for each slowdown; equal processes differ by 3 %, and moods of the machine by 5 %."""
    numbers = itertools.count()
    seen = {
        factor: [found(tmp_path / f"{next(numbers)}" / "study", 100 + seed, factor) for seed in TWENTY]
        for factor in CURVE
    }
    detected = {
        factor: sum(case.judged.word == "faster" and case.mine[0] == "jax" for case in cases)
        for factor, cases in seen.items()
    }
    different = sum(case.judged.word != "tie" for case in seen[1.0])
    assert different <= 1, f"A/A: {different} of 20 were called different"
    assert detected[1.10] >= 19, detected
    assert detected[1.01] <= 2 and detected[1.02] <= 3, f"these are ties by definition: {detected}"
    assert detected[1.02] <= detected[1.05] <= detected[1.10], detected
    assert detected[1.03] <= 6 and 2 <= detected[1.05] <= 18, f"noise of 3 % hides some of these: {detected}"
    covered = sum(_covers(case, 1.10) for case in seen[1.10])
    assert covered >= 17, f"{covered} of 20 intervals hold the planted 1.10"


def _covers(case, factor):
    return case.judged.ratio.low <= factor <= case.judged.ratio.high


def test_repeats_are_paired_by_their_names_and_a_failed_one_takes_its_block_along(tmp_path):
    fake = fake_studies.Fake(backends=("torch", "jax"), devices=(1,), repeats=3, fail={"torch-ddp-1-r1": "killed"})
    made, _ = runs.load_all(runs.find([fake.write(tmp_path / "s" / "study").parent]))
    cells = statistics.cells(made)
    assert list(statistics.speeds(cells["torch", "ddp", 1])) == [(0, 0), (0, 2)]
    assert ranking.compare([made])[0][0].judged.ratio.blocks == 2


def test_cells_that_are_not_proved_are_in_no_comparison(tmp_path):
    made, _ = runs.load_all(runs.find([fake_studies.Fake(repeats=2).write(tmp_path / "s" / "study").parent]))
    (pairs,) = ranking.compare([made], {("jax", 2)})
    on_two = [pair for pair in pairs if pair.devices == 2]
    assert len(pairs) == 3 + 1 and not any("jax" in (pair.mine[0], pair.other[0]) for pair in on_two)


# --- ranking.py, in words


def judged(word, value, why=""):
    known = None if word == "unknown" else value
    return ratios.Judged(ratios.Ratio(value, known and value * 0.9, known and value * 1.1, 5, 0.01), 0.01, word, why)


def pairs(*words):
    """torch, jax and tensorflow, in this order of speed: (torch, jax), (torch, tensorflow), (jax, tensorflow)."""
    keys = [("torch", "ddp", 1), ("jax", "data_parallel", 1), ("tensorflow", "mirrored", 1)]
    return [
        ranking.Comparison(mine, other, judged(word, 1.2, "inside the interval" if word == "tie" else ""))
        for (mine, other), word in zip(itertools.combinations(keys, 2), words, strict=True)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("faster", "faster", "tie"),
            "On 1 device torch is the fastest: 1.20 times as fast as jax (95 % interval 1.08",
        ),
        (("tie", "faster", "faster"), "On 1 device torch and jax tie for the fastest: torch is 1.20 times as fast as"),
        (("tie", "tie", "tie"), "On 1 device torch and jax and tensorflow tie: torch is 1.20 times"),
        (("unknown", "unknown", "unknown"), "On 1 device torch measured the fastest (one process for each, so nobody"),
    ],
)
def test_a_ranking_is_one_plain_sentence_for_each_number_of_devices(words, said):
    (sentence,) = ranking.sentences(pairs(*words))
    assert sentence.startswith(said)


def test_two_strategies_of_one_backend_are_told_apart():
    one, two = ("torch", "ddp", 2), ("torch", "data_parallel", 2)
    (sentence,) = ranking.sentences([ranking.Comparison(one, two, judged("faster", 1.5))])
    assert sentence.startswith("On 2 devices torch ddp is the fastest: 1.50 times as fast as torch data_parallel")


def test_an_interval_that_says_nothing_is_not_printed():
    wide = ratios.Judged(ratios.Ratio(1.5, 0.001, 70000.0, 2, 0.4), 0.4, "tie", "inside the interval")
    keys = ("torch", "ddp", 1), ("jax", "data_parallel", 1)
    (sentence,) = ranking.sentences([ranking.Comparison(*keys, wide)])
    assert "70000" not in sentence and "(2 repeats are too few to tell more on a machine that scatters so)" in sentence
