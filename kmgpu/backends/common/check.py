"""Does a step on shares of a batch compute what a step on the whole batch computes, and one in pieces the same?"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kmgpu.backends.adapter import StepResult
from kmgpu.backends.common import apart
from kmgpu.backends.common.apart import Apart
from kmgpu.backends.common.model import perturbed, rounded, to_numpy
from kmgpu.backends.common.plan import Plan
from kmgpu.backends.common.precision import in_float32
from kmgpu.backends.common.randomness import portable, without_randomness
from kmgpu.backends.common.step import gathered_bytes
from kmgpu.data import trees
from kmgpu.data.loader import Batch, split

ATTEMPTS = 3  # each with other weights: a kink (ReLU, max-pool) that rounding flips for some is not there for others
FAR = 100  # tolerances: no kink flips so much
NOISE = 10  # how often the difference that one rounding of the weights makes is excused
MOVED = 1e-2  # how far inputs are moved, of their standard deviation
LOWER = 16  # loss scale of a float16 run; each attempt costs a compilation on some backends
SHARES = ("on shares of it", "on the whole")
PIECES = ("in pieces", "in one")
FEW = 3  # rows of a piece

Way = tuple[Plan, Sequence[Any]]  # a step: how it is computed, and of what


def check(
    adapter: Any, sample: Sequence[Batch], sizes: Sequence[int], evaluated: Sequence[int], predicted: Sequence[int],
    validation: Batch | None = None, gathers: bool = True,
) -> None:  # fmt: skip
    """Let each replica compute whole batches from now on where a step on shares is not the step on the whole.

    Asked for every size of an update (``sizes``) and of a batch that is evaluated or predicted, with rows of ``sample``
    and ``validation``: a layer may do something else when it does not train, or with an odd number of rows. And with
    rows that are moved a little, since equal rows hide what depends on several. Metrics that differ alone are gathered,
    where the adapter ``gathers``.
    """
    tested = sample[:1] if validation is None else [validation]
    for training, wanted, source in ((None, predicted, sample[:1]), (True, sizes, sample), (False, evaluated, tested)):
        for size in dict.fromkeys(wanted):
            _compare(adapter, source, size, training, gathers, few=adapter.device_kind == "gpu")


def _compare(
    adapter: Any, source: Sequence[Batch], size: int, training: bool | None, gathers: bool, few: bool,
    first: int | None = 0, moved: bool = True,
) -> None:  # fmt: skip
    """Set the adapter's plan by what a step of ``size`` rows on shares is; ``training`` is None for outputs alone.

    Where a ``few`` rows do it, no device computes more of them than it does in training; what is found is believed when
    it is found in all rows.
    """
    before = adapter.plan
    enough = _few(size, adapter.devices, len(source)) if few else size
    for tried in dict.fromkeys((enough, size)):
        adapter.plan = before
        found = _rows_of(source, tried, adapter)
        for rows in _variants(found) if moved else [found]:
            update = [adapter.put(batch) for batch in rows]
            if update and adapter.shares(update) and not adapter.plan.whole:
                gathered_bytes.update(shares=0, whole=0)
                _judge(adapter, update, training, source, gathers, first)
                if training and not adapter.plan.gathered_bytes:
                    gathered = gathered_bytes["whole" if adapter.plan.whole else "shares"] * len(update)
                    adapter.plan = dataclasses.replace(adapter.plan, gathered_bytes=gathered * size // tried)
        if not adapter.plan.whole and adapter.plan.gather_metrics == before.gather_metrics:
            return


def _few(size: int, devices: int, pieces: int) -> int:
    """Return how many rows do for a comparison: those of one device, at least one in each piece for each device.

    They divide over the devices as unevenly as ``size`` does.
    """
    least = max(-(-size // devices), devices * pieces)
    return min(size, least + (size - least) % devices)


def check_pieces(adapter: Any, sample: Sequence[Batch]) -> list[str]:
    """Return a note if the pieces of an accumulated update do not add up to it, since something looks at several rows.

    A few rows do for that. Batch statistics are those of each piece, as is documented, and are left out.
    """
    found = _pieces_of(sample, adapter)
    if not found:
        return []
    plan, policy = adapter.plan, adapter.policy
    whole = dataclasses.replace(plan, whole=("to compare",))
    adapter.policy = dataclasses.replace(policy, batch_norm="moving")
    try:
        for move in (False, True):
            pieces, one = ([adapter.put(_moved(batch) if move else batch) for batch in rows] for rows in found)
            differs = _differs(adapter, ((whole, pieces), (whole, one)), True, PIECES)
            if differs is not None:
                return [
                    f"an update in {len(sample)} pieces is not the update in one, as with batch statistics: "
                    f"{differs.what}; accumulate=1 computes it in one"
                ]
    finally:
        adapter.plan, adapter.policy = plan, policy
    return []


def recheck(adapter: Any, update: Sequence[Batch]) -> str | None:
    """Compare shares with the whole again, in the middle of training; from now on each replica computes whole batches
    where they differ, and the reason is returned. What training goes on from is left as it is. All processes.
    """
    if adapter.track != "same-math" or adapter.plan.whole:
        return None
    if not adapter.shares([adapter.put(batch) for batch in update]):
        return None
    adapter.lend()
    metrics, random = adapter.metric_parts(), adapter.random_state()
    adapter.model.reset_metrics()  # else the first of the two steps has those of training, too
    try:
        _compare(adapter, update, update[0].update_size, True, gathers=False, few=True, first=None, moved=False)
    finally:
        adapter.model.reset_metrics()
        adapter.load_metric_parts(metrics)
        adapter.load_random_state(random)
    if not adapter.plan.whole:
        return None
    adapter.rebuild()
    return adapter.plan.whole[0]


def _judge(
    adapter: Any, update: Sequence[Any], training: bool | None, sample: Sequence[Batch], gathers: bool,
    first: int | None = 0,
) -> None:  # fmt: skip
    """Set the adapter's plan by what a step on shares of an update is."""
    plan = adapter.plan
    gathered: Plan | None = None
    try:
        differs = _of_shares(adapter, plan, update, training, first)
        if differs is not None and differs.kind == "metric" and gathers and not plan.gather_metrics:
            gathered = plan.gathering_metrics(adapter.model, sample[0].x, differs.what)
            differs = _of_shares(adapter, gathered, update, training, first)
    finally:
        adapter.plan = plan
    if differs is not None:
        adapter.plan = dataclasses.replace(plan, whole=(differs.what,))
    elif gathered is not None:
        adapter.plan = gathered


def _of_shares(
    adapter: Any, plan: Plan, update: Sequence[Any], training: bool | None, first: int | None
) -> Apart | None:
    whole = dataclasses.replace(plan, whole=("to compare",))
    return _differs(adapter, ((plan, update), (whole, update)), training, SHARES, first=first)


def _differs(
    adapter: Any, ways: tuple[Way, Way], training: bool | None, names: tuple[str, str],
    first: int | None = 0,
) -> Apart | None:  # fmt: skip
    """Return where two ways to compute a step differ, or None; the same in all processes.

    They agree if they do so for some weights, and differ if they are far apart for some, or for all that are tried.
    """
    least: Apart | None = None
    drawing = contextlib.nullcontext() if portable() else without_randomness()
    with drawing, in_float32(adapter.model), _loss_scale_restored(adapter.model.optimizer):
        for seed in (first, *range(1, ATTEMPTS), None):
            with _weights(adapter.model, seed):
                mine, truth = _results(adapter, ways, training)
                found = _apart(adapter, mine, truth, names)
                if found is None:  # no number: with other weights, perhaps
                    continue
                if 1 < found.times < FAR and training:
                    with rounded(adapter.model):
                        (again,) = _results(adapter, ways[1:], training)
                    noise = _apart(adapter, again, truth, names, found.kind)
                    excused = 0.0 if noise is None else NOISE * noise.times
                    found = dataclasses.replace(found, times=found.times / max(1.0, excused))
            if found.times <= 1:
                return None
            if found.times >= FAR:
                return found
            least = found if least is None or found.times < least.times else least
    return least


def _weights(model: Any, seed: int | None) -> contextlib.AbstractContextManager[None]:
    """Weights as they are, for a seed of None, or a little off."""
    return contextlib.nullcontext() if seed is None else perturbed(model, seed)


def _apart(adapter: Any, mine: Any, truth: Any, names: tuple[str, str], kind: str | None = None) -> Apart | None:
    """Return where two results differ most, in any process; None where there is no finite truth to compare with."""
    if isinstance(truth, StepResult):
        if not np.isfinite(truth.loss):
            return None
        states = adapter.states()
        found = apart.steps(adapter.model, states, mine, truth, names, kind)
    else:
        found = apart.outputs(adapter.model, mine, truth)
    words = np.frombuffer(found.what.encode()[:400].ljust(400), np.uint8)
    times = adapter.gather(np.array(found.times, np.float64))  # of one size, whatever was worst here
    worst = int(np.argmax(times))  # a process sees the state of its own rows, and its own outputs
    what = adapter.gather(words)[worst].tobytes().decode(errors="ignore").strip()
    known = adapter.gather(np.frombuffer(found.kind.encode().ljust(8), np.uint8))[worst].tobytes().decode().strip()
    return Apart(float(times[worst]), what, known)


def _results(adapter: Any, ways: Sequence[Way], training: bool | None) -> list[Any]:
    """Return what each way computes: outputs, or steps at a loss scale at which gradients are finite."""
    import keras

    while True:
        results: list[Any] = []
        for plan, update in ways:
            adapter.plan = plan
            if training is None:
                flat = keras.tree.flatten(adapter.fresh_outputs(update[0]))
                results.append([np.asarray(array, np.float64) for array in flat])
            else:
                results.append(adapter.fresh_result(update, training))
        if not training or all(np.isfinite(g).all() for result in results for g in result.gradients):
            return results
        if not _scaled_down(adapter.model.optimizer):
            return results


def _scaled_down(optimizer: Any) -> bool:
    """Whether there was a loss scale to lower; it is lower then, as training lowers it until gradients are finite."""
    scale = getattr(optimizer, "dynamic_scale", None)
    if scale is None or float(to_numpy(scale.value)) <= 1:
        return False
    scale.assign(to_numpy(scale.value) / LOWER)
    return True


@contextlib.contextmanager
def _loss_scale_restored(optimizer: Any) -> Iterator[None]:
    scale = getattr(optimizer, "dynamic_scale", None)
    before = None if scale is None else to_numpy(scale.value)
    yield
    if scale is not None:
        scale.assign(before)


def _rows_of(sample: Sequence[Batch], size: int, adapter: Any) -> list[Batch]:
    """Return an update of ``size`` rows out of the first rows of the sample's batches; empty if these have too few.

    A batch with fewer rows than devices is given to each whole, of the rows that the process has.
    """
    found = []
    for batch, share in zip(sample, split(size, min(len(sample), size)) or [], strict=False):
        rows = share.stop - share.start
        parts = split(rows, adapter.devices)
        own = slice(0, rows)
        if parts is not None and adapter.one_process_per_device:
            own = parts[adapter.process]
        has = np.array(trees.rows_of(batch.x) >= own.stop - own.start)
        if rows > batch.size or not adapter.gather(has).all():
            return []
        x, y, sample_weight = trees.transform(
            lambda array, count=own.stop - own.start: array[:count], (batch.x, batch.y, batch.sample_weight)
        )
        found.append(Batch(batch.step, batch.indices[:rows], own.start, x, y, sample_weight, share.start, size))
    return found


def _pieces_of(sample: Sequence[Batch], adapter: Any) -> tuple[list[Batch], list[Batch]] | None:
    """Return some rows as the pieces of an update, and as one batch; each process takes rows of its own."""
    fields = [(batch.x, batch.y, batch.sample_weight) for batch in sample]
    rows = int(adapter.gather(np.array(sum(trees.rows_of(batch.x) for batch in sample))).min())
    rows = min(rows, FEW * len(sample) - 1)
    shares = split(rows, len(sample))
    if shares is None:
        return None
    joined = trees.transform(lambda *arrays: np.concatenate(arrays)[:rows], *fields)

    def batch(part: slice) -> Batch:
        x, y, sample_weight = trees.transform(lambda array: array[part], joined)
        return Batch(0, np.arange(part.start, part.stop), 0, x, y, sample_weight, part.start, rows)

    return [batch(part) for part in shares], [batch(slice(0, rows))]


def _variants(update: list[Batch]) -> Iterator[list[Batch]]:
    """Yield an update as it is, and moved a little where there is something to move."""
    yield update
    floats = [array for batch in update for _, array in trees.leaves(batch.x, "") if array.dtype.kind == "f"]
    if floats or any(batch.sample_weight is not None for batch in update):
        yield [_moved(batch) for batch in update]


def _moved(batch: Batch) -> Batch:
    """Return a batch with its floating inputs a little off, each row otherwise, and no weight of zero.

    Inputs stay within the range that they have, which may be that of an embedding.
    """
    random = np.random.default_rng([batch.first, batch.offset])

    def inputs(array: np.ndarray) -> np.ndarray:
        known = array[np.isfinite(array)] if array.dtype.kind == "f" else array[:0]
        if known.size == 0:
            return array
        least, most = known.min(), known.max()
        scale = float(np.std(known, dtype=np.float64)) or 1.0
        moved = array + MOVED * scale * random.standard_normal(array.shape)
        return (moved if least == most else np.clip(moved, least, most)).astype(array.dtype)

    def weights(array: np.ndarray) -> np.ndarray:
        return (np.abs(array) + random.uniform(0.5, 1.5, array.shape)).astype(np.float32)

    return dataclasses.replace(
        batch, x=trees.transform(inputs, batch.x), sample_weight=trees.transform(weights, batch.sample_weight)
    )


__all__ = ["check", "check_pieces", "recheck"]
