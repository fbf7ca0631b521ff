"""What paces or ends a run, as a user says it: how long, how far, how often validated, at which learning rate."""

from __future__ import annotations

import re
from typing import Any

from kmgpu.errors import UsageError, nearest

RATE_RULES = ("none", "linear", "sqrt")
ON_NAN = ("stop", "continue")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def pace(
    *,
    steps_per_epoch: int | None = None,
    max_steps: int | None = None,
    max_time: str | float | None = None,
    validate_every: int | None = None,
    scale_lr: str | None = None,
    warmup_epochs: int | None = None,
    on_nan: str | None = None,
) -> dict[str, Any]:
    """Check the wishes and return them as fields of a job, None for what is not wished. Raises UsageError."""
    counts = {"steps-per-epoch": steps_per_epoch, "max-steps": max_steps, "validate-every": validate_every}
    for name, value in counts.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UsageError(f"--{name} is {value!r}; it is a count of at least 1")
    if warmup_epochs is not None and (type(warmup_epochs) is not int or warmup_epochs < 0):
        raise UsageError(f"--warmup-epochs is {warmup_epochs!r}; it is a count of epochs, or 0 for none")
    for name, word, words in (("scale-lr", scale_lr, RATE_RULES), ("on-nan", on_nan, ON_NAN)):
        if word is not None and word not in words:
            raise UsageError(f"--{name} is {word!r}{nearest(str(word), list(words))}; it is {' or '.join(words)}")
    return {
        "steps_per_epoch": steps_per_epoch,
        "max_steps": max_steps,
        "max_seconds": None if max_time is None else seconds(max_time),
        "validate_every": validate_every,
        "scale_lr": scale_lr,
        "warmup_epochs": warmup_epochs,
        "on_nan": on_nan,
    }


def seconds(duration: str | float, option: str = "--max-time") -> float:
    """Return the seconds of "90s", "30m", "2h", "1h30m" or of a number; raises UsageError."""
    if isinstance(duration, (int, float)) and not isinstance(duration, bool):
        total = float(duration)
    else:
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", str(duration))
        whole = "".join(number + unit for number, unit in parts) == str(duration)
        total = sum(float(number) * UNITS[unit] for number, unit in parts) if whole else 0.0
    if not 0 < total < float("inf"):
        raise UsageError(f"{option} is {duration!r}; it is a time such as 90s, 30m, 2h or 1h30m")
    return total
