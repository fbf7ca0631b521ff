"""What the loss and the metrics of a recipe need in a step beyond their own rows."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kmgpu.backends.common.metrics import adds_up, kept, kept_in_call, of_all_rows
from kmgpu.backends.common.model import as_keras, overrides, spec
from kmgpu.backends.common.sharding import Denominators, Sharding, use
from kmgpu.data.loader import Batch
from kmgpu.errors import UsageError

_COUPLED_LOSSES = {"Circle", "circle"}


_COUPLED_WITHOUT_AXIS = {"Dice", "dice", "Tversky", "tversky"}  # axis=None reduces over the rows too


def own_rows_only(loss: Any) -> bool:
    """Whether a Keras loss gives each row a value that depends on this row alone, so that replicas need not meet."""
    function = getattr(loss, "fn", None)
    names = {type(loss).__name__, getattr(function, "__name__", "")}
    if not type(loss).__module__.startswith("keras.src.losses."):
        return False
    if function is not None and not getattr(function, "__module__", "").startswith("keras.src."):
        return False
    if names & _COUPLED_LOSSES:
        return False
    settings = getattr(loss, "_fn_kwargs", {})
    axis = getattr(loss, "axis", settings.get("axis", None if names & _COUPLED_WITHOUT_AXIS else -1))
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    return all(a == -1 or (a is not None and a > 0) for a in axes)


@dataclass(frozen=True)
class Plan:
    """What a recipe needs in a step beyond its own rows."""

    gather_loss: tuple[str, ...]  # why the loss is computed over the whole batch on every replica; empty: it is not
    gather_metrics: tuple[str, ...]  # the same of the metrics
    whole: tuple[str, ...] = ()  # why every replica computes the whole batch; empty: each computes its share
    counts: bool = False  # whether, of an update in pieces, a denominator of the loss depends on masks or weights
    of_all_rows: tuple[bool, ...] = ()  # of each metrics variable: whether a replica has the state of all rows
    kept: tuple[str, ...] = ()  # names of metrics that the forward pass updates
    gathered_bytes: int = 0  # that a training step gathers: inputs, targets, weights and outputs of the whole batch

    def notes(self, devices: int) -> list[str]:
        if devices == 1:
            return []
        if self.whole:
            whole = "; ".join(self.whole)
            return [f"each device computes the whole batch, which is exact but no faster{self._cost}: {whole}"]
        notes = []
        if self.gather_loss:
            notes.append(f"the outputs are gathered for the loss{self._cost}: {'; '.join(self.gather_loss)}")
        if self.gather_metrics and not self.gather_loss:
            notes.append(f"the outputs are gathered for the metrics{self._cost}: {', '.join(self.gather_metrics)}")
        elif self.gather_metrics:
            notes.append(f"the outputs are gathered for the metrics: {', '.join(self.gather_metrics)}")
        return notes

    def gathering_metrics(self, model: Any, x: Any, why: str) -> Plan:
        """Return the plan in which the metrics, too, are computed over the whole batch on every replica."""
        states = of_all_rows(model, kept_in_call(model, x), bool(self.gather_loss), True)
        return dataclasses.replace(self, gather_metrics=(why,), of_all_rows=states)

    @property
    def _cost(self) -> str:
        """What every device receives in a step, in words; the gradient of a loss goes the same way back."""
        size = self.gathered_bytes
        if not size:
            return ""
        return f" ({size / 2**20:.1f} MiB a step)" if size >= 2**20 else f" ({size / 2**10:.1f} KiB a step)"


def make_plan(
    model: Any, x: Any, loss_gather: str = "auto", accumulate: int = 1, batch: Batch | None = None
) -> Plan:
    """Look at a built model's loss and metrics, and return what they need; ``x`` are inputs of some rows.

    With ``accumulate``, ``batch`` is one of the pieces.
    """

    reasons = []
    own_loss = overrides(model, "compute_loss")
    if own_loss:
        reasons.append(f"{type(model).__name__}.compute_loss may look at all rows")
    if model._compile_loss is not None and model._compile_loss.built:
        for _, loss, _, _ in model._compile_loss._flat_losses:
            if not own_rows_only(loss):
                name = getattr(getattr(loss, "fn", None), "__name__", type(loss).__name__)
                reasons.append(f"the loss {name} may look at all rows")
    if loss_gather == "on" and not reasons:
        reasons.append("asked for by --loss-gather on")
    if loss_gather == "off":
        reasons = []
    coupled = []
    if model._compile_metrics is not None:
        coupled = [metric.name for metric in model._compile_metrics.metrics if not adds_up(metric)]
    if overrides(model, "compute_metrics"):
        coupled.append(f"{type(model).__name__}.compute_metrics")
    in_call = kept_in_call(model, x)
    own_rows = [m for m in kept(model) if m in in_call or (own_loss and not (reasons or coupled))]
    whole = [f"the metric {m.name} cannot be added up over devices" for m in own_rows if not adds_up(m)]
    whole += [f"the model is made for batches of {size} rows" for size in _fixed_rows(model)]
    if reasons and accumulate > 1:
        raise UsageError(f"accumulate is {accumulate}, but {reasons[0]}; use accumulate=1, or a loss of single rows")
    return Plan(
        tuple(dict.fromkeys(reasons)), tuple(dict.fromkeys(coupled)), tuple(whole),
        accumulate > 1 and (batch is None or _counts(model, batch)),
        of_all_rows(model, in_call, bool(reasons), bool(coupled)), tuple(metric.name for metric in in_call),
    )  # fmt: skip


def _fixed_rows(model: Any) -> list[int]:
    """Return the numbers of rows that the inputs of a model are made for, such as those of a stateful RNN."""
    inputs: list[Any] = getattr(model, "inputs", None) or []
    return sorted({int(tensor.shape[0]) for tensor in inputs if tensor.shape and tensor.shape[0] is not None})


def _counts(model: Any, batch: Batch) -> bool:
    """Whether the loss divides by something that depends on the rows: valid steps, weights. Found by tracing it."""
    import keras

    trees = keras.tree.map_structure(
        lambda array: None if array is None else spec(as_keras(array), batch.size),
        (batch.x, batch.y, batch.sample_weight),
    )
    counts = Denominators()

    def loss(x: Any, y: Any, sample_weight: Any) -> Any:
        outputs = model(x, **({"training": True} if model._call_has_training_arg else {}))
        return model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)

    try:
        with use(Sharding(rows=batch.size, size=batch.size, update=batch.size, denominators=counts)):
            keras.backend.compute_output_spec(loss, *trees)
    except Exception:  # what cannot be traced may count; finding out costs a forward pass in each update
        return True
    return bool(counts.recorded)
