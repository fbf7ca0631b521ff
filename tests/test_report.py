"""Run directories become rows and tables; runs that differ in more than what is compared are refused."""

from __future__ import annotations

import io
import json
import math

import fake_runs
import numpy as np
import pytest
from rich.console import Console

from kmgpu import records
from kmgpu.errors import NotComparable, UsageError
from kmgpu.report import comparable, listing, runs, statistics, tables


@pytest.fixture
def make(tmp_path):
    """Write a run and read it: ``make("jax", 2, seed=1, end={"sample_order": "..."})``."""

    def write(backend="torch", devices=1, repeat=0, start=None, end=None, status="ok", reason=None, **fields):
        path = tmp_path / f"{backend}-{devices}-r{repeat}"
        of = fake_runs.job(backend, devices, **fields)
        fake_runs.write(path, of, status=status, reason=reason, start=start, **(end or {}))
        return runs.load(path)

    return write


@pytest.fixture
def study(make):
    return [make(backend, devices) for backend in ("torch", "tensorflow", "jax") for devices in (1, 2)]


def rendered(width, said, rows, wary):
    stream = io.StringIO()
    Console(file=stream, width=width).print(tables.terminal(said, rows, wary, width))
    return stream.getvalue()


# --- runs.py


def test_a_run_is_read_whole(make):
    run = make("jax", 2)
    assert (run.name, run.status, run.ok, run.job.backend) == ("jax-2-r0", "ok", True, "jax")
    assert run.start["framework"] == "jax 0.10.2" and len(run.history) == 3


def test_a_run_without_an_outcome_is_unfinished_and_says_how_far_it_came(make):
    run = make()
    (run.path / "outcome.json").unlink()
    assert runs.load(run.path).status == "unfinished"
    assert len(runs.load(run.path).history) == 3


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.json", '{"format": 99}', "format 99"),
        ("job.json", "{", "cannot be read as a run"),
        ("job.json", "[]", "cannot be read as a run"),
        ("outcome.json", "{}", None),
        ("outcome.json", '{"reason": ""}', "no 'status'"),
        ("outcome.json", "half", "cannot be read as a run"),
    ],
)
def test_an_unreadable_run_gives_a_sentence(make, tmp_path, name, text, said):
    run = make()
    (run.path / name).write_text(text)
    found, sentences = runs.load_all([run.path, tmp_path / "absent"])
    assert sentences[-1].endswith("absent is not a run directory: it has no job.json")
    if said is None:
        assert found[0].status == "unfinished"
    else:
        assert not found and said in sentences[0]


def test_runs_are_found_in_folders_and_in_studies(tmp_path):
    fake_runs.write(tmp_path / "runs" / "a", fake_runs.job())
    fake_runs.write(tmp_path / "studies" / "s" / "b", fake_runs.job())
    found = runs.find([tmp_path / "runs", tmp_path / "studies", tmp_path / "absent"])
    assert [path.name for path in found] == ["a", "b"]


# --- comparable.py


def test_equal_runs_are_comparable(study):
    comparable.check(study)
    comparable.check([])


@pytest.mark.parametrize(
    ("differing", "said"),
    [
        ({"end": {"initial_weights": "00" * 32}}, "initial weights: 3f2a91c0... in torch-1-r0, 00000000... in jax"),
        ({"end": {"sample_order": "11" * 32}}, "sample order: 77be01aa... in torch-1-r0, 11111111..."),
        ({"end": {"sample_order": None}}, "sample order is not recorded in jax-1-r0"),
        ({"start": {"device_kind": "gpu"}}, 'device kind: "cpu" in torch-1-r0, "gpu" in jax-1-r0'),
        ({"start": {"epochs": 5}}, "epochs: 3 in torch-1-r0, 5 in jax-1-r0"),
        ({"start": {"rows": 1000}}, "training rows"),
        ({"start": {"learning_rate": 0.1}}, "learning rate: 0.001 in torch-1-r0, 0.1 in jax-1-r0"),
        ({"start": {"precision": {"dtype": "bfloat16"}}}, 'precision (dtype): "float32" in torch-1-r0, "bfloat16"'),
        ({"seed": 1}, "seed: 0 in torch-1-r0, 1 in jax-1-r0"),
        ({"batch_size": 32}, "global batch: 64 in torch-1-r0, 32 in jax-1-r0"),
        ({"settings": {"units": 3}}, "settings: {} in torch-1-r0"),
        ({"track": "as-shipped"}, "track"),
    ],
)
def test_what_differs_is_named_with_who_has_which_value(make, differing, said):
    with pytest.raises(NotComparable) as caught:
        comparable.check([make("torch"), make("jax", **differing)])
    assert said in str(caught.value)
    assert caught.value.exit_code == 4


def test_a_learning_rate_read_back_as_float32_is_no_difference(make):
    comparable.check([make("torch"), make("jax", start={"learning_rate": float(np.float32(1e-3))})])


def test_switches_that_only_one_framework_has_are_no_difference(make):
    comparable.check([make("torch"), make("jax", start={"precision": {"dtype": "float32", "matmul": "highest"}})])


def test_under_weak_scaling_batch_and_order_belong_to_a_number_of_devices(make):
    end = {"sample_order": "22" * 32}
    good = [make("torch", 1), make("torch", 2, batch_size=128, end=end), make("jax", 2, batch_size=128, end=end)]
    comparable.check(good, "weak")
    with pytest.raises(NotComparable, match="global batch"):
        comparable.check(good, "strong")
    with pytest.raises(NotComparable, match="sample order on 2 devices"):
        comparable.check([*good, make("tensorflow", 2, batch_size=128)], "weak")


# --- statistics.py


def test_percentiles_are_numpys():
    values = [5.0, 1.0, 4.0, 2.0, 10.0, 3.0]
    for percent in (0, 5, 50, 95, 100):
        assert statistics.percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_the_process_is_the_unit_of_a_median(make):
    """One slow repeat of three does not move the median, however many windows it has."""
    repeats = [make(repeat=number) for number in range(3)]
    repeats[2].outcome["timings"].update(step_seconds=[9.0] * 100)
    (row,) = statistics.rows(repeats)
    assert row.runs == 3
    assert row.step_seconds == pytest.approx(statistics.step_seconds(repeats[0]))
    assert row.step_seconds_p5 <= row.step_seconds <= row.step_seconds_p95


def test_numbers_of_a_row(make):
    row, double = statistics.rows([make("torch", 1), make("torch", 2)])
    assert row.samples_per_second == pytest.approx(1437 / 23 / row.step_seconds)
    assert row.speedup == 1.0 and double.speedup == pytest.approx(2**0.6)
    assert row.first_step_seconds == pytest.approx(4.2)
    assert (row.peak_bytes, double.peak_bytes) == (500 * 2**20, 1000 * 2**20)
    assert (row.final_loss, row.validation_name, row.validation) == (1 / 3, "val_accuracy", 0.9717)


def test_speedup_under_weak_scaling_is_of_samples(make):
    one, two = statistics.rows([make("torch", 1), make("torch", 2, batch_size=128)])
    assert two.speedup == pytest.approx(two.samples_per_second / one.samples_per_second)
    assert two.speedup > 1 > one.step_seconds / two.step_seconds


def test_there_is_no_speedup_without_a_run_on_one_device(make):
    assert statistics.rows([make("torch", 2)])[0].speedup is None


def test_validation_loss_stands_in_for_a_missing_accuracy(make):
    run = make()
    run.outcome["history"] = [{"loss": 1.0, "val_loss": 2.0}]
    assert statistics.validation(run) == ("val_loss", 2.0)
    run.outcome["history"] = [{"loss": 1.0}]
    assert statistics.validation(run) == (None, None)


def test_a_failed_repeat_is_counted_and_not_averaged(make):
    (row,) = statistics.rows([make(), make(repeat=1, status="failed", reason="killed")])
    assert (row.runs, row.failed) == (1, 1) and row.final_loss == 1 / 3


# --- tables.py


def test_heading_says_what_was_compared_and_that_it_was_held_equal(study):
    said = "\n".join(tables.heading(study, "strong"))
    for part in (
        "digits_cnn: strong scaling", "global batch of 64", "virtual CPU devices on 2 cores", "these are not GPUs",
        "3f2a91c0", "77be01aa", "over 6 runs", "same-math track", "dtype float32", "Keras 3.15.1",
        "torch 2.13.0 (ddp, not compiled)", "jax 0.10.2 (data_parallel, jit)",
    ):  # fmt: skip
        assert part in said


def test_heading_under_weak_scaling_names_the_batch_of_a_device(make):
    said = tables.heading([make("torch", 2, batch_size=64)], "weak")
    assert "weak scaling, 32 samples for each device" in said[0]


def test_gpus_are_named(make):
    run = make(device_kind="gpu")
    run.environment.update(gpus=["NVIDIA Test"] * 2, gpu_driver="550.1")
    assert "GPUs (NVIDIA Test, driver 550.1)" in tables.heading([run], "strong")[1]


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_table_fits_the_terminal_and_loses_nothing(study, width):
    text = rendered(width, [], statistics.rows(study), [])
    assert max(map(len, text.splitlines())) <= width
    for word in ("tensorflow", "data_parallel", "mirrored", "ddp", "global", "accuracy", "0.9717", "1.52", "1000"):
        assert word in text
    assert "…" not in text


def test_failures_and_free_lunches_are_shown(make):
    all_runs = [make("jax", 1), make("jax", 2), make("torch", 1, status="failed", reason="was killed\n  log line")]
    all_runs[1].outcome["timings"]["step_seconds"] = [0.001]
    rows = statistics.rows(all_runs)
    wary = tables.remarks(all_runs, rows)
    assert wary[0] == "torch-1-r0 failed: was killed"
    assert "jax on 2 devices is" in wary[1] and "an error until explained" in wary[1]
    assert "torch-1-r0 failed" in rendered(80, [], rows, wary)


def test_a_machine_that_was_busy_before_the_first_run_is_named(make):
    run = make()
    run.environment["load_average"] = [0.3, 0.0, 0.0]
    assert tables.remarks([run], statistics.rows([run])) == []
    run.environment["load_average"] = [4.41, 0.0, 0.0]
    assert "busy before the first run (load 4.4 on 2 cores)" in tables.remarks([run], statistics.rows([run]))[0]


def test_a_run_that_waited_for_its_data_is_named(make):
    run = make()
    run.outcome["timings"]["waiting_seconds"] = 0.3 * run.outcome["timings"]["steady_seconds"]
    assert "waited for its data 30% of the time" in tables.remarks([run], statistics.rows([run]))[0]


def test_runs_of_one_window_say_why_they_have_no_step_time(make):
    run = make(epochs=1)
    assert "every window held a compilation" in tables.remarks([run], statistics.rows([run]))[0]


def test_a_study_in_which_all_failed_still_has_a_table(make):
    failed = [make("torch", 1, status="failed", reason="no"), make("jax", 1, status="failed", reason="no")]
    rows = statistics.rows(failed)
    assert "nothing, for no run ended well" in "\n".join(tables.heading(failed, "strong"))
    assert "torch" in rendered(80, tables.heading(failed, "strong"), rows, tables.remarks(failed, rows))


def test_markdown_has_a_row_for_each_cell(study):
    rows = statistics.rows(study)
    text = tables.markdown(tables.heading(study, "strong"), rows, ["look out"])
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 6 and len({line.count("|") for line in table}) == 1
    assert "| global batch |" in table[0] and text.endswith("- look out\n")


def test_json_keeps_full_numbers_and_numbers_that_are_none(study):
    study[0].outcome["history"][-1]["loss"] = math.nan
    rows = statistics.rows(study)
    text = records.dumps(tables.to_json(study, "strong", ["said"], rows, []))
    json.loads(text, parse_constant=pytest.fail)  # strict JSON
    again = records.loads(text)
    assert math.isnan(again["rows"][0]["final_loss"]) and again["rows"][1]["final_loss"] == 1 / 3
    assert {key: again["runs"][0][key] for key in ("name", "status", "reason")} == {
        "name": "torch-1-r0", "status": "ok", "reason": None,
    }  # fmt: skip


def test_json_keeps_whole_hashes_of_every_run(study):
    written = tables.to_json(study, "strong", [], statistics.rows(study), [])
    assert [run["hashes"] for run in written["runs"]] == [run.hashes for run in study]
    assert all(len(run["hashes"]["initial_weights"]) == 64 for run in written["runs"])


def test_at_80_columns_a_row_is_one_line(study):
    lines = rendered(80, [], statistics.rows(study), []).splitlines()
    assert sum("mirrored" in line for line in lines) == sum("tensorflow mirrored" in line for line in lines) == 2
    assert len(lines) == 1 + 3 + 6 + 2  # an empty one, the header and its rule, the rows, two gaps


def test_a_long_name_of_a_metric_fits_too(make):
    run = make("jax", 2)
    run.outcome["history"][-1] = {"loss": 1.0, "val_sparse_top_k_categorical_accuracy": 0.25}
    text = rendered(80, [], statistics.rows([run]), [])
    assert max(map(len, text.splitlines())) <= 80 and "…" not in text and "0.2500" in text


# --- listing.py


def test_a_listing_has_one_line_for_each_run_with_its_path_last(make):
    listed = listing.lines([make("jax", 2), make("torch", 1, status="failed")])
    assert listed[0].split() == list(listing.HEADER)
    assert listed[1].split()[:6] == ["ok", "digits_cnn", "jax", "2", "cpu", "3/3"] and listed[1].endswith("jax-2-r0")
    assert listed[2].split()[0] == "failed"


def test_a_missing_run_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="is not a run directory"):
        runs.load(tmp_path)
