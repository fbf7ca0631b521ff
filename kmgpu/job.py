"""A job: everything a worker needs to know of one run, as plain JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1  # version of job.json, events.jsonl and outcome.json; see docs/run-directory.md

PRECISIONS = ("float32", "tf32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class Job:
    """One run of one recipe on one backend.

    ``None`` in a field of the recipe (batch_size, epochs, ...) means what the recipe says. ``batch_size`` is global:
    the number of samples of one update over all devices.
    """

    recipe: str  # absolute path of the recipe file
    backend: str  # "torch", "tensorflow", "jax"
    strategy: str  # "ddp", "mirrored", "data_parallel"
    devices: int = 1
    device_kind: str = "cpu"  # "cpu" (virtual devices) or "gpu"; "auto" is resolved before a job is written
    device_ids: tuple[int, ...] | None = None  # which devices, by their index among the visible ones
    settings: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the recipe function
    batch_size: int | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    max_steps: int | None = None  # updates of the whole run
    max_seconds: float | None = None  # of training, after which it ends
    validate_every: int = 1  # epochs
    scale_lr: str = "none"  # the recipe's learning rate for another batch_size: "none", "linear", "sqrt"
    warmup_epochs: int = 0  # over which the learning rate rises
    on_nan: str = "stop"  # or "continue": what follows a loss that is not a number
    seed: int = 0
    precision: str = "float32"  # one of PRECISIONS
    deterministic: bool = False  # only what gives the same bits in every run
    track: str = "same-math"
    loss_gather: str = "auto"
    randomness: str = "native"  # "native": each framework's own numbers; "portable": the same numbers everywhere
    initial_weights: str | None = None  # safetensors file, keys "<index>/<path>"
    python: str | None = None  # interpreter of the workers; None is the running one
    workers: int = 0  # threads that read rows, over all processes; 0 is one in each
    # When to write checkpoints: "on_stop", "every", "keep", "best" (kmgpu/checkpoints.py); none of them is never.
    checkpoints: dict[str, Any] = field(default_factory=dict)
    resume: str | None = None  # directory of the checkpoint to go on from
    mode: str = "train"  # what the worker does: "train", "parity", "check", ...
    options: dict[str, Any] = field(default_factory=dict)  # of the mode

    @property
    def recipe_name(self) -> str:
        return self.recipe.rsplit("/", 1)[-1].removesuffix(".py")

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Job:
        """Read back what ``to_json`` wrote; raises ValueError for another format version."""
        if record.get("format") != FORMAT:
            raise ValueError(f"job.json has format {record.get('format')!r}, this kmgpu reads {FORMAT}")
        fields = {key: value for key, value in record.items() if key != "format"}
        if fields["device_ids"] is not None:
            fields["device_ids"] = tuple(fields["device_ids"])
        return cls(**fields)
