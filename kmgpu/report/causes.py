"""Likely causes of a cell that parts from the reference, in words with what to change, as far as the numbers show.

A table: the first cause whose predicate holds is named. It is a hint for where to look, never part of the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kmgpu.report.verdicts import KINDS, Difference, Verdict

ALIKE = 0.02  # errors this close to each other come from one factor
MOVING = ("moving_mean", "moving_variance")  # Keras's names of the statistics of BatchNormalization


@dataclass(frozen=True)
class Evidence:
    """All that is known of a cell that parts."""

    verdict: Verdict
    backend: str
    devices: int
    reference: str  # backend of the reference cell
    dtype: str = "float32"
    alone_agrees: bool | None = None  # the same backend on one device; None if that was not compared
    random_kept: bool = False
    sizes: Sequence[int] = ()  # rows of the batch of each step; empty if not recorded
    finite: bool = True  # the reference's own losses
    tf32: bool = False
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of each variable and of each layer's computations

    @property
    def beyond(self) -> tuple[Difference, ...]:
        return self.verdict.parting

    @property
    def kinds(self) -> set[str]:
        return {difference.kind for difference in self.beyond}

    def names(self, kind: str) -> list[str]:
        """The variables of a kind that part, each once, in model order."""
        return list(dict.fromkeys(difference.name for difference in self.beyond if difference.kind == kind))

    @property
    def several(self) -> bool:
        """Whether it is the number of devices that makes the difference."""
        return self.devices > 1 and self.alone_agrees is not False

    @property
    def narrow(self) -> list[str]:
        """Variables and layers of a float type that is not the one asked for."""
        return [name for name, dtype in self.dtypes.items() if "float" in dtype and dtype != self.dtype]

    @property
    def uneven(self) -> list[int]:
        """Sizes of batches that do not divide over the devices, or are smaller than the others."""
        return sorted({size for size in self.sizes if size % self.devices or size < max(self.sizes)})

    @property
    def scale(self) -> float | None:
        """The factor k by which all gradients are off, as far as their errors |k - 1| tell, or None."""
        first = next((difference.step for difference in self.beyond if difference.kind == "gradients"), None)
        step = next((step for step in self.verdict.steps if step.number == first), None)
        if step is None:
            return None
        errors = [error for error in step.errors["gradients"].values() if error > 0]
        most = max(errors, default=0.0)
        if not most or math.isinf(most):
            return None
        alike = sum(error > most * (1 - ALIKE) for error in errors)  # a vanishing gradient is compared with a floor
        known = [factor for factor in (self.devices, 1 / self.devices) if abs(abs(factor - 1) / most - 1) < ALIKE]
        if alike < 0.75 * len(errors) or (len(errors) < 2 and not known):
            return None
        return float(known[0]) if known and self.devices > 1 else 1 + most


@dataclass(frozen=True)
class Cause:
    """A pattern in the numbers, and what is said where it is found; {} are fields of the evidence."""

    name: str
    applies: Callable[[Evidence], bool]
    words: str


def likely(evidence: Evidence) -> str:
    """Return the words of the first cause that fits."""
    return in_words(next(cause for cause in CAUSES if cause.applies(evidence)), evidence)


def in_words(cause: Cause, evidence: Evidence) -> str:
    """Return the words of a cause, filled in."""
    scale = evidence.scale
    return cause.words.format(
        backend=evidence.backend,
        devices=evidence.devices,
        reference=evidence.reference,
        dtype=evidence.dtype,
        scale="" if scale is None else f"{scale:.4g}",
        uneven=", ".join(map(str, evidence.uneven)),
        narrow=_some(evidence.narrow),
        moving=_some([name for name in evidence.names("states") if name.endswith(MOVING)]),
        metrics=_some(evidence.names("metrics")),
        rows=_some(_embeddings(evidence)),
    )


def _only(evidence: Evidence, *kinds: str) -> bool:
    return bool(evidence.kinds) and evidence.kinds <= set(kinds)


def _embeddings(evidence: Evidence) -> list[str]:
    return [name for name in evidence.names("update") if "embedding" in name.lower()]


def _scaled(evidence: Evidence) -> bool:
    loss_is_right = not evidence.kinds & {"loss", "metrics", "states", "update"}
    return loss_is_right and "gradients" in evidence.kinds and evidence.scale is not None


def _only_uneven(evidence: Evidence) -> bool:
    if not evidence.several or not evidence.sizes or not evidence.uneven:
        return False
    stepwise = {difference.step for difference in evidence.beyond if difference.kind != "trajectory"}
    guilty = {evidence.sizes[step] for step in stepwise}
    innocent = {evidence.sizes[step.number] for step in evidence.verdict.steps if step.number not in stepwise}
    return bool(guilty) and guilty <= set(evidence.uneven) and bool(innocent - set(evidence.uneven))


def _moving_statistics(evidence: Evidence) -> bool:
    names = evidence.names("states")
    return evidence.several and bool(names) and all(name.endswith(MOVING) for name in names)


def _like_float32(evidence: Evidence) -> bool:
    stepwise = [difference.error for difference in evidence.beyond if difference.kind in KINDS]
    return evidence.dtype == "float64" and bool(stepwise) and max(stepwise) < 1e-5


def _like_tf32(evidence: Evidence) -> bool:
    stepwise = [difference.error for difference in evidence.beyond if difference.kind in KINDS]
    return evidence.tf32 and bool(stepwise) and max(stepwise) < 1e-2


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


CAUSES = (
    Cause(
        "not finite",
        lambda evidence: not evidence.finite,
        "the reference's own loss is not finite: the recipe diverges, and there is nothing to compare; lower its "
        "learning rate or look at its data",
    ),
    Cause(
        "another float type",
        lambda evidence: bool(evidence.narrow),
        "not all of it is {dtype}: {narrow} compute in another type; give these layers no dtype of their own",
    ),
    Cause(
        "float64 that is really float32",
        _like_float32,
        "float64 that is really float32 in some layer: the errors have the size of float32 rounding; see the first "
        "variable's layer, which casts its inputs or holds a float32 constant",
    ),
    Cause(
        "TF32",
        _like_tf32,
        "TF32 is on for this cell: matrix products keep 10 bits; switch it off (NVIDIA_TF32_OVERRIDE=0)",
    ),
    Cause(
        "repeated embedding rows",
        lambda evidence: _only(evidence, "update", "trajectory") and bool(_embeddings(evidence)),
        "the optimizer on {backend} treats repeated rows of {rows} its own way (a sparse gradient whose rows are not "
        "summed before they are squared); its gradient must be made dense before the update",
    ),
    Cause(
        "optimizer",
        lambda evidence: _only(evidence, "update", "trajectory") and "update" in evidence.kinds,
        "only the update differs, from one and the same gradient: the optimizer of {backend} is another (its epsilon, "
        "its clipping or its weight decay); compare with plain SGD",
    ),
    Cause(
        "another training step",
        lambda evidence: _only(evidence, "trajectory"),
        "the parts of a step agree, and the training step itself does not: it does not apply the gradient that was "
        "compared, or leaves out what happens between steps",
    ),
    Cause(
        "mean of means",
        _only_uneven,
        "only batches of {uneven} rows differ, which are short or do not divide over the {devices} devices: a mean of "
        "the devices' means instead of the mean over all samples; weigh each device by its samples",
    ),
    Cause(
        "repeated masks",
        lambda evidence: evidence.random_kept,
        "randomness was kept, and random layers draw other numbers here (dropout masks may repeat on every device); "
        "leave --keep-random out to compare everything else",
    ),
    Cause(
        "scaled gradients",
        _scaled,
        "the loss is right, and all gradients are scaled by one factor, about {scale}: a sum over devices or "
        "micro-batches that should be a mean, or the other way round",
    ),
    Cause(
        "per-replica BatchNorm",
        _moving_statistics,
        "BatchNormalization takes the statistics of each device's share ({moving}), not of the global batch: "
        "batch_norm='global' in the Recipe, or a layer of your own that computes statistics over its rows alone",
    ),
    Cause(
        "metrics",
        lambda evidence: _only(evidence, "metrics"),
        "only metrics differ ({metrics}): their state is not a sum that can be added up over devices, or {backend} "
        "computes them otherwise",
    ),
    Cause(
        "the backend itself",
        lambda evidence: evidence.backend != evidence.reference
        and (evidence.devices == 1 or evidence.alone_agrees is False),
        "{backend} differs from {reference} on one device already: a layer, operation or loss of Keras on {backend} "
        "computes something else; the first variable says where to look, --dtype float64 whether it is rounding",
    ),
    Cause(
        "loss over the whole batch",
        lambda evidence: evidence.several and "loss" in evidence.kinds,
        "one device agrees and {devices} do not, from the loss on: something couples the samples of a batch (a loss "
        "that returns one number, compute_loss, add_loss, a layer over the batch axis) and sees only a share of them",
    ),
    Cause(
        "several devices",
        lambda evidence: evidence.several,
        "one device agrees and {devices} do not: what is computed on shares is not put together as a mean over the "
        "global batch; --dtype float64 shows whether it is rounding",
    ),
    Cause("unknown", lambda evidence: True, "no known pattern; --dtype float64 shows whether it is rounding"),
)
