"""Verdicts of a parity check: whether a cell computed what the reference cell computed, step by step and running free.

Pure functions of the records in parity.json (docs/run-directory.md), without a file or a framework. What a record
lacks or what is not a number is never within a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Relative. Sums of some thousand float32 terms, in another order, differ by 1e-7 to 2e-6 (measured over about 60 Keras
# operations on the three frameworks), and by 1e-16 to 1e-14 in float64; wrong mathematics starts at about 1e-3.
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
# Free running adds up what the steps before it rounded: in float64 three digits more are given away than in a step.
TRAJECTORY_TOLERANCE = {"float32": 1e-5, "float64": 1e-9}
NOISE_FACTOR = 3  # how often the reference's own rounding noise is excused: two cells have their own, and it scatters
NOISE_CAP = 1e-3  # what no noise excuses, however large the reference's own is: wrong mathematics can be this small
CHAOS_FACTOR = 100  # free running within this of the reference's own noise is what one rounding does to this model
CHAOS_LIMIT = 1e-3  # beyond this, and beyond the noise, free running is suspicious

KINDS = ("loss", "metrics", "gradients", "states", "update")  # the order in which a step computes them
_SINGULAR = {"loss": "loss", "metrics": "metric", "gradients": "gradient", "states": "state", "update": "update"}


@dataclass(frozen=True)
class Difference:
    """A quantity of one step that is beyond the tolerance."""

    step: int
    kind: str  # of KINDS, or "trajectory"
    name: str  # of the variable or metric; empty for the loss
    error: float  # relative
    floor: float | None = None  # the reference's own noise in this quantity

    @property
    def what(self) -> str:
        if self.kind == "trajectory":
            return self.name
        return f"{_SINGULAR[self.kind]} of {self.name}" if self.name else _SINGULAR[self.kind]


@dataclass(frozen=True)
class Step:
    """One step, judged. ``errors`` are those that were judged: with a kink, the least over batch and moved batches."""

    number: int
    word: str  # "agrees", "kink", "noise" or "parts"
    errors: dict[str, dict[str, float]]  # kind -> variable or metric -> relative difference, in model order
    beyond: tuple[Difference, ...]  # what is beyond the tolerance in ``errors``, in model order
    flipped: float = 0.0  # the largest error on the batch itself that a kink excuses


@dataclass(frozen=True)
class Trajectory:
    """Free running from the reference's first state: the largest difference of losses and weights over all steps."""

    largest: float
    floor: float  # of the reference against itself, with inputs off by one rounding
    word: str  # "agrees", "chaos", "beside the noise", "suspicious" or "parts"
    first: Difference | None = None  # what makes it part


@dataclass(frozen=True)
class Verdict:
    """What is to be said of one cell."""

    word: str  # "agrees", "noise", "parts" or "failed"
    steps: tuple[Step, ...] = ()
    trajectory: Trajectory | None = None
    reason: str = ""  # why it failed

    @property
    def ok(self) -> bool:
        return self.word in ("agrees", "noise")

    @property
    def kinks(self) -> int:
        """How many steps have a kink that rounding flipped."""
        return sum(step.flipped > 0 for step in self.steps)

    @property
    def flipped(self) -> float:
        """The largest error that a kink excuses."""
        return max((step.flipped for step in self.steps), default=0.0)

    @property
    def noise(self) -> tuple[Difference, ...]:
        """What is beyond the tolerance, and excused by the reference's own noise."""
        return tuple(difference for step in self.steps if step.word == "noise" for difference in step.beyond)

    @property
    def parting(self) -> tuple[Difference, ...]:
        """Everything that makes the cell part, in the order of steps and within them of the model."""
        apart = [difference for step in self.steps if step.word == "parts" for difference in step.beyond]
        if self.trajectory is not None and self.trajectory.first is not None:
            apart.append(self.trajectory.first)
        return tuple(apart)

    @property
    def largest(self) -> dict[str, float | None]:
        """The largest judged difference of each kind and of the trajectory; None where a model has none of a kind."""
        found: dict[str, float | None] = {
            kind: max((error for step in self.steps for error in step.errors[kind].values()), default=None)
            for kind in KINDS
        }
        return found | {"trajectory": self.trajectory.largest if self.trajectory is not None else None}

    @property
    def largest_of_a_step(self) -> float | None:
        """The largest judged difference of any kind, free running left out."""
        errors = [error for kind, error in self.largest.items() if kind in KINDS and error is not None]
        return max(errors, default=None)

    @property
    def in_words(self) -> str:
        """The verdict in a few words."""
        if self.word == "noise":
            return "within rounding noise"
        kinks = f" with {self.kinks} kink flip{'s' if self.kinks > 1 else ''}" if self.kinks else ""
        return self.word + kinks if self.word == "agrees" else self.word


def judge(record: Mapping[str, Any], reference: Mapping[str, Any], dtype: str) -> Verdict:
    """Return the verdict of a cell from its parity.json and that of the reference cell.

    A cell that compared less than the reference holds has failed: what was not compared agrees with everything.
    """
    missing = _missing(record, reference)
    if missing:
        return Verdict("failed", reason=missing)
    steps = tuple(
        judge_step(number, step, floor, dtype)
        for number, (step, floor) in enumerate(zip(record["steps"], reference["floor"], strict=True))
    )
    trajectory = judge_trajectory(record["trajectory"], reference["floor_trajectory"], dtype, steps)
    words = {step.word for step in steps}
    if "parts" in words or trajectory.word == "parts":
        return Verdict("parts", steps, trajectory)
    return Verdict("noise" if "noise" in words else "agrees", steps, trajectory)


def judge_step(number: int, record: Mapping[str, Any], floor: Mapping[str, Any], dtype: str) -> Step:
    """Return what became of one step that started from the reference's weights, slots and state.

    Rounding flips a kink (of ReLU, of max-pool) on one batch and not on two others a little off; wrong mathematics is
    wrong on all of them. In float64 nothing is excused. The update starts from the reference's gradient: nothing in it
    can flip.
    """
    tolerance = TOLERANCE[dtype]
    variants = [_errors(variant) for variant in record["variants"]]
    whole = {**variants[0], "update": _clean(record["update"])}
    if not _beyond(number, whole, tolerance):
        return Step(number, "agrees", whole, ())
    if dtype == "float64":
        return Step(number, "parts", whole, _beyond(number, whole, tolerance))
    least = {
        kind: {name: min(variant[kind].get(name, math.inf) for variant in variants) for name in named}
        for kind, named in variants[0].items()
    }
    judged = {**least, "update": whole["update"]}
    excused = [
        whole[kind][name]
        for kind, named in least.items()
        for name, error in named.items()
        if error <= tolerance < whole[kind][name]
    ]
    flipped = max(excused, default=0.0)
    beyond = _beyond(number, judged, tolerance, _errors(floor))
    if not beyond:
        return Step(number, "kink", judged, (), flipped)
    noise = all(_is_noise(difference) for difference in beyond)
    return Step(number, "noise" if noise else "parts", judged, beyond, flipped)


def judge_trajectory(
    record: Mapping[str, Any], floor: Mapping[str, Any], dtype: str, steps: Sequence[Step] = ()
) -> Trajectory:
    """Return what became of free running. In float32 only its first step is judged, and then what is beyond is shown.

    The first step is the training step itself, where ``steps`` are its parts compared one by one; if these agree and
    it does not, then the training step does something else: a gradient that is never summed over the devices, say,
    where it was summed for the comparison. Later steps amplify rounding as the model has it.
    """
    mine, noise, tolerance = _running(record), _running(floor), TRAJECTORY_TOLERANCE[dtype]
    largest, known = max(mine, default=math.inf), max(noise, default=0.0)
    if largest <= tolerance:
        return Trajectory(largest, known, "agrees")
    if dtype == "float64":
        return Trajectory(largest, known, "parts", _first_apart(record, mine, tolerance))
    apart = _first_step_apart(record, floor, tolerance, _excused(steps[0])) if steps else None
    if apart is not None:
        return Trajectory(largest, known, "parts", apart)
    if largest <= CHAOS_FACTOR * known:
        return Trajectory(largest, known, "chaos")
    return Trajectory(largest, known, "suspicious" if largest > CHAOS_LIMIT else "beside the noise")


def _first_step_apart(
    record: Mapping[str, Any], floor: Mapping[str, Any], tolerance: float, excused: float
) -> Difference | None:
    """Return the first quantity in which a training step is not what its parts are, by far more than its own noise.

    Each weight has its own noise: Adam makes a whole step of a gradient that is nothing but rounding.
    """
    noise = _first_step(floor)
    return next(
        (
            Difference(0, "trajectory", f"{name} in free running", error, noise.get(name))
            for name, error in _first_step(record).items()
            if error > max(tolerance, CHAOS_FACTOR * max(noise.get(name, 0.0), excused))
        ),
        None,
    )


def _first_step(record: Mapping[str, Any]) -> dict[str, float]:
    weights = record.get("first_weights") or {"weights": record["weights"][0]}
    return {"loss": _number(record["losses"][0]), **_clean(weights)}


def _excused(step: Step) -> float:
    """Return the largest error that rounding excuses in a step, with which free running starts; all if it parts."""
    if step.word == "parts":
        return math.inf
    return max([step.flipped, *(difference.error for difference in step.beyond)])


def floors(reference: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the reference's own noise: the largest of each kind over its steps, and of its trajectory."""
    steps = [_errors(record) for record in reference["floor"]]
    found: dict[str, float | None] = {
        kind: max((error for step in steps for error in step[kind].values()), default=None)
        for kind in KINDS
        if kind != "update"
    }
    return found | {"update": None, "trajectory": max(_running(reference["floor_trajectory"]), default=None)}


def _missing(record: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Return in words what a cell has not compared, or nothing."""
    if len(record["steps"]) != len(reference["floor"]):
        return f"it compared {len(record['steps'])} steps, the reference made {len(reference['floor'])}"
    if len(record["trajectory"]["losses"]) != len(reference["floor"]):
        return f"it ran {len(record['trajectory']['losses'])} steps free, the reference made {len(reference['floor'])}"
    for number, (step, floor) in enumerate(zip(record["steps"], reference["floor"], strict=True)):
        for kind in ("metrics", "gradients", "states"):
            for variant in step["variants"]:
                if len(variant[kind]) != len(floor[kind]):
                    return f"in step {number} it compared {len(variant[kind])} {kind}, the reference {len(floor[kind])}"
        if len(step["update"]) < len(floor["gradients"]):
            return f"in step {number} it compared {len(step['update'])} updates of {len(floor['gradients'])} weights"
    return ""


def _errors(record: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the errors of one batch by kind and name, in model order."""
    loss = {"": _number(record["loss_error"])}
    return {"loss": loss, **{kind: _clean(record[kind]) for kind in ("metrics", "gradients", "states")}}


def _beyond(
    step: int,
    errors: Mapping[str, Mapping[str, float]],
    tolerance: float,
    floor: Mapping[str, Mapping[str, float]] | None = None,
) -> tuple[Difference, ...]:
    return tuple(
        Difference(step, kind, name, error, (floor or {}).get(kind, {}).get(name))
        for kind in KINDS
        for name, error in errors[kind].items()
        if error > tolerance
    )


def _is_noise(difference: Difference) -> bool:
    if difference.floor is None or math.isinf(difference.floor):
        return False
    return difference.error <= min(NOISE_FACTOR * difference.floor, NOISE_CAP)


def _running(record: Mapping[str, Any]) -> list[float]:
    pairs = zip(record["losses"], record["weights"], strict=True)
    return [max(_number(loss), _number(weight)) for loss, weight in pairs]


def _first_apart(record: Mapping[str, Any], mine: Sequence[float], tolerance: float) -> Difference:
    step = next(step for step, error in enumerate(mine) if error > tolerance)
    loss = _number(record["losses"][step]) > tolerance
    return Difference(step, "trajectory", "loss in free running" if loss else "weights in free running", mine[step])


def _clean(errors: Mapping[str, Any]) -> dict[str, float]:
    return {name: _number(error) for name, error in errors.items()}


def _number(error: Any) -> float:
    """What is not a number is infinitely wrong, so that every comparison is beyond every tolerance."""
    return math.inf if error is None or math.isnan(error) else float(error)
