"""The command line: its options are frozen, its errors are one sentence and an exit code, and it starts at once."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import fake_parity
import fake_runs
import pytest
import typer

from kmgpu import cli, comparison, errors, follow, proof, proving, records, training
from kmgpu.report import parity as report
from kmgpu.report import runs
from kmgpu.rundir import RunDir

PROJECT = Path(__file__).parents[1]
OPTIONS = {
    "train": "--backend --strategy --devices --device-ids --device-kind --track --randomness --batch-size --epochs "
    "--seed --workers --precision --deterministic --set --steps-per-epoch --max-steps --max-time --validate-every "
    "--scale-lr --warmup-epochs --on-nan --python --loss-gather --initial-weights --checkpoint-every --keep "
    "--keep-best --resume --out --force --sink --quiet --json --dry-run",
    "replay": "--sink",
    "compare": "--backends --devices --scaling --repeats --device-kind --track --randomness --batch-size --epochs "
    "--seed --workers --precision --deterministic --set --python --loss-gather --price --no-parity --out --quiet "
    "--budget --quick --full --max-steps",
    "study": "--out --quiet",
    "report": "--out --check",
    "parity": "--backends --devices --steps --dtype --precision --keep-random --device-kind --track --randomness "
    "--batch-size "
    "--seed --set --python --loss-gather --out --quiet",
    "check": "--backends --devices --device-kind --batch-size --precision --set --python",
    "evaluate": "--data --backend --devices --device-kind --batch-size --checkpoint --python",
    "predict": "--input --output --force --backend --devices --device-kind --batch-size --checkpoint --python",
    "export": "--format --output --force --checkpoint --python",
    "recipes": "",
    "new": "--from",
    "runs": "--clean --yes",
}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KMGPU_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    def train(*given, **named):
        calls.append((given, named))
        named["show"]("it starts")

    calls = []
    monkeypatch.setattr(training, "train", train)
    return calls


def kmgpu(capsys, *arguments):
    """Return exit code, standard output and standard error of a command line."""
    code = cli.run(list(arguments))
    return code, *capsys.readouterr()


def test_the_options_are_frozen():
    """Scripts depend on them: add to this list, and take nothing away."""
    commands = typer.main.get_command(cli.app).commands
    found = {
        name: {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        for name, command in commands.items()
    }
    assert found == {name: set(options.split()) for name, options in OPTIONS.items()}


@pytest.mark.parametrize("command", [[], *([name] for name in OPTIONS)])
def test_help_has_a_summary_and_examples(capsys, command):
    code, out, _ = kmgpu(capsys, *command, "--help")
    assert code == 0 and f"Usage: kmgpu {' '.join(command)}".rstrip() in out
    if command:
        assert f"\n  kmgpu {command[0]}" in out and "\b" not in out


def test_without_a_command_there_is_help(capsys):
    assert kmgpu(capsys)[:2] == kmgpu(capsys, "--help")[:2]


def test_the_version_is_the_packages(capsys):
    assert kmgpu(capsys, "--version")[:2] == (0, "kmgpu 0.1.0\n")


def test_help_comes_at_once_and_without_anything_heavy():
    program = (
        "import sys\nfrom kmgpu import cli\ncode = cli.run(['--help'])\n"
        "print({'rich', 'numpy', 'keras', 'psutil', 'kmgpu.training'} & set(sys.modules), code)"
    )
    seconds = []
    for _ in range(3):
        before = time.perf_counter()
        command = [sys.executable, "-c", program]
        printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT).stdout
        seconds.append(time.perf_counter() - before)
    assert printed.splitlines()[-1] == "set() 0"
    assert min(seconds) < 1.0, "0.2 s on an idle machine"


# --- train


def test_train_hands_everything_to_the_library(capsys, trained):
    code, _, _ = kmgpu(
        capsys, "train", "digits_mlp", "--backend", "jax", "--strategy", "data_parallel", "--devices", "2",
        "--device-kind", "cpu", "--batch-size", "32", "--epochs", "3", "--seed", "5", "--set", "learning_rate=0.1",
        "--python", "jax=/opt/python", "--initial-weights", "w.safetensors", "--out", "here", "--force", "--dry-run",
        "--track", "as-shipped", "--randomness", "portable", "--loss-gather", "on",
        "--sink", "csv", "--sink", "tensorboard",
        "--steps-per-epoch", "7", "--max-steps", "9", "--max-time", "2h", "--validate-every", "2",
        "--scale-lr", "sqrt", "--warmup-epochs", "1",
        "--on-nan", "continue", "--checkpoint-every", "1epoch", "--keep", "2", "--keep-best", "val_loss",
        "--workers", "4",
        "--precision", "bfloat16", "--deterministic",
    )  # fmt: skip
    (recipe,), named = trained[0]
    assert code == 0 and recipe == "digits_mlp" and callable(named.pop("show"))
    assert named == {
        "backend": "jax", "strategy": "data_parallel", "devices": 2, "device_ids": None, "device_kind": "cpu",
        "track": "as-shipped", "loss_gather": "on", "randomness": "portable",
        "checkpoint_every": "1epoch", "keep": 2, "keep_best": "val_loss", "resume": None,
        "workers": 4,
        "precision": "bfloat16", "deterministic": True,
        "batch_size": 32, "epochs": 3, "seed": 5, "settings": {"learning_rate": 0.1}, "python": {"jax": "/opt/python"},
        "initial_weights": Path("w.safetensors"), "out": Path("here"), "force": True, "dry_run": True,
        "sinks": ["csv", "tensorboard"], "steps_per_epoch": 7, "max_steps": 9, "max_time": "2h", "validate_every": 2,
        "scale_lr": "sqrt", "warmup_epochs": 1, "on_nan": "continue",
    }  # fmt: skip


def test_train_without_a_recipe_trains_digits_cnn_and_says_so(capsys, trained):
    code, out, _ = kmgpu(capsys, "train", "--backend", "torch")
    assert code == 0 and out.count("trains digits_cnn") == 1 and trained[0][0] == ("digits_cnn",)
    assert out.endswith("\nit starts\n")
    assert trained[0][1]["devices"] == 1


def test_ids_without_a_count_say_how_many(capsys, trained):
    kmgpu(capsys, "train", "--backend", "torch", "--device-ids", "2,0")
    assert (trained[0][1]["devices"], trained[0][1]["device_ids"]) == (2, (2, 0))


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("train", 2, "Missing option '--backend'; it is torch, tensorflow or jax"),
        ("trian", 2, "No such command 'trian'"),
        ("train --backend torch --devices two", 2, "--devices is 'two'; it is a whole number; see"),
        ("train --backend torch --device 2", 2, "No such option: --device"),
        ("train digits_cn --backend torch", 2, "did you mean 'digits_cnn'"),
        ("train nowhere.py --backend torch", 2, "nowhere.py"),
        ("train --backend torch --set epoch=3", 2, "digits_cnn has no setting 'epoch'"),
        ("train --backend torch --set epochs", 2, "key=value"),
        ("train --backend torch --device-ids a,b", 2, "--device-ids is 'a,b'"),
        ("train --backend torch --python torch", 2, "--python is 'torch'; it is BACKEND=PATH"),
        ("train --backend torch --quiet --json", 2, "--quiet, --json and --dry-run exclude each other"),
        ("replay nowhere", 2, "nowhere is not a run directory"),
        ("replay nowhere --sink csw", 2, "no sink 'csw' (did you mean 'csv'?)"),
        ("compare digits_cnn --precision bfloat", 2, "did you mean 'bfloat16'"),
        ("train --resume nowhere --set epochs=2", 2, "nowhere is neither a run nor a checkpoint"),
        ("compare", 2, "Missing argument 'RECIPE' (Name or file); see"),
        ("compare digits_cnn --devices 1,x", 2, "--devices is '1,x'; it is a list of whole numbers"),
        ("compare digits_cnn --devices 0", 2, "--devices is 0"),
        ("compare digits_cnn --backends torch,jxa", 2, "did you mean 'jax'"),
        ("compare digits_cnn --scaling wek", 2, "did you mean 'weak'"),
        ("compare digits_cnn --quick --repeats 5", 2, "--quick says by itself what --repeats says; choose one"),
        ("compare digits_cnn --full --budget 1h", 2, "--full says by itself what --budget says; choose one"),
        ("compare digits_cnn --quick --full", 2, "--quick says by itself what --full says; choose one"),
        ("study", 2, "Missing argument"),
        ("study none.toml", 2, "cannot read the study file none.toml: No such file or directory"),
        ("study .", 2, ". is not a study: it has no study.json"),
        ("study . --out x", 2, ". goes on where it is; leave out --out x"),
        ("compare digits_cnn --python jax=nowhere", 3, "no such file"),
        ("parity", 2, "Missing argument"),
        ("parity digits_cnn --devices 1,x", 2, "--devices is '1,x'; it is a list of whole numbers"),
        ("parity digits_cnn --dtype float46", 2, "did you mean 'float64'"),
        ("parity digits_cnn --steps 0", 2, "--steps is 0"),
        ("parity digits_cnn --backends torch --devices 1", 2, "nothing to compare torch on 1 device with"),
        ("parity digits_cnn --set epoch=1", 2, "digits_cnn has no setting 'epoch'"),
        ("parity digits_cnn --python jax=nowhere", 3, "no such file"),
        ("evaluate", 2, "Missing argument"),
        ("evaluate nowhere", 2, "nowhere is not a run directory"),
        ("predict nowhere --output y.npy", 2, "Missing option '--input'"),
        ("export nowhere --format keras", 2, "nowhere is not a run directory"),
        ("export nowhere", 2, "Missing option '--format'"),
        ("recipes digits_cn", 2, "did you mean 'digits_cnn'"),
        ("runs nothing", 2, "no run 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(capsys, monkeypatch, trained, line, code, said):
    monkeypatch.setattr("kmgpu.environment.installed", lambda modules: dict.fromkeys(modules, "1"))
    got, _, err = kmgpu(capsys, *line.split())
    assert (got, err.count("\n")) == (code, 1) and err.startswith("kmgpu: ") and said in err
    assert not trained and not list(Path().iterdir())


@pytest.mark.parametrize("line", ["train --backend trch", "train --backend torch --devices 0", "train --set a=1"])
def test_what_is_wrong_comes_before_what_was_not_named(capsys, line):
    code, out, err = kmgpu(capsys, *line.split())
    assert (code, out, err.count("\n")) == (2, "", 1)


WRONG = [
    ({"recipe": 3}, "recipe is 3; it is a name such as 'digits_cnn' or the path of a .py file"),
    ({"backend": None}, "no backend was named; it is one of torch, tensorflow, jax"),
    ({"devices": "2"}, "--devices is '2'; it is a count of at least 1"),
    ({"device_ids": 0}, "device_ids is 0; it is a list of whole numbers such as [0, 1]"),
    ({"device_kind": 1}, "--device-kind is 1"),
    ({"strategy": 1}, "torch has no strategy 1"),
    ({"track": 1}, "--track is 1"),
    ({"epochs": "3"}, "--epochs is '3'"),
    ({"settings": ["a"]}, "settings is ['a']; it is a dict"),
    ({"settings": {"learning_rate": "0.1"}}, "learning_rate is '0.1'; it must be a number"),
    ({"python": "/opt/python"}, "python is '/opt/python'; it is a dict"),
    ({"initial_weights": 3}, "initial_weights is 3; it is the path of a file"),
    ({"out": 3}, "out is 3; it is the path of a new directory"),
    ({"sinks": "csv"}, "sinks is 'csv'"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=str)
def test_a_wrong_type_from_python_is_one_sentence(monkeypatch, arguments, said):
    monkeypatch.setattr("kmgpu.environment.installed", lambda modules: dict.fromkeys(modules, "1"))
    arguments = {"recipe": "digits_cnn", "backend": "torch", "device_kind": "cpu", **arguments}
    with pytest.raises(errors.UsageError) as raised:
        training.train(arguments.pop("recipe"), **arguments)
    assert str(raised.value).startswith(said) or said in str(raised.value)
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.KmgpuError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.MissingEnvironment("x"), 3),
        (errors.RunFailed("x"), 1),
        (errors.NotComparable("x"), 4),
        (errors.ParityFailed("x"), 5),
        (errors.TimedOut("x"), 6),
        (errors.OutOfMemory("x"), 7),
        (errors.Interrupted("x", 2), 130),
        (errors.Interrupted("x", 15), 143),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code_and_no_traceback(capsys, monkeypatch, error, code):
    def fails(*given, **named):
        raise error

    monkeypatch.setattr(training, "train", fails)
    got, _, err = kmgpu(capsys, "train", "--backend", "torch")
    assert got == code and "Traceback" not in err
    assert err == ("kmgpu: x\n" if code != 1 or isinstance(error, errors.KmgpuError) else err)
    assert err.startswith("kmgpu: ")


def test_ctrl_c_is_130(capsys, monkeypatch):
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    assert kmgpu(capsys, "train", "--backend", "torch")[0] == 130


def test_debug_shows_the_traceback(capsys, monkeypatch):
    def fails(*given, **named):
        raise ZeroDivisionError("x")

    monkeypatch.setattr(training, "train", fails)
    monkeypatch.setenv("KMGPU_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.run(["train", "--backend", "torch"])


# --- what train prints, and replay


def records_of(path, status="ok"):
    """What a run hands on while it is trained, by the records of one that is over."""
    fake_runs.write(path, fake_runs.job("jax", 2), status=status, reason=None if status == "ok" else "was killed")
    return list(follow.history(RunDir(path)))


@pytest.fixture
def train(monkeypatch, folder):
    """Let `kmgpu train` hand on the records of a run that is over."""

    def train(recipe, *, show, sinks, **named):
        path = Path("runs/first")
        follower = follow.Follower(RunDir(path), show, sinks)
        for record in records_of(path):
            follower.hand(record)
        show(f"the run is in {path}")
        return training.TrainResult(path, RunDir(path).outcome())

    monkeypatch.setattr(training, "train", train)


def test_train_prints_lines_where_there_is_no_terminal(capsys, train):
    code, out, err = kmgpu(capsys, "train", "digits_cnn", "--backend", "jax")
    assert (code, err) == (0, "") and out.startswith("2 virtual CPU devices") and "\x1b" not in out
    assert out.count("\nepoch ") == 3 and out.endswith("the run is in runs/first\n")


def test_quiet_prints_the_result_and_nothing_else(capsys, train):
    line = "loss 0.3333  accuracy 0.9000  val_loss 0.4000  val_accuracy 0.9717  in runs/first\n"
    assert kmgpu(capsys, "train", "--backend", "jax", "--quiet") == (0, line, "")


def test_json_prints_each_record_and_nothing_else(capsys, train):
    code, out, err = kmgpu(capsys, "train", "--backend", "jax", "--json")
    assert (code, err) == (0, "")
    assert [records.loads(line) for line in out.splitlines()] == list(follow.history(RunDir(Path("runs/first"))))
    assert [json.loads(line)["event"] for line in out.splitlines()][::9] == ["launch", "outcome"]


def test_a_replay_prints_what_the_training_printed(capsys, train):
    _, out, _ = kmgpu(capsys, "train", "digits_cnn", "--backend", "jax")
    assert kmgpu(capsys, "replay", "runs/first") == (0, out.removesuffix("the run is in runs/first\n"), "")


def test_a_replay_of_a_run_that_failed_says_why_it_did(capsys, folder):
    records_of(Path("bad"), "failed")
    assert kmgpu(capsys, "replay", "bad") == (0, "failed: was killed\n", "")


# --- compare


def test_compare_prints_one_table_and_returns_1_if_a_run_failed(capsys, monkeypatch, folder):
    def compare(recipe, **named):
        asked.append((recipe, named))
        fake_runs.write(folder / "a", fake_runs.job("torch"))
        fake_runs.write(folder / "b", fake_runs.job("jax"), status="failed", reason="was killed")
        done = runs.load_all([folder / "a", folder / "b"])[0]
        return comparison._report(folder, named["scaling"], done, proof.skipped("no time"))

    asked: list = []
    monkeypatch.setattr(comparison, "compare", compare)
    code, out, _ = kmgpu(
        capsys, "compare", "digits_cnn", "--backends", "torch, jax", "--devices", "1,4", "--repeats", "2",
        "--set", "learning_rate=0.5", "--scaling", "strong",
    )  # fmt: skip
    assert code == 1 and "0.9717" in out and "b failed: was killed" in out and "comparison.md" in out
    recipe, named = asked[0]
    assert (recipe, named["backends"], named["devices"]) == ("digits_cnn", ["torch", "jax"], (1, 4))
    assert (named["repeats"], named["settings"], named["parity"]) == (2, {"learning_rate": 0.5}, True)
    kmgpu(capsys, "compare", "digits_cnn", "--no-parity")
    assert asked[1][1]["parity"] is False
    for option, expected in (("--quick", (3, 100)), ("--full", (8, None)), ("--quiet", (None, None))):
        kmgpu(capsys, "compare", "digits_cnn", option)
        assert (asked[-1][1]["repeats"], asked[-1][1]["max_steps"]) == expected


@pytest.mark.parametrize(
    ("parted", "status", "expected"),
    [
        (True, "ok", 5), (True, "failed", 5), (False, "ok", 5), (False, "failed", 1), (None, "ok", 0),
        (None, "failed", 1),
    ],
)  # fmt: skip
def test_runs_whose_maths_differ_return_5_after_the_table(capsys, monkeypatch, folder, parted, status, expected):
    def compare(recipe, **named):
        fake_runs.write(folder / "a", fake_runs.job("torch"))
        fake_runs.write(folder / "b", fake_runs.job("jax"), status=status, reason="was killed")
        done = runs.load_all([folder / "a", folder / "b"])[0]
        found = proof.Proof(False, "NOT THE SAME MATHEMATICS: jax.", {("jax", 1): "it parts"}, parted)
        return comparison._report(folder, "strong", done, proof.skipped("no time") if parted is None else found)

    monkeypatch.setattr(comparison, "compare", compare)
    code, out, err = kmgpu(capsys, "compare", "digits_cnn")
    assert code == expected and "comparison.md" in out
    assert err.count("\n") == (expected == 5) and ("NOT THE SAME MATHEMATICS" in out) == (parted is not None)


def test_a_quiet_comparison_prints_the_table_alone(capsys, monkeypatch, folder):
    def compare(recipe, *, show, progress, **named):
        show("[1/1] torch ddp on 1 device")
        progress("epoch 1/3")
        fake_runs.write(folder / "a", fake_runs.job("torch"))
        return comparison._report(folder, "strong", runs.load_all([folder / "a"])[0], proof.skipped("no time"))

    monkeypatch.setattr(comparison, "compare", compare)
    code, out, err = kmgpu(capsys, "compare", "digits_cnn", "--quiet")
    assert (code, err) == (0, "") and "0.9717" in out and "[1/1]" not in out and "epoch 1/3" not in out


# --- parity


def test_parity_prints_the_matrix_and_hands_everything_to_the_library(capsys, monkeypatch, folder):
    def parity(recipe, **named):
        asked.append((recipe, named))
        cells = {"jax-data_parallel-1": fake_parity.cell(), "torch-ddp-2": fake_parity.cell()}
        return report.read(fake_parity.directory(folder / "here", cells, fake_parity.reference()))

    asked: list = []
    monkeypatch.setattr(proving, "parity", parity)
    code, out, err = kmgpu(
        capsys, "parity", "digits_mlp", "--backends", "torch, jax", "--devices", "1,2", "--steps", "2", "--dtype",
        "float64", "--keep-random", "--device-kind", "cpu", "--batch-size", "32", "--seed", "5", "--set",
        "learning_rate=0.1", "--python", "jax=/opt/python", "--out", "here",
    )  # fmt: skip
    (recipe, named), *_ = asked
    assert (code, err) == (0, "") and recipe == "digits_mlp" and callable(named.pop("show"))
    assert named == {
        "backends": ["torch", "jax"], "devices": (1, 2), "steps": 2, "dtype": "float64", "keep_random": True,
        "device_kind": "cpu", "track": "same-math", "randomness": "native", "loss_gather": "auto",
        "batch_size": 32, "seed": 5, "settings": {"learning_rate": 0.1}, "python": {"jax": "/opt/python"},
        "out": Path("here"),
    }  # fmt: skip
    assert "agrees" in out and "parity.md" in out
    assert "Same mathematics: 2 cells compute what torch on 1 device computes" in out


def test_parity_returns_5_and_one_sentence_after_the_matrix_also_when_quiet(capsys, monkeypatch, folder):
    def parity(recipe, *, show, **named):
        show("it starts")
        cells = {"jax-data_parallel-2": fake_parity.off(fake_parity.cell(), 1, "loss", "", [0.1])}
        return report.read(fake_parity.directory(folder / "here", cells, fake_parity.reference()))

    monkeypatch.setattr(proving, "parity", parity)
    code, out, err = kmgpu(capsys, "parity", "digits_cnn", "--quiet")
    assert code == 5 and "PARTS" in out and "Likely: " in out and "it starts" not in out
    assert err == "kmgpu: jax on 2 devices parts from torch on 1 device\n"


# --- recipes and runs


def test_recipes_are_listed_with_summary_and_settings(capsys):
    code, out, _ = kmgpu(capsys, "recipes")
    assert code == 0 and "digits_cnn: " in out and "learning_rate=0.001" in out
    code, out, _ = kmgpu(capsys, "recipes", "digits_cnn")
    assert code == 0 and "settings: " in out and "digits_cnn.py" in out


def test_a_new_recipe_is_begun_and_what_can_be_done_with_it_is_said(capsys):
    code, out, _ = kmgpu(capsys, "new", "mine", "--from", "lstm")
    assert code == 0 and Path("mine.py").exists()
    assert out.splitlines()[0].startswith("mine.py is a copy of timeseries_lstm, and runs as it is.")
    assert "    kmgpu check mine.py\n" in out
    code, _, err = kmgpu(capsys, "new", "mine")
    assert code == 2 and "mine.py exists" in err


def test_choices_are_listed_and_kept_to(capsys):
    _, out, _ = kmgpu(capsys, "recipes", "vae")
    assert "size='tiny' (or 'full'), batch_size=64" in out
    code, _, err = kmgpu(capsys, "train", "vae", "--backend", "jax", "--set", "size=big")
    assert code == 2 and "vae: size is 'big'; it is one of 'tiny', 'full'" in err


def test_runs_are_listed(capsys):
    fake_runs.write(Path("runs/first"), fake_runs.job("jax", 2))
    fake_runs.write(Path("studies/s/torch-ddp-1-r0"), fake_runs.job(), status="failed")
    Path("runs/broken").mkdir()
    Path("runs/broken/job.json").write_text("{")
    code, out, err = kmgpu(capsys, "runs")
    assert code == 0 and len(out.splitlines()) == 3 and "runs/first" in out and "studies/s/torch-ddp-1-r0" in out
    assert err.startswith("kmgpu: runs/broken cannot be read")


def test_cells_of_a_parity_check_are_listed_and_removed_with_it(capsys):
    fake_parity.directory(Path("parity/p"), {"jax-data_parallel-1": fake_parity.cell()}, fake_parity.reference())
    code, out, _ = kmgpu(capsys, "runs")
    assert code == 0 and out.count("  parity  ") == 2 and "parity/p/torch-ddp-1" in out
    assert "Removed 2" in kmgpu(capsys, "runs", "--clean", "--yes", "parity/p")[1]
    assert not list(Path("parity").iterdir())


def test_clean_removes_what_failed_and_only_that(capsys):
    for name, status in (("good", "ok"), ("bad", "failed"), ("stopped", "interrupted"), ("going", "ok")):
        fake_runs.write(Path("runs", name), fake_runs.job(), status=status)
    Path("runs/going/outcome.json").unlink()
    fake_runs.write(Path("runs", "goes on"), fake_runs.job(), status="interrupted")
    Path("runs/goes on/checkpoints/step-00000012").mkdir(parents=True)
    code, out, _ = kmgpu(capsys, "runs", "--clean", "--yes")
    assert code == 0 and "Removed 2" in out
    assert sorted(path.name for path in Path("runs").iterdir()) == ["goes on", "going", "good"]


def test_clean_without_a_terminal_asks_for_yes(capsys, monkeypatch):
    fake_runs.write(Path("runs/bad"), fake_runs.job(), status="failed")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    code, out, err = kmgpu(capsys, "runs", "--clean")
    assert code == 2 and "runs/bad" in out and "add --yes" in err and Path("runs/bad").exists()


def test_clean_removes_named_runs_after_asking(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for name in ("one", "two"):
        fake_runs.write(Path("runs", name), fake_runs.job())
    monkeypatch.setattr(typer, "confirm", lambda question: False)
    assert "Nothing was removed" in kmgpu(capsys, "runs", "one", "--clean")[1]
    monkeypatch.setattr(typer, "confirm", lambda question: True)
    kmgpu(capsys, "runs", "--clean", "runs/one/")
    assert [path.name for path in Path("runs").iterdir()] == ["two"]


def test_a_name_that_several_studies_have_removes_nothing(capsys):
    for study in ("s", "t"):
        fake_runs.write(Path("studies", study, "a"), fake_runs.job())
    code, _, err = kmgpu(capsys, "runs", "--clean", "--yes", "a")
    assert code == 2 and "2 runs are named 'a'" in err and len(list(Path("studies").glob("*/a"))) == 2


def test_a_study_is_cleaned_by_its_path(capsys):
    for name in ("a", "b"):
        fake_runs.write(Path("studies/s", name), fake_runs.job())
    Path("studies/s/study.json").write_text("{}")
    fake_runs.write(Path("studies/t/a"), fake_runs.job())
    assert "Removed 2" in kmgpu(capsys, "runs", "--clean", "--yes", "./studies/s/")[1]
    assert [path.name for path in Path("studies").iterdir()] == ["t"]


