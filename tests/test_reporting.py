"""Reports say what the records say, rank nobody without a proof, name what is wrong, and can be computed again."""

from __future__ import annotations

import html
import json
import re
import shutil
from html.parser import HTMLParser

import fake_parity
import fake_runs
import fake_studies
import pytest

from kmgpu import reporting
from kmgpu.cli import run as command
from kmgpu.errors import UsageError
from kmgpu.report import agreement, archive, flags, page, rules, runs, studies, svg, trace
from kmgpu.rundir import read_json, write_json

PROVED = fake_studies.PROVED


def fake(path, **fields):
    """Write a study of three backends on 1 and 2 devices, with three repeats unless told otherwise."""
    return fake_studies.Fake(**{"repeats": 3, **fields}).write(path)


def reported(path, *others):
    """Write a report of studies and return the findings of the first, and the text of the page."""
    written = reporting.report([path, *others], path.parent / "report.html")
    return written.found.studies[0], (path.parent / "report.html").read_text()


def words(text):
    """The page as a reader sees it."""
    body = re.sub(r"<(script|style)\b.*?</\1>", " ", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", body)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A study of five repeats, its findings and its page."""
    path = fake(tmp_path_factory.mktemp("whole") / "study", repeats=5)
    return path, *reported(path)


# --- the page


def test_the_verdict_comes_first_and_names_who_what_and_how_sure(whole):
    _, study, text = whole
    said = words(text)
    places = [said.index(part) for part in ("Verdict", "On 1 device jax is the fastest: 1.", "Results", "Conditions")]
    assert places == sorted(places)
    assert "Same mathematics proved: by a fake." in said
    assert "virtual CPU devices on 2 cores (Test CPU)" in said and "these are not GPUs" in said
    assert "They say nothing about other models" in study.scope and "on 2025-10-09" in study.scope


class Strict(HTMLParser):
    """Checks that tags are closed in order, and collects what a page would load."""

    VOID = {"meta", "link", "br", "img", "input", "hr"}

    def __init__(self):
        super().__init__()
        self.open, self.loaded, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.loaded += [known[name] for name in ("src", "href", "data") if name in known]
        self.ids += [known["id"]] if "id" in known and tag not in ("pattern",) else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> at {self.getpos()} closes something else"


def test_the_page_is_one_whole_file_that_loads_nothing(whole):
    parser = Strict()
    parser.feed(whole[2])
    assert not parser.open
    assert all(target.startswith("#") for target in parser.loaded), parser.loaded
    assert len(set(parser.ids)) == len(parser.ids)
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest", whole[2].partition('id="records"')[0])


def test_every_figure_has_a_title_a_description_and_its_numbers(whole):
    figures = re.findall(r"<figure>.*?</figure>", whole[2], re.DOTALL)
    assert len(figures) == 12
    for figure in figures:
        assert "role='img'" in figure and "<title>" in figure and "The numbers are in the table below" in figure
        assert len(re.findall("<tr>", figure)) > 1


def test_what_a_name_says_is_never_markup(tmp_path):
    path = fake(tmp_path / "s" / "study", fail={"torch-ddp-1-r0": "<script>alert(1)</script> & more"})
    _, text = reported(path)
    assert "<script>alert" not in text.replace("\\u003c", "<-") and "&lt;script&gt;alert(1)" in text


def test_all_31_rules_are_shown_with_what_was_done(whole):
    _, study, text = whole
    assert [kept.number for kept in study.rules] == list(range(1, 32))
    assert {kept.status for kept in study.rules} == {"enforced", "recorded", "not met"}
    assert all(kept.how for kept in study.rules)
    status = {kept.number: kept.status for kept in study.rules}
    assert status[19] == status[20] == "enforced" and status[27] == status[26] == status[24] == "not met"
    assert all(kept.rule in words(text) for kept in study.rules)


def test_numbers_of_the_page_are_those_of_the_printed_table(whole):
    from kmgpu.report import statistics

    path, study, _ = whole
    known, _ = runs.load_all(sorted(file.parent for file in path.glob("*/job.json")))
    printed = {(row.backend, row.devices): row for row in statistics.rows(known)}
    for row in study.tables[0].rows:
        assert printed[row.backend, row.devices] == row


def test_what_was_not_measured_is_never_zero(tmp_path):
    path = fake(tmp_path / "s" / "study", end={("jax", 1): {"peak_bytes": [None]}})
    study, text = reported(path)
    (row,) = [row for row in study.tables[0].rows if (row.backend, row.devices) == ("jax", 1)]
    assert row.peak_bytes is None
    assert "not measured" in words(text)


# --- other forms


def test_a_directory_gets_all_forms(whole, tmp_path):
    written = reporting.report([whole[0]], tmp_path / "paper")
    names = {str(file.relative_to(tmp_path / "paper")) for file in written.paths}
    assert {"report.html", "report.md", "report.csv", "report.json", "runs.csv", "figures/1-speed.svg"} <= names
    table = (tmp_path / "paper" / "report.csv").read_text().splitlines()
    assert len(table) == 1 + 6 and len((tmp_path / "paper" / "runs.csv").read_text().splitlines()) == 1 + 30
    markdown = (tmp_path / "paper" / "report.md").read_text()
    assert markdown.index("## Verdict") < markdown.index("## Results") and "| jax over torch |" in markdown
    assert json.loads((tmp_path / "paper" / "report.json").read_text())["format"] == 1
    assert (tmp_path / "paper" / "figures" / "1-scaling.svg").read_text().startswith("<svg xmlns=")


def test_an_unknown_ending_is_refused(whole, tmp_path):
    with pytest.raises(UsageError, match="ends in .html, .md, .csv or .json"):
        reporting.report([whole[0]], tmp_path / "report.pdf")


def test_ticks_are_round_and_hold_the_range():
    for low, high in ((0, 1), (0, 18_431.7), (0.93, 0.97), (3e-5, 9e-5), (5, 5), (0, 0)):
        found = svg.ticks(low, high)
        assert found[0] <= low and found[-1] >= high and 2 <= len(found) <= 8, (low, high, found)


# --- computed again from what is inside


def test_a_report_is_checked_and_rendered_again_from_itself(whole, tmp_path):
    report = tmp_path / "report.html"
    report.write_text(whole[2])
    assert reporting.check(report) == []
    again = reporting.report([report], tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == whole[2] and not again.remarks


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        (r"\d\.\d\d times as fast as torch", "9.99 times as fast as torch"),  # the verdict
        (r"<td>\d\.\d{3}</td>", "<td>7.000</td>"),  # a cell of a table
        (r"cx='(\d+)", "cx='1"),  # a point of a figure
        (r'"samples_per_second": \d+', '"samples_per_second": 1'),  # a number that programs read
        ("<li>noise", "<li>no noise"),  # a doubt
    ],
)
def test_a_report_that_was_altered_is_told(whole, tmp_path, pattern, word):
    report = tmp_path / "report.html"
    text, count = re.subn(pattern, word, whole[2], count=1)
    assert count == 1
    report.write_text(text)
    assert reporting.check(report)


def test_records_that_were_altered_give_other_numbers(whole, tmp_path):
    """Someone makes a run faster in the records too: the page no longer says what they give."""
    folder = archive.unpack(archive.read(whole[0].parent / "report.html"), tmp_path / "open")[0]
    outcome = read_json(folder / "jax-data_parallel-1-r0" / "outcome.json")
    outcome["timings"]["step_seconds"] = [0.001] * 9
    write_json(folder / "jax-data_parallel-1-r0" / "outcome.json", outcome)
    read, _ = studies.load([folder])
    packed = archive.pack(read)
    report = tmp_path / "report.html"
    opening = archive.OPENING
    report.write_text(whole[2].partition(opening)[0] + opening + packed + archive.CLOSING)
    assert any("samples_per_second" in sentence for sentence in reporting.check(report))


def test_paths_of_the_machine_are_not_published(tmp_path, monkeypatch):
    home = tmp_path / "home" / "somebody"
    monkeypatch.setenv("HOME", str(home))
    path = fake(home / "secret-place" / "study", job={"recipe": f"{home}/recipes/digits_cnn.py"})
    reporting.report([path], tmp_path / "report.html")
    folder = archive.unpack(archive.read(tmp_path / "report.html"), tmp_path / "open")[0]
    assert read_json(folder / "torch-ddp-1-r0" / "job.json")["recipe"] == "~/recipes/digits_cnn.py"
    assert "somebody" not in (tmp_path / "report.html").read_text()
    assert read_json(folder / "study.json")["recipe"] == ".../digits_cnn.py"


@pytest.mark.parametrize("text", ["", "<html></html>", f"{archive.OPENING}rubbish{archive.CLOSING}"])
def test_what_is_no_report_is_a_sentence(tmp_path, text):
    (tmp_path / "x.html").write_text(text)
    with pytest.raises(UsageError):
        reporting.check(tmp_path / "x.html")
    with pytest.raises(UsageError, match="x.html"):
        reporting.report([tmp_path / "x.html"], tmp_path / "y.html")


# --- several studies


def test_studies_of_unlike_machines_are_never_ranked_against_each_other(tmp_path):
    here = fake(tmp_path / "a" / "here", backends=("torch", "jax"))
    gpu = {"gpus": ["NVIDIA Test"] * 2, "gpu_driver": "580.1", "cores": 16}
    there = fake(
        tmp_path / "b" / "there", backends=("torch", "jax"), environment=gpu, job={"device_kind": "gpu"},
        start={(name, count): {"devices": ["cuda:0"] * count} for name in ("torch", "jax") for count in (1, 2)},
    )  # fmt: skip
    reporting.report([there], tmp_path / "there.html")
    written = reporting.report([here, tmp_path / "there.html"], tmp_path / "both.html")
    assert [study.name for study in written.found.studies] == ["here", "there"]
    assert "unlike devices" in written.found.relation[0]
    assert "All at a glance" in words((tmp_path / "both.html").read_text())
    machines = [table.machine for study in written.found.studies for table in study.tables]
    assert machines == ["virtual CPU devices on 2 cores (Test CPU)", "GPUs (NVIDIA Test, driver 580.1)"]
    assert reporting.check(tmp_path / "both.html") == []


def test_studies_with_nothing_in_common_are_told_so_and_both_shown(tmp_path):
    one = fake(tmp_path / "a" / "one", repeats=1)
    two = fake(tmp_path / "b" / "two", repeats=1, job={"recipe": "/x/other.py"})
    written = reporting.report([one, two], tmp_path / "both.html")
    assert any("no recipe in common" in said for said in written.found.relation)
    assert len(written.found.studies) == 2


def test_bad_input_is_one_sentence_each_and_the_rest_is_reported(tmp_path):
    path = fake(tmp_path / "s" / "study")
    (path / "torch-ddp-1-r0" / "job.json").write_text('{"format": 99}')
    (path / "torch-ddp-1-r1" / "outcome.json").write_text("{ half")
    events = path / "jax-data_parallel-1-r0" / "events.jsonl"
    events.write_text(events.read_text()[:-900] + "}{\n")
    shutil.rmtree(path / "jax-data_parallel-2-r2")
    broken = fake(tmp_path / "t" / "broken", repeats=1)
    (broken / "study.json").write_text("[")
    newer = fake(tmp_path / "u" / "newer", repeats=1)
    write_json(newer / "study.json", {**read_json(newer / "study.json"), "format": 7})
    (tmp_path / "empty").mkdir()
    written = reporting.report([path, broken, newer, tmp_path / "empty", tmp_path / "absent"], tmp_path / "r.html")
    assert len(written.remarks) == 4 and len(written.found.studies) == 1
    for part in ("broken", "format 7", "empty holds no run", "absent holds no run"):
        assert sum(part in sentence for sentence in written.remarks) == 1, part
    problems = written.found.studies[0].problems
    for part in ("torch-ddp-1-r0 cannot be read", "torch-ddp-1-r1 cannot be read", "its course cannot be read",
                 "jax-data_parallel-2-r2 holds no run"):  # fmt: skip
        assert sum(part in sentence for sentence in problems) == 1, (part, problems)
    assert len(written.found.studies[0].tables[0].rows) == 6
    assert reporting.check(tmp_path / "r.html") == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("job.json", {"seed": []}), ("job.json", {"devices": "two"}), ("outcome.json", {"start": 3}),
        ("outcome.json", {"hashes": {"initial_weights": {}}}), ("outcome.json", {"launched_time": {}}),
        ("outcome.json", {"timings": {"step_seconds": [0.01, -1], "steady_steps": 2, "steady_samples": 1}}),
        ("environment.json", {"load_average": 3}),
    ],
)  # fmt: skip
def test_a_run_whose_records_make_no_sense_is_left_out_with_a_sentence(tmp_path, name, change):
    path = fake(tmp_path / "s" / "study", repeats=1)
    file = path / "torch-ddp-1-r0" / name
    write_json(file, {**read_json(file), **change})
    study, _ = reported(path)
    (problem,) = study.problems
    assert problem.startswith("torch-ddp-1-r0") and sum(row.runs for row in study.tables[0].rows) == 5
    assert reporting.check(path.parent / "report.html") == []


def test_single_runs_and_a_study_file_with_parts_have_reports_too(tmp_path):
    fake_runs.write(tmp_path / "runs" / "a", fake_runs.job("torch"))
    fake_runs.write(tmp_path / "runs" / "b", fake_runs.job("jax"))
    written = reporting.report([tmp_path / "runs"], tmp_path / "r.html")
    assert "nobody has checked" in written.found.studies[0].tables[0].unranked
    assert reporting.check(tmp_path / "r.html") == []
    fake(tmp_path / "grid" / "one", repeats=1), fake(tmp_path / "grid" / "two", repeats=1)
    assert len(reporting.report([tmp_path / "grid"], tmp_path / "g.html").found.studies) == 2


# --- honesty


def test_nobody_is_ranked_without_a_proof(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", proof=None))
    (table,) = study.tables
    assert not table.ranking and not table.comparisons and "nobody has checked" in table.unranked
    assert "fastest" not in words(text)


def test_a_cell_that_parts_is_in_no_ranking(tmp_path):
    cells = [{"backend": "jax", "devices": 2, "why": "it parts in the parity check"}]
    said = {"ok": False, "sentence": "NOT THE SAME MATHEMATICS: jax on 2 devices.", "unproved": cells}
    study, text = reported(fake(tmp_path / "s" / "study", proof=said))
    (table,) = study.tables
    assert not any("jax" in (pair.mine[0], pair.other[0]) for pair in table.comparisons if pair.devices == 2)
    assert any("jax" in (pair.mine[0], pair.other[0]) for pair in table.comparisons if pair.devices == 1)
    assert not any((each.backend, each.devices) == ("jax", 2) for each in table.scaled)
    assert "jax on 2: it parts in the parity check" in words(text) and "not backed" in text


def test_a_doubled_loss_scale_found_by_the_parity_check_stops_the_ranking(tmp_path):
    """The check's raw records are judged anew: gradients twice as large, whatever the study wrote down of it."""
    path = fake(tmp_path / "s" / "study", backends=("torch", "jax"), devices=(1,))
    cell = fake_parity.cell()
    for step in range(fake_parity.STEPS):
        for name in fake_parity.WEIGHTS:
            fake_parity.off(cell, step, "gradients", name, [1.0])
    fake_parity.directory(path / "parity", {"jax-data_parallel-1": cell}, fake_parity.reference())
    study, text = reported(path)
    assert study.proved is False and "NOT THE SAME MATHEMATICS" in study.proof
    assert not study.tables[0].comparisons and "fastest" not in words(text)
    assert "scaled by one factor, about 2" in words(text)
    assert [kept.status for kept in study.rules if kept.number == 1] == ["not met"]
    assert reporting.check(path.parent / "report.html") == []


def test_losses_of_another_size_stop_the_ranking_though_a_proof_is_there(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", losses={("jax", 1): 2.0, ("jax", 2): 2.0}))
    (table,) = study.tables
    assert {(each.backend, each.devices) for each in table.agreement if each.doubt} == {("jax", 1), ("jax", 2)}
    assert not any("jax" in (pair.mine[0], pair.other[0]) for pair in table.comparisons) and table.comparisons
    assert "its losses part by 100% from that of torch on 1" in words(text)


def test_dropout_that_draws_other_numbers_is_no_doubt_and_equal_draws_are():
    def course(*losses):
        window = {"losses": list(losses), "steps": len(losses), "seconds": 1.0, "compiling": False}
        return [trace.Trace(0.0, (window,), (), (), ())]

    cells = {("torch", "ddp", 1): course(2.3, 2.2, 2.1), ("jax", "dp", 1): course(2.32, 2.19, 2.13)}
    assert agreement.compare(cells, "float32", draws_alike=False)[0].doubt == ""
    assert "not rounding" in agreement.compare(cells, "float32", draws_alike=True)[0].doubt
    cells["jax", "dp", 1] = course(float("nan"), 2.2, 2.1)
    assert agreement.compare(cells, "float32", draws_alike=False)[0].doubt


def test_runs_as_shipped_are_beside_the_others_in_a_table_of_their_own(tmp_path):
    path = fake(tmp_path / "s" / "study", tracks=("same-math", "as-shipped"))
    study, text = reported(path)
    assert [table.track for table in study.tables] == ["same-math", "as-shipped"]
    assert study.tables[0].ranking and not study.tables[1].comparisons
    assert len(study.prices) == 6 and study.prices[0].paired.low < 1 < study.prices[0].paired.high
    assert "What same math costs" in words(text)


def test_super_linear_scaling_is_an_error_until_explained(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", gain=1.3))
    assert {each.word for each in study.tables[0].scaled} == {"error"}
    assert "an error until explained" in words(text)
    assert [kept.status for kept in study.rules if kept.number == 23] == ["not met"]


def test_an_input_bound_study_is_called_so(tmp_path):
    _, text = reported(fake(tmp_path / "s" / "study", waiting=0.4))
    said = words(text)
    assert "Input-bound, waiting for data: torch on 1 (40% of the time)" in said
    assert said.index("Input-bound") < said.index("Results")


def test_failed_runs_are_kept_and_shown(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", fail={"torch-ddp-2-r1": "was killed by SIGKILL\n  log"}))
    assert "torch-ddp-2-r1 failed: was killed by SIGKILL" in words(text)
    (row,) = [row for row in study.tables[0].rows if (row.backend, row.devices) == ("torch", 2)]
    assert (row.runs, row.failed) == (2, 1)
    assert "1 of them failed" in next(kept.how for kept in study.rules if kept.number == 21)


def test_a_study_of_failures_has_a_report(tmp_path):
    names = [f"torch-ddp-1-r{repeat}" for repeat in range(2)]
    study, text = reported(fake(tmp_path / "s" / "study", backends=("torch",), devices=(1,), repeats=2,
                                fail=dict.fromkeys(names, "no")))  # fmt: skip
    assert all(kept.status == "not met" for kept in study.rules) and "No run of digits_cnn got as far" in words(text)


# --- known failures of other comparisons


def test_what_differs_in_precision_or_compilation_is_flagged(tmp_path):
    bits = {"numerics": {"product_bits": 11, "convolution_bits": 24, "loss_scaling": False}}
    path = fake(tmp_path / "s" / "study", start={("torch", 1): bits, ("torch", 2): bits})
    study, text = reported(path)
    (table,) = study.tables
    known = {each.name: each for each in table.conditions}
    assert known["dtype"].word == "equal" and known["TF32 in matrix products"].word == "equal"
    assert known["compiled"].word == "differs" and known["compiled"].values["jax"] == "jit"
    assert known["bits that a matrix product keeps"].word == "differs"
    assert "product_bits" in table.unranked and not table.comparisons  # TF32 in one of them: nobody is ranked
    assert "not the same in all backends: compiled" in words(text)


def test_more_devices_without_a_gain_are_told_truthfully(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", gain=-0.4, repeats=5))
    for each in study.tables[0].scaled:
        assert each.ratio.high < 1 and each.word == "loses" and each.efficiency < 0.5
    assert words(text).count("slower than one device") == 3 and "linear" not in words(text)


@pytest.mark.parametrize(("scaling", "said"), [("strong", "a global batch of 64 in every run"), ("weak", "64 samples")])
def test_the_report_says_which_scaling_it_is_and_that_the_work_is_equal(tmp_path, scaling, said):
    study, text = reported(fake(tmp_path / "s" / "study", scaling=scaling))
    (table,) = study.tables
    assert f"{scaling} scaling" in table.scaling and said in words(text)
    known = {each.name: each.word for each in table.conditions}
    assert known["training rows"] == known["epochs"] == known["global batch"] == known["order of samples"] == "equal"
    assert table.ranking and len(table.scaled) == 3


def test_compilation_stands_apart_and_memory_that_grows_is_told(tmp_path):
    path = fake(tmp_path / "s" / "study", repeats=1, epochs=5)
    monitor = path / "jax-data_parallel-1-r0" / "monitor.jsonl"
    lines = [json.loads(line) for line in monitor.read_text().splitlines()]
    for place, line in enumerate(lines):
        line["processes"][0]["rss_bytes"] = int(4e8 * (1 + place / 10))
    monitor.write_text("".join(json.dumps(line) + "\n" for line in lines))
    study, text = reported(path)
    (table,) = study.tables
    assert all(each.seconds[1] > 0.8 for each in table.breakdown), "compiling is a part of its own"
    assert all(row.first_step_seconds > 4 and row.step_seconds < 0.1 for row in table.rows)
    assert re.search(r"jax-data_parallel-1-r0: .*its memory grew by \d+%", words(text))
    assert sum("memory grew" in remark for run in table.runs for remark in run.remarks) == 1


def test_a_backend_that_quietly_took_the_cpu_is_not_ranked_with_gpus(tmp_path):
    gpu = {"gpus": ["NVIDIA Test"], "gpu_driver": "580.1"}
    names = {("torch", 1): {"devices": ["NVIDIA Test (process 0)"]}, ("jax", 1): {"devices": ["TFRT_CPU_0"]}}
    path = fake(
        tmp_path / "s" / "study", backends=("torch", "jax"), devices=(1,), environment=gpu,
        job={"device_kind": "gpu"}, start=names,
    )  # fmt: skip
    study, text = reported(path)
    assert sorted(table.machine.partition(" ")[0] for table in study.tables) == ["GPUs", "virtual"]
    assert not any(table.comparisons for table in study.tables) and "fastest" not in words(text)


def test_a_run_that_began_before_the_one_before_it_was_over_is_told(tmp_path):
    path = fake(tmp_path / "s" / "study")
    assert {kept.number: kept.status for kept in reported(path)[0].rules}[13] != "not met"
    file = path / "jax-data_parallel-1-r0" / "outcome.json"
    outcome = read_json(file)
    write_json(file, {**outcome, "ended": outcome["ended"] + 5})
    (kept,) = [kept for kept in reported(path)[0].rules if kept.number == 13]
    assert kept.status == "not met" and "began before jax-data_parallel-1-r0 was over" in kept.how


def test_a_machine_that_was_busy_is_no_machine_of_ones_own(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", environment={"load_average": [5.6, 3.0, 1.0]}))
    (kept,) = [kept for kept in study.rules if kept.number == 13]
    assert kept.status == "not met" and "load 5.6" in kept.how and "measure again" in words(text)


def test_what_was_not_equal_is_not_said_to_have_been(tmp_path):
    study, text = reported(fake(tmp_path / "s" / "study", end={("jax", 1): {"initial_weights": "00" * 32}}))
    (table,) = study.tables
    assert "initial weights" in table.unranked and not any("Held equal" in said for said in table.heading)
    assert "fastest" not in words(text)


# --- flags.py


def course(seconds, **fields):
    windows = tuple(
        {"seconds": each * 10, "steps": 10, "compiling": False, "time": 100.0 + place, "step": 10 * place, "losses": []}
        for place, each in enumerate(seconds)
    )
    empty = dict.fromkeys(("epochs", "checkpoints", "monitored"), ())
    return trace.Trace(**{"start": 99.0, "windows": windows, **empty, **fields})


def test_slow_windows_are_found_and_their_time_is_counted():
    steady = course([0.01, 0.0101, 0.0099, 0.01, 0.0102, 0.03, 0.01, 0.0098])
    assert flags.slow_windows(steady) == [5]
    assert flags.slow_share(steady) == pytest.approx(0.2 / 1.0, rel=0.05)
    assert flags.slow_windows(course([0.01, 0.0101, 0.0099, 0.0105])) == []


def test_windows_beside_a_throttled_device_are_counted_and_idle_clocks_are_not():
    def seen(when, *reasons):
        return {"time": when, "processes": [], "devices": [{"throttle_reasons": list(reasons)}]}

    hot = (seen(100.2, "idle"), seen(103.5, "hardware thermal slowdown"), seen(107.0, "power cap", "idle"))
    assert flags.throttled(course([0.01] * 8, monitored=hot)) == (3, ["hardware thermal slowdown", "power cap"])
    assert flags.throttled(course([0.01] * 8)) is None
    unknown = ({"time": 101.0, "processes": [], "devices": [{"throttle_reasons": None}]},)
    assert flags.throttled(course([0.01] * 8, monitored=unknown)) is None


def test_a_run_that_drifts_is_unsteady_and_one_that_scatters_is_not():
    assert flags.unsteady(course([0.01 * (1 + place / 100) for place in range(30)])) == pytest.approx(0.2, abs=0.05)
    assert flags.unsteady(course([0.01, 0.014, 0.008] * 3 + [0.012, 0.009, 0.013])) is None
    assert flags.unsteady(course([0.01] * 4)) is None


def test_a_process_that_stands_apart_is_named():
    assert flags.apart({(0, 0): 100.0, (0, 1): 101.0, (0, 2): 99.0, (0, 3): 70.0, (0, 4): 100.5}) == [(0, 3)]
    assert flags.apart({(0, 0): 100.0, (0, 1): 50.0}) == []


# --- the command


def test_the_command_writes_into_the_study_and_checks(tmp_path, capsys):
    path = fake(tmp_path / "s" / "study", repeats=1)
    assert command(["report", str(path)]) == 0
    assert f"the report is in {path / 'report.html'}" in capsys.readouterr().out
    assert command(["report", "--check", str(path / "report.html")]) == 0
    assert "every number and figure is what its records give" in capsys.readouterr().out
    text = (path / "report.html").read_text()
    (path / "report.html").write_text(text.replace("by a fake", "by a friend", 1))
    assert command(["report", "--check", str(path / "report.html")]) == 1
    assert "by a friend" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["report"], "Missing argument"), (["report", "x", "--check", "y"], "leave the other arguments out"),
     (["report", "nowhere"], "nowhere holds no run")],
)  # fmt: skip
def test_a_wrong_command_is_one_sentence(arguments, said, capsys):
    assert command(arguments) == 2
    assert said in capsys.readouterr().err


def test_there_are_as_many_rules_as_were_promised():
    assert len(rules.RULES) == 31 and page.TEMPLATES.is_dir()
