"""Kill a run at random moments, go on each time, and compare its end with that of a run that was left alone.

    python benchmarks/kill_test.py [--kills 50] [--backend torch] [--devices 1] [--seed 0] [--results FILE]

With ``--results`` what came out is added to a JSON file, which has one row for each backend, number of devices and
seed: so the kills can be made in several parts.

All processes of the run get SIGKILL at once, as in a power cut: while it starts, while it trains, while it writes a
checkpoint, which it does after every step. After each kill its last checkpoint must be whole, and nothing that is
half-written may be left once it goes on. The end must be that of the run without kills bit for bit: the weights and
the order of the samples. Exit code: 0 if all of that holds, 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # also where kmgpu is not installed

import psutil

from kmgpu import __version__, checkpoints, resumption
from kmgpu.rundir import RunDir
from kmgpu.worker import checkpoint

RECIPE, UNITS = "digits_mlp", 6_000  # 450,000 weights, 5 MB a checkpoint, 23 steps an epoch
EPOCHS_PER_KILL = 2  # so that the run is longer than what killed runs can have done
COMMAND = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[1])!r}); "
COMMAND += "from kmgpu.cli import main; main()"
STARTING, TRAINING = 3.0, 1.2  # seconds within which a kill comes, from the launch or from the first new checkpoint


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="kmgpu-kill-") as name:
        folder = Path(name)
        start = ["train", RECIPE, "--backend", arguments.backend, "--devices", str(arguments.devices), "--set"]
        start += [f"units={UNITS}", "--epochs", str(EPOCHS_PER_KILL * (arguments.kills + 1)), "--device-kind", "cpu"]
        left_alone = finish([*start, "--checkpoint-every", "never"], folder / "alone")
        command, saved, counts = [*start, "--checkpoint-every", "1step"], 0, dict.fromkeys(COUNTS, 0)
        for number in range(arguments.kills):
            run = folder / f"run-{number}"
            kill(command, run, moments, counts)
            print(".", end="", flush=True)
            if not checkpoints.listed(run):
                counts["before its first checkpoint"] += 1
                continue
            counts["with something half-written"] += bool(list((run / "checkpoints").glob(".*ing")))
            found, lines = resumption.find(run)  # whole, by its hashes
            checkpoint.read(found)
            skipped = [line for line in lines if "skipped" in line]  # a damaged one; others say what was half-written
            assert not skipped and not list((run / "checkpoints").glob(".*ing")), (skipped, run)
            assert found.position["updates"] > saved, "the run has gone backwards"
            saved = found.position["updates"]
            command = ["train", "--resume", str(run)]
        resumed = finish([*command, "--checkpoint-every", "never"], folder / "end")
    same = {kind: resumed["hashes"][kind] == left_alone["hashes"][kind] for kind in ("final_weights", "sample_order")}
    print(f"\n{arguments.kills} kills on {arguments.backend}, {arguments.devices} device(s), of a run of "
          f"{resumed['steps']} steps; {saved} of them were done and saved by killed runs")  # fmt: skip
    for what, count in counts.items():
        print(f"    {what}: {count}")
    same["history"] = resumed["history"] == left_alone["history"]
    print(f"the end is that of the run that was left alone: {same}")
    if arguments.results is not None:
        row = {"backend": arguments.backend, "devices": arguments.devices, "seed": arguments.seed}
        found = {"kills": arguments.kills, "moments": counts, "steps": resumed["steps"], "saved_by_killed_runs": saved}
        keep(arguments.results, row, {**found, "same_end": same, "kmgpu": __version__})
    return 0 if all(same.values()) else 1


COUNTS = ("while it started", "before its first checkpoint", "with something half-written")


def kill(command: list[str], run: Path, moments: random.Random, counts: dict[str, int]) -> None:
    """Start a run and kill all of it: one time in five before it trains, else while it trains."""
    with open(run.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *command, "--out", str(run)], stdout=log, stderr=subprocess.STDOUT
        )
    if moments.random() < 0.2:
        counts["while it started"] += 1
        time.sleep(moments.uniform(0, STARTING))
    else:
        while process.poll() is None and not checkpoints.listed(run):
            time.sleep(0.005)
        time.sleep(moments.uniform(0, TRAINING))
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family[1:], timeout=10)
    assert process.wait() == -9, run.with_suffix(".log").read_text()
    deadline = time.monotonic() + 10
    while still_held(run) and time.monotonic() < deadline:
        time.sleep(0.05)


def still_held(run: Path) -> bool:
    if not (run / "job.json").exists():
        return False
    with checkpoints.held(run) as free:
        return not free


def keep(path: Path, row: dict, found: dict) -> None:
    """Add what was found to the file of results, in place of an earlier row of the same kind."""
    rows = json.loads(path.read_text()) if path.exists() else []
    rows = [each for each in rows if any(each[name] != value for name, value in row.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*rows, {**row, **found}], indent=1) + "\n")


def finish(command: list[str], run: Path) -> dict:
    subprocess.run([sys.executable, "-c", COMMAND, *command, "--out", str(run)], check=True, stdout=subprocess.DEVNULL)
    outcome = RunDir(run).outcome()
    assert outcome is not None and outcome["status"] == "ok"
    return outcome


if __name__ == "__main__":
    sys.exit(main())
