"""A recipe: a compiled Keras model together with its data, as a recipe file's function returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kmgpu.errors import UsageError, nearest


@dataclass(frozen=True)
class Recipe:
    """What ``recipe(*, name=default, ...)`` in a recipe file returns.

    ``model`` is a compiled ``keras.Model``. ``train`` and ``validation`` are ``(x, y)`` or ``(x, y, sample_weight)``
    of arrays or memory maps (or dicts or lists of them for several inputs and outputs), or an object with
    ``__len__`` and rows by index, or a stream of batches (PyDataset, tf.data, DataLoader, generator), or a function of
    no arguments that returns one of these, called once per host.
    ``batch_size`` is global: the samples of one update over all devices.
    """

    model: Any
    train: Any
    validation: Any = None
    batch_size: int = 32
    epochs: int = 1
    shuffle: bool = True
    callbacks: Sequence[Any] = ()
    class_weight: dict[int, float] | None = None
    accumulate: int = 1
    batch_norm: str = "global"
    gradient_reduction: str = "mean"
    steps_per_epoch: int | None = None
    validation_steps: int | None = None

    def __new__(cls, *values: Any, **fields: Any) -> Recipe:
        known = list(cls.__dataclass_fields__)
        for name in fields:
            if name not in known:
                raise UsageError(f"Recipe has no {name!r}{nearest(name, known)}; it has {', '.join(known)}")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate"):
            _check_count(name, getattr(self, name))
        for name in ("steps_per_epoch", "validation_steps"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        for name, known in (("batch_norm", ("global", "replica")), ("gradient_reduction", ("mean", "sum"))):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it is {known[0]!r} or {known[1]!r}")

    @property
    def policies(self) -> dict[str, Any]:
        """What decides, beside model and data, what an update computes from its batch."""
        return {
            "accumulate": self.accumulate, "batch_norm": self.batch_norm, "gradient_reduction": self.gradient_reduction,
        }  # fmt: skip

    @property
    def depends_on_devices(self) -> bool:
        """Whether an update is another one on another number of devices, because the recipe says so."""
        return self.batch_norm == "replica" or self.gradient_reduction == "sum"


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"the recipe's {name} is {value!r}; it must be a whole number of at least 1")
