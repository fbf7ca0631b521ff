"""A loss that is not a number: from which sample it comes, and what it has spoilt."""

from __future__ import annotations

import numpy as np

from kmgpu import checkpoints
from kmgpu.backends.adapter import Adapter
from kmgpu.data import trees
from kmgpu.data.feed import Update
from kmgpu.errors import UsageError
from kmgpu.worker import checkpoint
from kmgpu.worker.run import Run


def sentence(run: Run, update: Update) -> str:
    """Say what is not finite in the data of an update and in the model after it, and which checkpoint is good.

    The same in all processes, which must all call it; resets metrics.
    """
    adapter = run.adapter
    blamed = f"{_sample(adapter, update) or 'the data of that step are finite'}; {_variable(adapter, update)}"
    kept = f"; the last good checkpoint is {found}" if adapter.process == 0 and (found := _good(run)) else ""
    return blamed + adapter.broadcast(kept.encode()).decode()


def _good(run: Run) -> str | None:
    """Return the last checkpoint all of whose weights are finite, or None."""
    for path in reversed(checkpoints.listed(run.rundir.path)):
        try:
            tensors = checkpoint.read(checkpoints.read(path))
        except UsageError:  # damaged
            continue
        weights = [value for name, value in tensors.items() if name.startswith(f"{checkpoint.MODEL}/")]
        if all(np.isfinite(value.astype(np.float64)).all() for value in weights):
            return str(path)
    return None


def _sample(adapter: Adapter, update: Update) -> str | None:
    """Return the first sample of an update that holds a number which is not finite, and where."""
    found, names = (-1, -1), ("x", "y", "sample_weight")
    for batch in update:
        for code, name in enumerate(names):
            for _, array in trees.leaves(getattr(batch, name), name):
                bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                if bad.any() and found[0] < 0:
                    found = int(batch.indices[batch.first + int(np.argmax(bad))]), code
    everywhere = adapter.gather(np.array(found, np.int64))
    known = everywhere[everywhere[:, 0] >= 0]
    return None if not len(known) else f"{names[known[0][1]]} of sample {known[0][0]} is not finite"


def _variable(adapter: Adapter, update: Update) -> str:
    """Return the first weight that is not finite now or, where all are, the first gradient that is not."""
    for name, values in adapter.variables():
        if not np.isfinite(values[0].astype(np.float64)).all():
            return f"the first variable that is not finite is {name}"
    result = adapter.step_result([adapter.put(batch) for batch in update])
    names = adapter.tools.names(adapter.model)["trainable"]
    for name, gradient in zip(names, result.gradients, strict=True):
        if not np.isfinite(gradient).all():
            return f"all weights are finite, and the first gradient that is not is that of {name}"
    return "no variable and no gradient is other than finite"
