"""The protocol of an adapter: the short list of verbs in which a framework trains a recipe on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kmgpu.data.loader import Batch
from kmgpu.recipe import Recipe


@dataclass(frozen=True)
class Place:
    """Where a worker process stands: what it needs to know before its framework initialises devices."""

    device_kind: str  # "cpu" or "gpu"
    devices: int  # of the whole run
    device_ids: tuple[int, ...] | None  # indices among the visible devices
    process: int
    processes: int
    threads: int  # CPU threads for each process
    deterministic: bool  # whether the framework is to take only what gives the same bits in every run
    rendezvous: str  # a file that does not exist yet, in a private directory on a local disk


@dataclass(frozen=True)
class StepResult:
    """What a step computes from a global batch before its update, the same on all devices."""

    loss: float
    gradients: list[np.ndarray]  # of the trainable variables, in order
    states: list[np.ndarray]  # the non-trainable variables after the forward pass, in order
    metrics: dict[str, float]  # of this batch


@dataclass(frozen=True)
class State:
    """All that a step starts from, in the order of Keras's lists of variables."""

    trainable: list[np.ndarray]
    other: list[np.ndarray]  # non-trainable variables: moving statistics, seeds, layer state
    slots: list[np.ndarray]  # the optimizer's variables


class Adapter(Protocol):
    """One strategy on ``devices`` devices. Methods that say "all processes" must be called by each of them."""

    model: Any  # once prepared
    policy: Any  # once prepared: common.Policy, for how many devices it computes what
    words: Any  # the integers of its portable random numbers (common/draws.py)
    tools: Any  # kmgpu.backends.common: what is done with a Keras model in the same way on every backend
    devices: int
    device_kind: str
    process: int
    processes: int
    one_process_per_device: bool
    not_in_callbacks: tuple[str, ...]  # methods of the model that fail when a callback calls them

    def facts(self) -> dict[str, Any]:
        """What the framework itself says: version, device names, precision as read back."""

    def reset(self, seed: int, precision: str) -> None:
        """Forget what earlier recipes left in Keras, set the precision, and seed Python, NumPy and the framework."""

    def scope(self) -> AbstractContextManager[Any]:
        """Context in which the recipe's file is imported and its Keras objects are made."""

    def prepare(self, recipe: Recipe, sample: Sequence[Batch], options: dict[str, Any]) -> list[str]:
        """Build model, optimizer, loss and metrics for updates like ``sample``; weights hold their initial values.

        Options: "sizes" (rows of the updates to come), "evaluated" (rows of the batches to evaluate), "validation" (the
        first of these, where it is not like ``sample``), "track" (same-math or as-shipped), "loss_gather". With
        "predicted" (rows of the batches to come) the model is only to give outputs, for batches without y. Returns
        notes for the user, one line each.
        """

    def put(self, batch: Batch) -> Any:
        """Start to copy this process's rows to its devices; returns what the steps take."""

    def train_step(self, update: Sequence[Any]) -> Any:
        """One update from its batches (several if gradients accumulate); may return before it is done."""

    def step_result(self, update: Sequence[Any]) -> StepResult:
        """What ``train_step`` would compute, without its update; changes no variable, resets metrics. All processes."""

    def operations(self, update: Sequence[Any]) -> int | None:
        """Floating-point operations of the matrix products and convolutions of a step, forward and backward.

        Of this process's rows. None where the framework has no counter of them; changes nothing.
        """

    def layer_outputs(self, batch: Any) -> dict[str, np.ndarray]:
        """What each layer gives for the global batch in a training step, in the order of the calls. All processes."""

    def apply(self, gradients: Sequence[np.ndarray]) -> None:
        """One update of the optimizer from the gradient of a global batch. All processes."""

    def state(self) -> State:
        """Everything a step starts from, as it is on the first device of this process."""

    def load_state(self, state: State) -> None:
        """Set everything a step starts from, on all devices. All processes."""

    def metric_parts(self) -> list[np.ndarray]:
        """The metrics so far, for each of ``model.metrics_variables`` (parts, ...): parts add up. All processes."""

    def load_metric_parts(self, parts: Sequence[np.ndarray]) -> None:
        """Set the metrics so far; each device takes its own part if there are as many. All processes."""

    def random_state(self) -> dict[str, np.ndarray]:
        """This process's random state beside Keras's variables, by name; the same names in all processes."""

    def load_random_state(self, state: dict[str, np.ndarray]) -> None:
        """Set what ``random_state`` returned in this process of a run on the same backend and devices."""

    def evaluate_step(self, batch: Any) -> Any:
        """Loss and metrics of a global batch, no update. All processes."""

    def losses(self, handles: Sequence[Any]) -> list[float]:
        """Wait; the loss of each global batch whose handle is given, in float64. All processes."""

    def metrics(self, reset: bool = True) -> dict[str, float]:
        """Metrics over all batches since the last reset, merged over the devices. All processes."""

    def predict(self, batch: Any) -> Any:
        """Outputs for this process's rows of a batch, in order, as NumPy arrays. All processes."""

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Stack one array of every process: shape (processes, *values.shape). All processes."""

    def broadcast(self, data: bytes) -> bytes:
        """Process 0's bytes in every process, however long it takes to come with them. All processes."""

    def lend(self) -> None:
        """Give Keras's variables the state of training, for others than the steps to see and to assign to."""

    def changed(self) -> list[int]:
        """Which variables, by the adapter's own numbers, have been assigned to in this process since ``lend``."""

    def share(self, changed: Sequence[int]) -> None:
        """Give all devices what these variables hold in process 0, and train with it. All processes."""

    def rebuild(self) -> None:
        """Make the steps anew: what is trainable, or a number of the optimizer, is not what it was. All processes."""

    def variables(self) -> list[tuple[str, list[np.ndarray]]]:
        """The model's weights in model order: path, and the value on each device of this process."""

    def assign(self, values: Sequence[np.ndarray]) -> None:
        """Set the model's weights, in model order, on all devices. All processes."""

    def peak_bytes(self) -> int | None:
        """Peak of the framework's device allocator over this process's devices, or None on CPU."""

    def close(self) -> None:
        """Leave the process group; the process can end. All processes."""
