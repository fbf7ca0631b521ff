"""Train the tiny presets of the shipped recipes, and keep what they reached in benchmarks/results/recipes.json.

    python benchmarks/recipes.py                                   # everything: three backends, three seeds
    python benchmarks/recipes.py --recipes vae,char_gpt --backends jax --seeds 0

All runs of a backend share its processes, one after the other. What is in the file of other runs stays there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import recipe_card, training
from kmgpu.backends import BACKENDS
from kmgpu.errors import Interrupted, KmgpuError
from kmgpu.rundir import RunDir

RESULTS = Path(__file__).with_name("results") / "recipes.json"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Goal:
    """What a tiny preset reaches with every seed on every backend, as its docstring says."""

    score: str
    at_least: float = float("-inf")
    at_most: float = float("inf")

    def reached(self, history: Sequence[dict[str, float]]) -> bool:
        return self.at_least <= history[-1][self.score] <= self.at_most


GOALS = {
    "bert_mlm": Goal("val_accuracy", at_least=0.3),
    "char_gpt": Goal("val_bits_per_letter", at_most=3.0),
    "cifar10_resnet": Goal("val_accuracy", at_least=0.95),
    "digits_cnn": Goal("val_accuracy", at_least=0.975),
    "digits_mlp": Goal("val_accuracy", at_least=0.95),
    "mnist_cnn": Goal("val_accuracy", at_least=0.9),
    "tabular_embeddings": Goal("val_auc", at_least=0.7),
    "text_classifier": Goal("val_accuracy", at_least=0.82),
    "timeseries_lstm": Goal("val_mae_ppm", at_most=0.65),
    "vae": Goal("val_loss", at_most=26.0),
    "vit_tiny": Goal("val_accuracy", at_least=0.93),
}
LEARNS_NOTHING = ("resnet50",)  # its tiny preset is a stream of random numbers


def tiny(name: str) -> dict[str, Any]:
    """Return the settings of a recipe's tiny preset."""
    return {"size": "tiny"} if "size" in recipe_card.card(recipe_card.find_recipe(name)).settings else {}


def train(backend: str, runs: Iterable[tuple[str, int]], folder: Path, **fields: Any) -> dict[tuple[str, int], RunDir]:
    """Train recipes with seeds on one device of a backend, and return the directories of the runs that ended well.

    One launch makes all of them; one that fails is named, and those after it are launched again.
    """
    waiting, done, attempt = list(runs), {}, 0
    while waiting:
        attempt += 1
        made = {}
        for name, seed in waiting:
            job = training.make_job(
                name, backend=backend, devices=1, device_kind="cpu", seed=seed, settings=tiny(name), **fields
            )
            made[name, seed] = RunDir.create(folder / f"{name}-{backend}-{seed}-{attempt}", job)
        stopped = False
        try:
            training.run(list(made.values()))
        except KmgpuError as error:
            stopped = isinstance(error, Interrupted)
            print(f"{backend}: {error}")
        ended = {run: path for run, path in made.items() if (path.outcome() or {}).get("status") == "ok"}
        done.update(ended)
        if stopped:
            break
        waiting = [run for run in waiting if run not in ended][1:]
    return done


def result(run: RunDir) -> dict[str, Any]:
    """Return what is kept of a run: scores by epoch, and what it took."""
    outcome = run.outcome()
    assert outcome is not None
    times = {event["event"]: event["time"] for event in run.events() if event["event"] in ("start", "end")}
    return {
        "framework": outcome["start"]["framework"],
        "parameters": outcome["start"]["parameters"],
        "seconds": round(times["end"] - times["start"], 1),
        "history": [{name: float(f"{value:.5g}") for name, value in epoch.items()} for epoch in outcome["history"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", default=",".join(GOALS))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    for backend in given.backends.split(","):
        with tempfile.TemporaryDirectory() as folder:
            runs = [(name, seed) for name in given.recipes.split(",") for seed in seeds]
            for (name, seed), run in train(backend, runs, Path(folder)).items():
                keep(name, backend, seed, result(run))


def keep(name: str, backend: str, seed: int, found: dict[str, Any]) -> None:
    """Write what a run has reached into the results."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known.setdefault(name, {}).setdefault(backend, {})[str(seed)] = found
    for backends in known.values():
        for runs in backends.values():
            runs.update({seed: runs.pop(seed) for seed in sorted(runs)})
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(_text({name: dict(sorted(known[name].items())) for name in sorted(known)}), encoding="utf-8")
    goal = GOALS.get(name)
    if goal:
        last = found["history"][-1][goal.score]
        print(f"{name} {backend} seed {seed}: {goal.score} {last} {'' if goal.reached(found['history']) else 'MISSED'}")


def _text(known: dict[str, Any]) -> str:
    """Return the results as JSON, a line for each run."""
    recipes = []
    for name, backends in known.items():
        lines = [
            f"  {json.dumps(backend)}: {{\n"
            + ",\n".join(f"   {json.dumps(seed)}: {json.dumps(run)}" for seed, run in runs.items())
            + "\n  }"
            for backend, runs in backends.items()
        ]
        recipes.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(recipes) + "\n}\n"


if __name__ == "__main__":
    main()
