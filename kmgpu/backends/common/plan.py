"""What the loss and the metrics of a recipe need in a step beyond their own rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


def adds_up(metric: Any) -> bool:
    """Whether a metric's states over the rows of several replicas add up to its state over all rows."""
    from keras.src.trainers import compile_utils

    if isinstance(metric, compile_utils.CompileMetrics):
        return all(adds_up(inner) for inner in metric.metrics)
    if isinstance(metric, compile_utils.MetricsList):
        return all(adds_up(inner) for inner in metric.metrics)
    if not type(metric).__module__.startswith("keras.src.metrics."):
        return False
    function = getattr(metric, "_fn", None)
    return function is None or getattr(function, "__module__", "").startswith("keras.src.")


@dataclass(frozen=True)
class Plan:
    """What a recipe needs in a step beyond its own rows."""

    gather_loss: tuple[str, ...]  # why the loss is computed over the whole batch on every replica; empty: it is not
    gather_metrics: tuple[str, ...]  # the same of the metrics
    whole: tuple[str, ...] = ()  # why every replica computes the whole batch; empty: each computes its share
    counts: bool = False  # whether a denominator of the loss depends on masks or weights

    def notes(self, devices: int) -> list[str]:
        if devices == 1:
            return []
        if self.whole:
            return [f"each device computes the whole batch, which is exact but no faster: {'; '.join(self.whole)}"]
        notes = []
        if self.gather_loss:
            notes.append(f"the outputs are gathered for the loss: {'; '.join(self.gather_loss)}")
        if self.gather_metrics:
            notes.append(f"the outputs are gathered for the metrics: {', '.join(self.gather_metrics)}")
        return notes


def make_plan(model: Any, loss_gather: str = "auto", accumulate: int = 1) -> Plan:
    """Look at a built model's loss and metrics and return what they need."""
    import keras

    reasons = []
    if type(model).compute_loss is not keras.Model.compute_loss:
        reasons.append(f"{type(model).__name__}.compute_loss may look at all rows")
    if model._compile_loss is not None and model._compile_loss.built:
        for _, loss, _, _ in model._compile_loss._flat_losses:
            if not own_rows_only(loss):
                name = getattr(getattr(loss, "fn", None), "__name__", type(loss).__name__)
                reasons.append(f"the loss {name} may look at all rows")
    if loss_gather == "on" and not reasons:
        reasons.append("asked for by loss_gather")
    if loss_gather == "off":
        reasons = []
    trackers = [m for m in model.metrics if m is not model._loss_tracker]
    own = [] if model._compile_loss is None else list(model._compile_loss.metrics)
    coupled = [m.name for m in trackers if m not in own and not adds_up(m)]
    if type(model).compute_metrics is not keras.Model.compute_metrics:
        coupled.append(f"{type(model).__name__}.compute_metrics")
    if reasons and trackers:
        coupled = coupled or ["with the loss"]
    if reasons and accumulate > 1:
        raise UsageError(f"accumulate is {accumulate}, but {reasons[0]}; use accumulate=1, or a loss of single rows")
    masks = any(isinstance(layer, keras.layers.Masking) or _makes_mask(layer) for layer in model._flatten_layers())
    losses = [] if model._compile_loss is None else model._compile_loss._flat_losses or []
    counts = masks or any(loss.reduction == "mean_with_sample_weight" for _, loss, _, _ in losses)
    return Plan(tuple(dict.fromkeys(reasons)), tuple(coupled), counts=counts)


def _makes_mask(layer: Any) -> bool:
    """Whether a layer may make a mask, which later layers and losses count."""
    own = not type(layer).__module__.startswith("keras.src.")
    return bool(getattr(layer, "mask_zero", False)) or (own and hasattr(type(layer), "compute_mask"))
