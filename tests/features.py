"""The features of "same math": which cell shows each of them, in which of its weights and scores, and how it is exact.

What a cell computes on several devices is compared with the same backend on one device and with JAX on one device.
docs/same-math.md has a table of these features, made from what is measured here (benchmarks/same_math.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import cells
import measured
from measured import EXACT, GATHERED, WHOLE

TOLERANCE = 1e-5  # of SGD in float32


@dataclass(frozen=True)
class Feature:
    """A line of the table. JAX computes all of them as one program over the batch, so ``how`` is of the others."""

    title: str
    cell: str
    parts: tuple[str, ...] = ()  # layers, outputs and scores that show it; none: all of the cell
    how: str = EXACT
    tolerance: float = TOLERANCE
    devices: tuple[int, ...] = cells.DEVICES
    reference: tuple[str, int] | None = None  # cell and devices to compare with; else the same cell on one device

    def expected(self, backend: str) -> str:
        return EXACT if backend == "jax" else self.how

    def error(self, run: cells.Ran, reference: cells.Ran) -> tuple[float, str]:
        """The largest error of what shows the feature, and where it is."""
        found = measured.errors(run, reference, BRANCHES.get(self.cell))
        shown = {name: error for name, error in found.items() if not self.parts or measured.shows(name, self.parts)}
        assert shown, f"nothing of {list(found)} shows {self.parts}"
        return max((error, name) for name, error in shown.items())


# --- the cells and what they show -------------------------------------------------------------------------------------

MASKED = (
    "masked", "masked_mean_with_sample_weight", "masked_sum", "masked_weighted", "masked_weighted_steps",
)  # fmt: skip
OF_ROWS = (
    "mean", "mean_with_sample_weight", "none", "sum", "sum_over_batch_size", "sum_weighted", "weighted",
)  # fmt: skip
COUPLED = ("circle", "contrastive", "dice", "of_each_row", "one_number", "tversky")
BRANCHES = {  # of a cell: weights whose columns are branches, and the branches' names where parts name them
    "reductions": {"dense/kernel": OF_ROWS, "masked/kernel": MASKED},
    "loss-classes": {"dense/kernel": ()},
    "coupled-losses": {"dense/kernel": COUPLED},
    "norms": {"dense/kernel": ("plain", "renormalised")},
    "norms-of-replicas": {"dense/kernel": ("plain", "renormalised")},
    "all-metrics": {"dense/kernel": ()},
    "accumulated-whole": {"dense/kernel": ("plain", "weighted")},
}

cells.add("reductions", "reductions")
cells.add("loss-classes", "loss_classes", devices=(1, 2))
cells.add("coupled-losses", "coupled_losses")
cells.add("own-loss", "own_loss")
cells.add("layers", "many_layers")
cells.add("norms", "norms")
cells.add("norms-of-replicas", "norms", devices=(2,), settings={"batch_norm": "replica"})
cells.add("couples-rows", "coupled_rows")
cells.add("remembers-rows", "coupled_rows", settings={"kind": "state"}, devices=(1, 2))
cells.add("optimizers", "many_optimizers")
cells.add("accumulated-whole", "accumulated")
cells.add("not-accumulated", "accumulated", settings={"accumulate": 1}, devices=(1,), backends=("jax",))
cells.add("all-metrics", "all_metrics", devices=(1, 2))
cells.add("own-metrics", "own_metrics")
cells.add("shares", "shares", devices=(1, 3, 8))
cells.add("kept-metrics", "own_metrics", settings={"kept": "sums"}, devices=(1, 2))
cells.add("kept-maximum", "own_metrics", settings={"kept": "maximum"}, devices=(1, 2))

FEATURES = (
    Feature("reduction `sum_over_batch_size`", "reductions", ("sum_over_batch_size",)),
    Feature("reduction `mean`", "reductions", ("mean",)),
    Feature("reduction `sum`", "reductions", ("sum", "sum_weighted", "masked_sum")),
    Feature(
        "reduction `mean_with_sample_weight`", "reductions",
        ("mean_with_sample_weight", "masked_mean_with_sample_weight"),
    ),
    Feature("reduction `none`: the gradient of the sum", "reductions", ("none",)),
    Feature("weights of samples", "reductions", ("weighted", "sum_weighted", "masked_weighted")),
    Feature("weights of time steps", "reductions", ("masked_weighted_steps",)),
    Feature("masks, with a device that has no valid step", "reductions", MASKED),
    Feature("every loss class that looks at one row", "loss-classes", devices=(1, 2)),
    Feature("a loss function of your own, a value for each row", "coupled-losses", ("of_each_row",), GATHERED),
    Feature("a loss function of your own, one number", "coupled-losses", ("one_number",), GATHERED),
    Feature("a loss function of your own that couples rows, weighted", "coupled-losses", ("contrastive",), GATHERED),
    Feature("`Circle`", "coupled-losses", ("circle",), GATHERED),
    Feature("`Dice` and `Tversky` over all axes", "coupled-losses", ("dice", "tversky"), GATHERED),
    Feature("`compute_loss` of your own, a penalty inside", "own-loss", how=GATHERED),
    Feature("regularizers of weights", "layers", ("penalised",)),
    Feature("regularizers of activity", "layers", ("activity",)),
    Feature("`add_loss` of a mean", "layers", ("added", "adds_mean")),
    Feature("a layer that looks at all rows", "couples-rows", how=WHOLE),
    Feature("a layer whose state depends on all rows", "remembers-rows", how=WHOLE, devices=(1, 2)),
    Feature("a layer with a state of its own", "layers", ("counted", "counts")),
    Feature("shared layers", "layers", ("shared",)),
    Feature("frozen layers", "layers", ("frozen", "before_frozen")),
    Feature("embeddings of repeated tokens", "layers", ("tokens",)),
    Feature("masks made by an embedding", "layers", ("masked_tokens",)),
    Feature("constraints", "layers", ("constrained",)),
    Feature("`SpectralNormalization`", "layers", ("spectral_normalization",)),
    Feature("`LayerNormalization`", "layers", ("layer_norm", "before_norm")),
    Feature("several inputs and outputs, in lists", "layers"),
    Feature("`BatchNormalization`", "norms", ("plain",)),
    Feature("`BatchNormalization` with renorm", "norms", ("renormalised",)),
    Feature("`BatchNormalization` of masked steps", "norms", ("masked", "dense_of_steps")),
    Feature(
        '`batch_norm="replica"`: statistics of each device', "norms-of-replicas", devices=(2,),
        reference=("norms-of-replicas", 2),
    ),
    Feature(
        "every optimizer class", "optimizers",
        (
            "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "amsgrad", "ftrl", "lamb", "lion", "muon",
            "nadam", "rmsprop", "schedule_free", "sgd", "nesterov",
        ),
    ),
    Feature("`clipvalue`", "optimizers", ("clipvalue",)),
    Feature("`clipnorm`", "optimizers", ("clipnorm",)),
    Feature("`global_clipnorm`", "optimizers", ("global_clipnorm",)),
    Feature("weight decay", "optimizers", ("weight_decay", "adamw")),
    Feature("moving averages of weights (EMA)", "optimizers", ("ema", "ema_overwrites")),
    Feature("schedules of the learning rate", "optimizers", ("schedule",)),
    Feature("`gradient_accumulation_steps` of the optimizer", "optimizers", ("accumulates",)),
    Feature("`accumulate=3` of the recipe is the whole batch", "accumulated-whole", reference=("not-accumulated", 1)),
    Feature("every metric class, in training and validation", "all-metrics", devices=(1, 2)),
    Feature("a metric of your own (a maximum), a metric function", "own-metrics", ("a_largest", "a_spread"), GATHERED),
    Feature("losses of each output beside a metric of your own", "own-metrics", ("a", "b"), GATHERED),
    Feature("metrics that a layer keeps", "kept-metrics", ("watched_mean", "watched_sum"), GATHERED, devices=(1, 2)),
    Feature("a metric that a layer keeps and that is no sum", "kept-maximum", how=WHOLE, devices=(1, 2)),
    Feature("masks, weights, clipping and batch statistics on 3 and 8 devices", "shares", devices=(1, 3, 8)),
)  # fmt: skip

REFUSED_FEATURES = {  # by title: what kmgpu is asked for, as Python in which ``keras``, ``common`` and others are there
    "`accumulate` with a loss that looks at all rows":
        "common.make_plan(built(loss=lambda y, p: ops.mean(y - p)), rows, accumulate=2)",
    "`train_step` or `test_step` of your own":
        "built(kind=type('Own', (keras.Sequential,), {'train_step': lambda self: 0}))",
    "`class_weight` beside weights of samples": "class_weights(y, np.ones(4, 'float32'), {0: 2.0})",
    "text inside a model": "common.as_keras(np.array(['a', 'b']))",
}  # fmt: skip
