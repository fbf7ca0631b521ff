"""Verdicts of a parity check: what agrees, what rounding excuses, what parts, and what it looks like."""

from __future__ import annotations

import math

import fake_parity
import pytest
from fake_parity import cell, off, reference, trajectory

from kmgpu.report import causes, verdicts
from kmgpu.report.causes import Evidence, likely

KERNEL, BIAS, OUT = fake_parity.WEIGHTS
MEAN, VARIANCE = fake_parity.STATES


def judge(record, dtype="float32", **of_reference):
    return verdicts.judge(record, reference(**of_reference), dtype)


# --- a step


def test_what_is_within_the_tolerance_agrees():
    verdict = judge(cell(9e-6))
    assert (verdict.word, verdict.ok, verdict.kinks, verdict.parting) == ("agrees", True, 0, ())
    assert verdict.largest == {
        "loss": 9e-6, "metrics": 0.0, "gradients": 9e-6, "states": 9e-6, "update": 0.0, "trajectory": 9e-6,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "name", "what"),
    [
        ("loss", "", "loss"),
        ("metrics", "accuracy", "metric of accuracy"),
        ("gradients", BIAS, "gradient of dense/bias"),
        ("states", MEAN, "state of bn/moving_mean"),
        ("update", OUT, "update of out/kernel"),
    ],
)
def test_any_quantity_beyond_the_tolerance_in_any_step_parts(kind, name, what):
    verdict = judge(off(cell(), 1, kind, name, [2e-5]))
    (difference,) = verdict.parting
    assert verdict.word == "parts" and not verdict.ok
    assert (difference.step, difference.what, difference.error) == (1, what, 2e-5)


@pytest.mark.parametrize("kind", ["loss", "metrics", "gradients", "states", "update"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, None])
def test_what_is_not_a_number_never_agrees(kind, bad):
    name = {"metrics": "accuracy", "gradients": BIAS, "states": MEAN, "update": OUT}.get(kind, "")
    assert judge(off(cell(), 0, kind, name, [bad])).word == "parts"


def test_a_kink_is_gone_on_batches_a_little_off_and_is_counted():
    verdict = judge(off(cell(), 0, "gradients", KERNEL, [3e-3, 2e-7, 4e-3]))
    assert (verdict.word, verdict.kinks, verdict.flipped) == ("agrees", 1, 3e-3)
    assert verdict.in_words == "agrees with 1 kink flip"
    assert verdict.largest["gradients"] == 2e-7, "what was judged, not what was excused"


def test_kinks_may_flip_in_different_variables_on_different_batches():
    record = off(cell(), 0, "gradients", KERNEL, [3e-3, 2e-7, 4e-3])
    assert judge(off(record, 0, "gradients", BIAS, [1e-3, 1e-3, 3e-7])).word == "agrees"


def test_what_is_wrong_on_all_three_batches_is_no_kink():
    verdict = judge(off(cell(), 0, "gradients", KERNEL, [3e-3, 2e-3, 4e-3]))
    assert verdict.word == "parts" and verdict.parting[0].error == 2e-3


def test_a_kink_does_not_hide_what_is_wrong_beside_it():
    record = off(cell(), 0, "gradients", KERNEL, [3e-3, 2e-7, 4e-3])
    verdict = judge(off(record, 0, "gradients", BIAS, [2e-3]))
    assert [difference.name for difference in verdict.parting] == [BIAS] and verdict.kinks == 1


def test_the_update_has_no_kinks():
    record = off(cell(), 0, "gradients", KERNEL, [3e-3, 2e-7, 4e-3])
    assert judge(off(record, 0, "update", KERNEL, [2e-5])).word == "parts"


def test_three_times_the_references_own_noise_is_excused_and_shown():
    verdict = judge(off(cell(), 0, "gradients", KERNEL, [5.9e-5]), noise=2e-5)
    (difference,) = verdict.noise
    assert (verdict.word, verdict.in_words, verdict.ok) == ("noise", "within rounding noise", True)
    assert (difference.error, difference.floor) == (5.9e-5, 2e-5)
    assert judge(off(cell(), 0, "gradients", KERNEL, [6.1e-5]), noise=2e-5).word == "parts"


def test_no_noise_excuses_more_than_the_cap():
    assert judge(off(cell(), 0, "gradients", KERNEL, [9e-4]), noise=1e-2).word == "noise"
    assert judge(off(cell(), 0, "gradients", KERNEL, [1.1e-3]), noise=1e-2).word == "parts"


@pytest.mark.parametrize("noise", [math.nan, math.inf])
def test_a_reference_that_is_not_a_number_excuses_nothing(noise):
    assert judge(off(cell(), 0, "gradients", KERNEL, [2e-5]), noise=noise).word == "parts"


def test_noise_excuses_a_quantity_only_by_its_own_noise():
    of = reference()
    of["floor"][0]["gradients"][BIAS] = 1e-4
    assert verdicts.judge(off(cell(), 0, "gradients", BIAS, [2e-4]), of, "float32").word == "noise"
    assert verdicts.judge(off(cell(), 1, "gradients", BIAS, [2e-4]), of, "float32").word == "parts"
    assert verdicts.judge(off(cell(), 0, "gradients", KERNEL, [2e-4]), of, "float32").word == "parts"


def test_float64_excuses_nothing():
    assert judge(cell(9e-13), "float64", noise=1e-15).word == "agrees"
    assert judge(off(cell(1e-15), 0, "gradients", KERNEL, [1e-9, 1e-15, 1e-15]), "float64").word == "parts"
    assert judge(off(cell(1e-15), 0, "gradients", KERNEL, [2e-12]), "float64", noise=1e-10).word == "parts"


def test_differences_come_in_the_order_of_a_step_and_of_the_model():
    record = off(off(off(cell(), 0, "update", KERNEL, [1.0]), 0, "gradients", OUT, [1.0]), 0, "loss", "", [1.0])
    found = [difference.what for difference in judge(off(record, 0, "gradients", BIAS, [1.0])).parting]
    assert found == ["loss", "gradient of dense/bias", "gradient of out/kernel", "update of dense/kernel"]


@pytest.mark.parametrize("kind", ["gradients", "states", "metrics"])
def test_what_was_not_compared_does_not_agree(kind):
    record = cell()
    record["steps"][1]["variants"][0][kind].popitem()
    verdict = judge(record)
    assert verdict.word == "failed" and "in step 1 it compared" in verdict.reason and not verdict.ok


def test_steps_that_are_missing_do_not_agree():
    assert "compared 1 steps" in judge(cell(steps=1)).reason
    record = cell()
    record["trajectory"] = trajectory([1e-7])
    assert "ran 1 steps free" in judge(record).reason
    record = cell()
    record["steps"][0]["update"] = {}
    assert "0 updates of 3 weights" in judge(record).reason


# --- free running


def running(errors, noise, dtype="float32", word="agrees", flipped=0.0):
    steps = [verdicts.Step(0, word, {}, (), flipped)]
    return verdicts.judge_trajectory(trajectory(errors), trajectory(noise), dtype, steps)


@pytest.mark.parametrize(
    ("errors", "noise", "word"),
    [
        ([1e-7, 9e-6], [1e-7, 1e-7], "agrees"),
        ([1e-7, 3e-3], [1e-7, 1e-3], "chaos"),
        ([1e-7, 9e-4], [1e-7, 1e-7], "beside the noise"),
        ([1e-7, 2e-3], [1e-7, 1e-6], "suspicious"),
        ([1e-7, math.nan], [1e-7, 1e-6], "suspicious"),
    ],
)
def test_float32_judges_the_first_step_alone_and_names_the_rest(errors, noise, word):
    assert running(errors, noise).word == word


def test_a_training_step_that_is_not_the_one_that_was_compared_parts():
    found = running([5e-4, 5e-4], [1e-7, 1e-7])
    assert found.word == "parts" and found.first.step == 0 and found.first.what == "loss in free running"


def test_a_first_step_is_excused_by_its_kinks_by_noise_and_where_its_parts_part_already():
    assert running([5e-4, 5e-4], [1e-7, 1e-7], word="kink", flipped=1e-5).word == "beside the noise"
    assert running([5e-3, 5e-3], [1e-7, 1e-7], word="kink", flipped=1e-5).word == "parts"
    assert running([5e-4, 5e-4], [1e-5, 1e-5]).word == "chaos"
    assert running([5e-4, 5e-4], [1e-7, 1e-7], word="parts").word == "beside the noise"


def test_each_weight_is_judged_by_its_own_noise():
    mine, noise = trajectory([1e-7, 1e-7]), trajectory([1e-7, 1e-7])
    for record in (mine, noise):
        record["first_weights"][BIAS] = record["weights"][0] = 1.5  # as Adam does of a gradient that is rounding
    steps = [verdicts.Step(0, "agrees", {}, ())]
    assert verdicts.judge_trajectory(mine, noise, "float32", steps).word == "chaos"
    mine["first_weights"][OUT] = 5e-4
    found = verdicts.judge_trajectory(mine, noise, "float32", steps)
    assert found.word == "parts" and found.first.what == "out/kernel in free running"
    del mine["first_weights"], noise["first_weights"]
    assert verdicts.judge_trajectory(mine, noise, "float32", steps).word == "chaos", "not recorded, so not judged"


def test_float64_judges_all_of_it():
    assert running([1e-15, 9e-10], [1e-15, 1e-9], "float64").word == "agrees"
    found = running([1e-15, 2e-9], [1e-15, 1e-3], "float64")
    assert found.word == "parts" and found.first.step == 1


def test_a_cell_parts_by_its_trajectory_alone():
    record = cell()
    record["trajectory"] = trajectory([5e-4, 5e-4])
    assert judge(record).word == "parts"


def test_the_floor_is_the_largest_noise_of_each_kind():
    of = reference()
    of["floor"][1]["gradients"][OUT] = 3e-6
    assert verdicts.floors(of) == {
        "loss": 2e-7, "metrics": 0.0, "gradients": 3e-6, "states": 2e-7, "update": None, "trajectory": 2e-7,
    }  # fmt: skip


# --- likely causes


def looks(record, dtype="float32", noise=fake_parity.ROUNDING, **known):
    """Return the name of the cause of a cell, on 2 devices of the reference's backend unless told otherwise."""
    verdict = judge(record, dtype, noise=noise)
    assert verdict.word == "parts"
    evidence = Evidence(verdict, **{"backend": "torch", "devices": 2, "reference": "torch", "alone_agrees": True,
                                    "dtype": dtype, **known})  # fmt: skip
    return next(cause.name for cause in causes.CAUSES if cause.applies(evidence)), likely(evidence)


def gradients(*errors):
    record = cell()
    for name, error in zip(fake_parity.WEIGHTS, errors, strict=True):
        off(record, 0, "gradients", name, [error])
    return record


@pytest.mark.parametrize(("error", "said"), [(1.0, "about 2"), (0.5, "about 0.5"), (0.25, "about 1.25")])
def test_gradients_all_off_by_one_factor_are_scaled(error, said):
    name, words = looks(gradients(error, error * 1.001, error))
    assert name == "scaled gradients" and said in words


def test_gradients_off_by_different_amounts_are_not_scaled():
    assert looks(gradients(0.5, 0.1, 0.3))[0] == "several devices"


def test_moving_statistics_that_differ_on_several_devices_are_per_replica_batch_norm():
    record = off(off(gradients(0.1, 0.2, 0.3), 0, "states", MEAN, [0.1]), 0, "states", VARIANCE, [0.2])
    name, words = looks(off(record, 0, "loss", "", [0.01]))
    assert name == "per-replica BatchNorm" and MEAN in words and "batch_norm='global'" in words
    assert looks(record, backend="jax", devices=1)[0] == "the backend itself"
    assert looks(record, backend="jax", alone_agrees=False)[0] == "the backend itself"


def test_differences_in_uneven_batches_alone_are_a_mean_of_means():
    record = off(off(cell(), 1, "loss", "", [0.1]), 1, "gradients", KERNEL, [0.1])
    name, words = looks(record, sizes=(64, 29))
    assert name == "mean of means" and "batches of 29 rows" in words
    assert looks(record, sizes=(64, 64))[0] != "mean of means"
    assert looks(off(record, 0, "loss", "", [0.1]), sizes=(64, 29))[0] != "mean of means"


def test_an_update_that_differs_alone_is_the_optimizers():
    assert looks(off(cell(), 0, "update", KERNEL, [0.1]))[0] == "optimizer"
    name, words = looks(off(cell(), 0, "update", "embedding/embeddings", [0.1]))
    assert name == "repeated embedding rows" and "embedding/embeddings" in words


def test_float64_errors_of_float32_size_are_float32():
    assert looks(off(cell(1e-15), 0, "gradients", KERNEL, [3e-8]), "float64")[0] == "float64 that is really float32"
    name, words = looks(cell(1e-8, dtypes={"bn": "float32"}), "float64", dtypes={"dense": "float64", "bn": "float32"})
    assert name == "another float type" and "bn compute" in words


def test_a_backend_that_differs_on_one_device_does_something_else():
    record = off(gradients(0.5, 0.1, 0.3), 0, "loss", "", [0.1])
    name, words = looks(record, backend="jax", devices=1)
    assert name == "the backend itself" and "jax differs from torch on one device" in words
    assert looks(record)[0] == "loss over the whole batch"


def test_other_patterns_have_their_words():
    assert looks(off(cell(), 0, "metrics", "accuracy", [0.1]))[0] == "metrics"
    assert looks(gradients(0.5, 0.1, 0.3), random_kept=True)[0] == "repeated masks"
    assert looks(gradients(5e-4, 1e-4, 3e-4), tf32=True, backend="jax", devices=1)[0] == "TF32"
    assert looks(gradients(0.5, 0.1, 0.3), finite=False)[0] == "not finite"
    record = cell()
    record["trajectory"] = trajectory([5e-4, 5e-4])
    assert looks(record)[0] == "another training step"
    assert looks(gradients(0.5, 0.1, 0.3), devices=1)[0] == "unknown"


def test_the_last_cause_fits_everything_and_all_words_can_be_filled_in():
    evidence = Evidence(judge(off(cell(), 0, "loss", "", [1.0])), "jax", 4, "torch", sizes=(64, 29))
    assert causes.CAUSES[-1].applies(evidence)
    for cause in causes.CAUSES:
        assert not {"{", "}"} & set(causes.in_words(cause, evidence))
    assert len({cause.name for cause in causes.CAUSES}) == len(causes.CAUSES)
