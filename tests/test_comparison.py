"""A study makes its grid of runs in turn, from equal weights, keeps failures, and refuses what cannot be compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fake_runs
import pytest

from kmgpu import comparison, environment, proof, training
from kmgpu.errors import Interrupted, MissingEnvironment, NotComparable, RunFailed, UsageError
from kmgpu.grid import grid

PYTHONS = {"torch": "/usr/bin/python", "jax": "/opt/python"}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """No GPU, every framework installed, and a working directory of its own."""
    monkeypatch.setattr(environment, "_nvml_gpus", lambda: [])
    own = "/usr/bin/python"
    monkeypatch.setattr(environment, "interpreter", lambda backend, python=None: (python or {}).get(backend, own))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def prove(monkeypatch):
    """What kmgpu.proof.prove was asked for; it answers with ``prove.answer``."""

    def fake(recipe, **asked):
        fake.asked.append({"recipe": recipe, **asked})
        return fake.answer

    fake.asked, fake.answer = [], proof.Proof(True, "Same mathematics proved: by a fake.", {})
    monkeypatch.setattr(proof, "prove", fake)
    return fake


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text('"""A tiny recipe."""\ndef recipe(*, batch_size=64, epochs=3, learning_rate=0.001):\n    ...\n')
    return path


class FakeTrain:
    """Stands for kmgpu.training.train: writes a run directory at once, or fails as told."""

    def __init__(self):
        self.calls = []
        self.failures = {}  # name of the run -> error to raise after it has written its directory
        self.end = {}  # name of the run -> fields of its end event

    def __call__(self, recipe, *, out, backend, strategy, devices, batch_size, device_kind, python, **rest):
        name = Path(out).name
        self.calls.append({"recipe": recipe, "name": name, "batch_size": batch_size, "python": python, **rest})
        job = fake_runs.job(
            backend, devices, recipe=recipe, batch_size=batch_size or 64, epochs=rest["epochs"],
            settings=rest["settings"], seed=rest["seed"], initial_weights=rest["initial_weights"], track=rest["track"],
        )  # fmt: skip
        error = self.failures.get(name)
        if error is not None:
            fake_runs.write(Path(out), job, status="failed", reason=str(error))
            raise error
        fake_runs.write(Path(out), job, **self.end.get(name, {}))


@pytest.fixture
def train(monkeypatch):
    fake = FakeTrain()
    monkeypatch.setattr(training, "train", fake)
    monkeypatch.setattr(training, "fit", lambda recipe, **fields: fake(recipe, track="keras-fit", **fields))
    return fake


def names(train):
    return [call["name"] for call in train.calls]


# --- the grid


def test_backends_alternate_within_a_number_of_devices():
    cells = grid(["torch", "jax"], [1, 2])
    assert [cell.name for cell in cells] == [
        "torch-ddp-1-r0", "jax-data_parallel-1-r0", "torch-ddp-2-r0", "jax-data_parallel-2-r0",
    ]  # fmt: skip


def test_every_other_repeat_goes_backwards_so_that_each_cell_has_the_same_mean_place():
    cells = grid(["torch", "tensorflow", "jax"], [1, 2], repeats=4)
    assert len({cell.name for cell in cells}) == 24
    places: dict[tuple, list[int]] = {}
    for place, cell in enumerate(cells):
        places.setdefault((cell.backend, cell.devices), []).append(place)
    assert {sum(where) for where in places.values()} == {46}


def test_each_pair_of_repeats_begins_with_another_cell():
    cells = grid(["torch", "jax"], [1, 2], repeats=5)
    assert [cell.name for cell in cells[::4]] == [
        "torch-ddp-1-r0", "jax-data_parallel-2-r1", "jax-data_parallel-1-r2", "torch-ddp-1-r3", "torch-ddp-2-r4",
    ]  # fmt: skip


def test_strong_scaling_holds_the_global_batch_and_weak_scaling_multiplies_it():
    strong = grid(["jax"], [1, 2, 4], batch_size=64)
    weak = grid(["jax"], [1, 2, 4], batch_size=64, scaling="weak")
    assert [cell.batch_size for cell in strong] == [64, 64, 64]
    assert [cell.batch_size for cell in weak] == [64, 128, 256]


# --- a study


def test_a_study_leaves_its_runs_and_its_tables(train, recipe):
    lines = []
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2], show=lines.append)
    assert result.ok and len(result.rows) == 4
    assert result.path.parent == Path("studies") and result.path.name.endswith("-tiny")
    written = json.loads((result.path / "comparison.json").read_text())
    assert [row["backend"] for row in written["rows"]] == ["torch", "torch", "jax", "jax"]
    assert "| torch | ddp | 2 | 64 |" in (result.path / "comparison.md").read_text()
    asked = json.loads((result.path / "study.json").read_text())
    assert asked["runs"] == names(train) and asked["scaling"] == "strong"
    assert "[1/4] torch ddp on 1 virtual CPU device" in lines
    assert "[4/4] jax data_parallel on 2 virtual CPU devices" in lines


def test_what_a_run_says_while_it_goes_on_is_progress_and_no_line_of_the_study(train, recipe, monkeypatch):
    lines, progress = [], []

    def talkative(*arguments, show, **fields):
        show("epoch 1/3")
        train(*arguments, **fields)

    monkeypatch.setattr(training, "train", talkative)
    comparison.compare(recipe, backends=["torch"], devices=[1, 2], show=lines.append, progress=progress.append)
    assert progress == ["epoch 1/3", "", "epoch 1/3", ""] and "epoch 1/3" not in lines


def test_the_price_of_same_math_is_taken_beside_runs_that_have_no_row(train, recipe):
    train.failures["jax-data_parallel-2-as-shipped-r0"] = RunFailed("takes no batch of 29 rows on 2 devices\nmore")
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2], price=True)
    assert names(train) == [
        "torch-ddp-1-r0", "torch-ddp-1-as-shipped-r0", "torch-ddp-1-keras-fit-r0",
        "jax-data_parallel-1-r0", "jax-data_parallel-1-as-shipped-r0", "jax-data_parallel-1-keras-fit-r0",
        "torch-ddp-2-r0", "torch-ddp-2-as-shipped-r0",  # Keras's fit on torch uses one device
        "jax-data_parallel-2-r0", "jax-data_parallel-2-as-shipped-r0", "jax-data_parallel-2-keras-fit-r0",
    ]  # fmt: skip
    assert result.ok and len(result.rows) == 4 and {run.job.track for run in result.runs} == {"same-math"}
    assert [(price.beside, price.backend, price.devices, price.ratio) for price in result.prices] == [
        ("as-shipped", "torch", 1, 1.0), ("as-shipped", "torch", 2, 1.0), ("as-shipped", "jax", 1, 1.0),
        ("as-shipped", "jax", 2, None), ("keras-fit", "torch", 1, 0.5), ("keras-fit", "jax", 1, 0.5),
        ("keras-fit", "jax", 2, 0.5),
    ]  # fmt: skip
    text = (result.path / "comparison.md").read_text()
    assert "| torch | 2 |" in text.partition("What same math costs")[2] and "1.00 times" in text
    assert "- jax on 2, as-shipped: takes no batch of 29 rows on 2 devices\n" in text
    assert "| torch | 1 |" in text.partition("Keras's own fit")[2] and "0.50 times" in text
    record = json.loads((result.path / "comparison.json").read_text())["price"][0]
    assert (record["beside"], record["ratio"]) == ("as-shipped", 1.0)


def test_there_is_no_price_unless_it_is_asked_for_nor_of_another_track(train, recipe):
    result = comparison.compare(recipe, backends=["torch"], devices=[1, 2])
    assert result.prices == () and "costs" not in result.markdown()
    with pytest.raises(UsageError, match="--price measures what same math costs"):
        comparison.compare(recipe, track="as-shipped", price=True)


def test_the_first_run_draws_the_weights_and_all_others_get_them(train, recipe):
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2], repeats=2)
    given = [call["initial_weights"] for call in train.calls]
    assert given[0] is None
    assert set(given[1:]) == {str(result.path / "torch-ddp-1-r0" / "initial_weights.safetensors")}


def test_what_was_asked_reaches_every_run(train, recipe):
    comparison.compare(
        str(recipe), backends=["torch", "jax"], devices=[1], settings={"learning_rate": 0.1}, epochs=2, seed=7,
        python={"jax": "/opt/python"}, batch_size=32, out="mine",
    )  # fmt: skip
    assert Path("mine/comparison.md").exists()
    for call in train.calls:
        assert (call["settings"], call["epochs"], call["seed"]) == ({"learning_rate": 0.1}, 2, 7)
        assert (call["python"], call["batch_size"], call["recipe"]) == (PYTHONS, 32, str(recipe))


def test_weak_scaling_takes_the_recipes_batch_for_each_device(train, recipe):
    train.end = {f"jax-data_parallel-{count}-r0": {"sample_order": f"{count}" * 64} for count in (1, 2)}
    result = comparison.compare(recipe, backends=["jax"], devices=[1, 2], scaling="weak")
    assert [call["batch_size"] for call in train.calls] == [64, 128]
    assert "weak scaling, 64 samples for each device" in result.heading[0]


def test_the_very_cells_are_proved_before_the_first_run(train, recipe, prove):
    result = comparison.compare(
        recipe, backends=["torch", "jax"], devices=[1, 2], settings={"learning_rate": 0.1}, seed=7, batch_size=32,
        python={"jax": "/opt/python"}, device_kind="cpu",
    )  # fmt: skip
    (asked,) = prove.asked
    assert callable(asked.pop("show"))
    assert asked == {
        "recipe": recipe, "backends": ("torch", "jax"), "devices": (1, 2), "settings": {"learning_rate": 0.1},
        "batch_size": 32, "seed": 7, "python": PYTHONS, "device_kind": "cpu", "loss_gather": "auto",
        "randomness": "native", "out": result.path / "parity",
    }  # fmt: skip
    assert result.heading[1] == "Same mathematics proved: by a fake."
    assert json.loads((result.path / "comparison.json").read_text())["parity"]["ok"] is True
    assert all(row.speedup is not None for row in result.rows)


def test_weak_scaling_is_proved_at_its_smallest_batch(train, recipe, prove):
    for count in (2, 4):
        train.end[f"jax-data_parallel-{count}-r0"] = {"sample_order": f"{count}" * 64}
    comparison.compare(recipe, backends=["jax"], devices=[4, 2], scaling="weak", batch_size=8)
    assert prove.asked[0]["batch_size"] == 16


def test_a_study_without_a_proof_says_so(train, recipe, prove):
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1], parity=False)
    assert not prove.asked and result.heading[1] == "Same mathematics: not checked (--no-parity)."
    assert json.loads((result.path / "study.json").read_text())["parity"] is False


def test_the_table_and_the_report_rank_alike_and_not_whose_losses_are_of_another_size(train, recipe, monkeypatch):
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1], repeats=2, out="equal")
    assert any(said.startswith("On 1 device jax") for said in result.heading)
    report = Path("equal/report.html").read_text()
    assert all(said in report for said in result.heading if said.startswith("On 1 device"))

    def doubled(*arguments, out, backend, **named):
        train(*arguments, out=out, backend=backend, **named)
        if backend == "jax":
            events = Path(out) / "events.jsonl"
            events.write_text(events.read_text().replace('"losses": [1.0', '"losses": [2.0').replace("1.0,", "2.0,"))

    monkeypatch.setattr(training, "train", doubled)
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1], repeats=2, out="doubled")
    assert not any("On 1 device" in said for said in result.heading)
    assert any("its losses part by 100%" in said for said in result.remarks)
    assert {row.backend: row.speedup is None for row in result.rows} == {"torch": False, "jax": True}


def test_cells_whose_maths_differ_are_shown_without_a_speed_up(train, recipe, prove):
    prove.answer = proof.Proof(False, "NOT THE SAME MATHEMATICS: jax on 2 devices.", {("jax", 2): "it parts"}, True)
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2])
    assert {(row.backend, row.devices): row.speedup is None for row in result.rows} == {
        ("torch", 1): False, ("torch", 2): False, ("jax", 1): False, ("jax", 2): True,
    }  # fmt: skip
    assert len(train.calls) == 4 and all(row.step_seconds for row in result.rows)
    assert result.remarks == (
        "jax on 2: it parts, so it is given no speed-up, and its speed says nothing beside the others'",
    )
    assert "NOT THE SAME MATHEMATICS" in result.markdown()


def test_nothing_is_measured_by_a_cell_whose_maths_differ(train, recipe, prove):
    prove.answer = proof.Proof(False, "NOT THE SAME MATHEMATICS: jax on 1 device.", {("jax", 1): "it parts"}, True)
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2])
    assert [row.speedup is None for row in result.rows] == [False, False, True, True]


def test_a_failed_run_is_kept_and_shown_and_the_others_are_made(train, recipe):
    train.failures["torch-ddp-1-r0"] = RunFailed("process 0 was killed by SIGKILL\n    last line")
    lines = []
    result = comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2], show=lines.append)
    assert not result.ok and len(train.calls) == 4
    assert "torch-ddp-1-r0 failed: process 0 was killed by SIGKILL" in result.remarks
    assert "    failed: process 0 was killed by SIGKILL" in lines
    assert (result.path / "torch-ddp-1-r0" / "outcome.json").exists()
    assert train.calls[1]["initial_weights"] is None, "the first run left no weights, so the next one draws them"
    assert train.calls[2]["initial_weights"] is not None


def test_a_run_whose_supervisor_left_no_outcome_has_failed(train, recipe, monkeypatch):
    def without_outcome(*arguments, out, **named):
        train(*arguments, out=out, **named)
        (Path(out) / "outcome.json").unlink()
        raise RunFailed("the supervisor stopped")

    monkeypatch.setattr(training, "train", without_outcome)
    result = comparison.compare(recipe, backends=["jax"], devices=[1])
    assert result.remarks[0] == "jax-data_parallel-1-r0 failed: the supervisor stopped"


def test_what_is_wrong_with_the_recipe_stops_at_the_first_run(train, recipe):
    train.failures["torch-ddp-1-r0"] = UsageError("the recipe returns None")
    with pytest.raises(UsageError, match="returns None"):
        comparison.compare(recipe, backends=["torch", "jax"], devices=[1])
    assert len(train.calls) == 1


def test_an_interruption_ends_the_study(train, recipe):
    train.failures["jax-data_parallel-1-r0"] = Interrupted("stopped by SIGINT", 2)
    with pytest.raises(Interrupted):
        comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2])
    assert len(train.calls) == 2


# --- a study that goes on


def test_an_interrupted_study_makes_the_runs_it_lacks_and_repeats_none(train, recipe):
    train.failures["torch-ddp-1-r0"] = RunFailed("out of luck")
    train.failures["jax-data_parallel-2-r0"] = Interrupted("stopped by SIGINT", 2)
    with pytest.raises(Interrupted):
        comparison.compare(recipe, backends=["torch", "jax"], devices=[1, 2], out="cut", epochs=2, repeats=2)
    (Path("cut") / "jax-data_parallel-2-r0" / "outcome.json").unlink()  # and killed, in the end
    train.failures, before = {}, names(train)
    train.calls, lines = [], []
    result = comparison.go_on("cut", show=lines.append)
    assert before == ["torch-ddp-1-r0", "jax-data_parallel-1-r0", "torch-ddp-2-r0", "jax-data_parallel-2-r0"]
    assert names(train)[0] == "jax-data_parallel-2-r0" and len(train.calls) == 5
    assert [run.name for run in result.runs if not run.ok] == ["torch-ddp-1-r0"], "what failed has failed"
    assert [row.runs for row in result.rows] == [1, 2, 2, 2]
    assert (Path("cut") / "stopped" / "jax-data_parallel-2-r0" / "job.json").exists()
    assert "    made before: failed: out of luck" in lines
    assert {call["epochs"] for call in train.calls} == {2}
    assert {call["initial_weights"] for call in train.calls} == {
        "cut/jax-data_parallel-1-r0/initial_weights.safetensors"
    }
    again = comparison.go_on("cut")
    assert len(train.calls) == 5 and again.rows == result.rows


def test_a_study_whose_recipe_has_changed_does_not_go_on(train, recipe):
    comparison.compare(recipe, backends=["torch", "jax"], devices=[1], out="old")
    recipe.write_text(recipe.read_text() + "\n# another\n")
    with pytest.raises(UsageError, match=r"tiny\.py has changed since old was begun; start a new study"):
        comparison.go_on("old")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "nowhere is not a study: it has no study.json"),
        ('{"format": 1, "backends"', "cannot be read"),
        ('{"format": 99}', "has format 99, this kmgpu reads 1"),
        ("[]", "cannot be read"),
        ('{"format": 1, "recipe": "x"}', "does not say backends; another kmgpu wrote it"),
    ],
)
def test_what_is_no_study_of_this_kmgpu_does_not_go_on(text, said):
    if text is not None:
        Path("nowhere").mkdir()
        (Path("nowhere") / "study.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        comparison.go_on("nowhere")
    assert said in str(caught.value)


# --- a budget


class Clock:
    """Stands for the time module: each run takes ten seconds."""

    def __init__(self, train):
        self._train = train

    def monotonic(self):
        return 100.0 + 10 * len(self._train.calls)


def test_a_pilot_that_does_not_count_finds_how_many_repeats_a_budget_allows(train, recipe, monkeypatch):
    monkeypatch.setattr(comparison, "time", Clock(train))
    lines = []
    asked = {"backends": ["torch", "jax"], "devices": [1, 2], "budget": "3m", "out": "b"}
    result = comparison.compare(recipe, **asked, show=lines.append)
    assert "    40 s for each cell once, 140 s are left: 3 repeats" in lines
    assert "    fewer than 5 processes for each cell leave wide intervals; a larger --budget narrows them" in lines
    assert len(train.calls) == 4 + 3 * 4 and [row.runs for row in result.rows] == [3] * 4
    assert sorted(path.name for path in Path("b/pilot").iterdir()) == sorted(names(train)[:4])
    assert len({run.path.parent for run in result.runs}) == 1
    asked = json.loads(Path("b/study.json").read_text())
    assert asked["repeats"] == 3 and len(asked["runs"]) == 12
    assert comparison.go_on("b").rows == result.rows and len(train.calls) == 16, "no second pilot"


def test_a_budget_that_is_used_up_still_makes_each_run_once(train, recipe, monkeypatch):
    monkeypatch.setattr(comparison, "time", Clock(train))
    result = comparison.compare(recipe, backends=["torch"], devices=[1, 2], budget=1)
    assert [row.runs for row in result.rows] == [1, 1]


def test_runs_that_turn_out_to_differ_are_refused_and_kept(train, recipe):
    train.end["jax-data_parallel-1-r0"] = {"initial_weights": "00" * 32}
    with pytest.raises(NotComparable, match="initial weights: .* the runs are kept in studies/"):
        comparison.compare(recipe, backends=["torch", "jax"], devices=[1])
    assert len(list(Path("studies").glob("*/*/outcome.json"))) == 2
    assert not list(Path("studies").glob("*/comparison.json"))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"recipe": "tinny"}, "no recipe 'tinny'"),
        ({"backends": ["torch", "jxa"]}, "no backend 'jxa' (did you mean 'jax'?)"),
        ({"backends": []}, "--backends is []"),
        ({"backends": "torch"}, "--backends is 'torch'; it is a list"),
        ({"backends": ["jax", "jax"]}, "names something twice"),
        ({"devices": [0, 1]}, "--devices is 0; it is a count of at least 1"),
        ({"devices": [1, 2, 2]}, "names something twice"),
        ({"devices": 2}, "--devices is 2; it is a list"),
        ({"scaling": "strng"}, "did you mean 'strong'"),
        ({"repeats": 0}, "--repeats is 0"),
        ({"max_steps": 0}, "--max-steps is 0"),
        ({"budget": "soon"}, "--budget is 'soon'; it is a time such as 90s, 30m"),
        ({"repeats": 3, "budget": "30m"}, "--repeats is 3 and --budget is 30m, which finds the repeats; choose one"),
        ({"epochs": -1}, "--epochs is -1"),
        ({"batch_size": 0}, "--batch-size is 0"),
        ({"settings": {"epoch": 3}}, "tiny has no setting 'epoch' (did you mean 'epochs'?)"),
        ({"device_kind": "tpu"}, "--device-kind is 'tpu'"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(train, recipe, asked, said):
    arguments = {"recipe": recipe, "backends": ["torch", "jax"], "devices": [1, 2], **asked}
    with pytest.raises(UsageError) as caught:
        comparison.compare(arguments.pop("recipe"), **arguments)
    assert said in str(caught.value)
    assert not train.calls and not Path("studies").exists()


def test_weak_scaling_needs_a_batch_size(train, tmp_path):
    path = tmp_path / "fixed.py"
    path.write_text("def recipe(*, epochs=1):\n    ...\n")
    with pytest.raises(UsageError, match="--scaling weak needs --batch-size"):
        comparison.compare(path, scaling="weak")


def test_a_missing_framework_is_found_before_the_first_backend_trains(train, recipe, monkeypatch):
    def interpreter(backend, python=None):
        if backend == "jax":
            raise MissingEnvironment("no jax")
        return sys.executable

    monkeypatch.setattr(environment, "interpreter", interpreter)
    with pytest.raises(MissingEnvironment):
        comparison.compare(recipe)
    assert not train.calls and not Path("studies").exists()


def test_too_few_gpus_are_found_before_anything_starts(train, recipe):
    with pytest.raises(MissingEnvironment, match="no GPU is visible"):
        comparison.compare(recipe, device_kind="gpu")
    assert not train.calls and not Path("studies").exists()


def test_a_study_is_not_written_into_a_directory_in_use(train, recipe, tmp_path):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("")
    with pytest.raises(UsageError, match="not an empty directory"):
        comparison.compare(recipe, out="used")
    with pytest.raises(UsageError, match="not an empty directory"):
        comparison.compare(recipe, out=recipe)
