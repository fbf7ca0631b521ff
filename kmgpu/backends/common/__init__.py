"""What the adapters share about Keras, in one name space: ``common.local_loss``, ``common.Sharding`` and so on."""

from kmgpu.backends.common.callbacks import (
    Watch,
    callback_list,
    check_callbacks,
    finalize,
    go_on,
    ignored_by_steps,
    learning_rate,
    overridden,
)
from kmgpu.backends.common.check import check, check_pieces, recheck
from kmgpu.backends.common.imports import import_keras, stock_keras
from kmgpu.backends.common.inspection import layer_notes, step_bytes
from kmgpu.backends.common.layers import layer_outputs, watched_layers
from kmgpu.backends.common.metrics import of_device, parts
from kmgpu.backends.common.model import (
    as_keras,
    assign,
    assigned,
    assigned_weights,
    build,
    dtypes,
    load_state,
    metric_results,
    model_facts,
    names,
    state,
    to_numpy,
)
from kmgpu.backends.common.plan import Plan, make_plan
from kmgpu.backends.common.precision import precision_facts, set_precision
from kmgpu.backends.common.randomness import (
    load_random_state,
    portable,
    random_state,
    set_randomness,
    without_randomness,
)
from kmgpu.backends.common.sharding import Denominators, Policy, Sharding, as_shipped, unshared, use
from kmgpu.backends.common.step import local_loss, predict, restored, same
from kmgpu.backends.common.targets import check_labels, check_targets, check_validation

__all__ = [
    "Denominators", "Plan", "Policy", "Sharding", "Watch", "as_keras", "as_shipped", "assign", "assigned",
    "assigned_weights", "build", "callback_list", "check", "check_callbacks", "check_labels", "check_pieces",
    "check_targets", "check_validation", "dtypes", "finalize", "go_on", "ignored_by_steps", "import_keras",
    "layer_notes", "layer_outputs", "learning_rate", "load_random_state", "load_state", "local_loss", "make_plan",
    "metric_results", "model_facts", "names", "of_device", "overridden", "parts", "portable", "precision_facts",
    "predict", "random_state", "recheck", "restored", "same", "set_precision", "set_randomness", "state",
    "step_bytes", "stock_keras", "to_numpy", "unshared", "use", "watched_layers", "without_randomness",
]  # fmt: skip
