"""Metrics of several replicas: whose states add up, and whose are those of all rows on each replica already."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


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


def losses_of_outputs(model: Any) -> list[Any]:
    """Return Keras's means of the losses of several outputs."""
    return [] if model._compile_loss is None else list(model._compile_loss.metrics)


def kept(model: Any) -> list[Any]:
    """Return the metrics that layers or the model itself keep, beside those of ``compile``."""
    of_keras = {id(m) for m in (model._loss_tracker, model._compile_metrics, *losses_of_outputs(model))}
    return [metric for metric in model.metrics if id(metric) not in of_keras]


def kept_in_call(model: Any, x: Any) -> list[Any]:
    """Return the metrics of ``kept`` that the forward pass updates, with this replica's rows."""
    import keras
    from keras import ops

    if not kept(model):
        return []
    x = keras.tree.map_structure(lambda array: None if array is None else ops.convert_to_tensor(array), x)
    with keras.StatelessScope() as scope:
        for training in (True, False):
            model(x, **({"training": training} if model._call_has_training_arg else {}))
    return [m for m in kept(model) if any(id(variable) in scope.state_mapping for variable in m.variables)]


def of_all_rows(model: Any, in_call: Sequence[Any], loss: bool, metrics: bool) -> tuple[bool, ...]:
    """For each of ``model.metrics_variables``: whether a replica has the state of all rows, or the part of its own.

    ``loss`` and ``metrics`` say whether these are computed over gathered outputs. What is ``kept_in_call`` has a
    replica's own rows; what does not add up over those needs the whole batch on each replica.
    """
    found: dict[int, bool] = {}
    for metric in model.metrics:
        if metric is model._compile_metrics:
            whole = metrics
        elif metric in losses_of_outputs(model):
            whole = loss
        elif metric in in_call:
            whole = not adds_up(metric)
        else:
            whole = (loss or metrics) and metric is not model._loss_tracker
        found |= {id(variable): whole for variable in metric.variables}
    return tuple(found[id(variable)] for variable in model.metrics_variables)


def parts(states: Sequence[np.ndarray], of_all_rows: Sequence[bool]) -> list[np.ndarray]:
    """Return of each state (replicas, ...) the parts that add up to that of all rows: those of all replicas, or one."""
    whole = of_all_rows or [False] * len(states)
    return [state[:1] if one else state for state, one in zip(states, whole, strict=True)]


def of_device(
    found: Sequence[np.ndarray], of_all_rows: Sequence[bool], devices: int, index: int
) -> Iterator[np.ndarray]:
    """Yield what one of the devices has of each of ``parts``: its own part, or all in the first device and zeros."""
    whole = of_all_rows or [False] * len(found)
    for each, one in zip(found, whole, strict=True):
        total = each.sum(axis=0, dtype=each.dtype)
        if len(each) == devices and not one:
            yield each[index]
        else:
            yield total if one or index == 0 else np.zeros_like(total)
