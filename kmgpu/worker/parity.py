"""One cell of a parity check: the same steps as the reference cell's, compared step by step and in free running.

Stepwise, a cell starts every step from the reference's weights, slots and state, so that an error cannot hide in chaos,
nor chaos look like an error. In free running it starts from the reference's initial state alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from kmgpu.backends.adapter import Adapter, State, StepResult
from kmgpu.data import trees
from kmgpu.data.feed import Feed, Update
from kmgpu.data.loader import Batch
from kmgpu.job import Job
from kmgpu.recipe import Recipe
from kmgpu.rundir import RunDir, write_json
from kmgpu.worker import weights

# A step is also compared on batches a little off: a kink (ReLU, max-pool) that rounding flips on one batch is not
# there on another, while wrong mathematics is wrong on all. The last one is off by one rounding: the noise floor.
# Where no input is a floating-point number (words, categories), the weights are off instead.
VARIANTS = ("batch", "moved", "moved again", "rounded")
MOVED = 1e-2  # relative
MOST_LAYER_BYTES = 1 << 29  # of layers' outputs that the reference keeps
TINY = 1e-30  # below it are float32's denormal numbers, which some backends flush to zero
ZERO = 1e-6  # of the global norm: below it a gradient is zero but for rounding, as that of a bias before BatchNorm


def run(job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, feed: Feed, record: Callable) -> None:
    """Write parity.json: how far this cell is from the reference, or, for the reference, how far rounding takes it."""
    reference = job.options["reference"]
    folder = rundir.path / "parity" if reference is None else Path(reference) / "parity"
    steps = feed.sample(job.options["steps"])
    sizes = tuple(dict.fromkeys(_update_size(update) for update in steps))
    evaluated = tuple(dict.fromkeys(batch.size for update in steps for batch in update))
    record("facts", **_prepare(job, rundir, adapter, recipe, steps[0], sizes, evaluated))
    names = adapter.tools.names(adapter.model)
    kept = job.options["keep_random"] or job.randomness == "portable"
    keep_random = contextlib.nullcontext() if kept else adapter.tools.without_randomness()
    with keep_random:
        if reference is None:
            assert adapter.processes == 1, "the reference cell is one device"
            found = _references(adapter, recipe, steps, folder, names, job.options)
        else:
            own = folder / f"as-{adapter.devices}"
            found = _cell(adapter, steps, own if own.is_dir() else folder, names, job.options["dtype"])
    if adapter.process == 0:
        dtypes = adapter.tools.dtypes(adapter.model)
        write_json(rundir.path / "parity.json", {"names": names, "dtypes": dtypes, **found})
    record("end")


def _prepare(
    job: Job, rundir: RunDir, adapter: Adapter, recipe: Recipe, first: Update, sizes: tuple[int, ...],
    evaluated: tuple[int, ...],
) -> dict[str, Any]:  # fmt: skip
    options = {"loss_gather": job.loss_gather, "track": job.track, "sizes": sizes, "evaluated": evaluated}
    notes = adapter.prepare(recipe, first, options)
    initial = weights.initialise(adapter, job, rundir)
    told = {"notes": notes, "initial_weights": initial, "batch_size": first[0].update_size}
    return {**adapter.facts(), **told, **recipe.policies}


def _references(
    adapter: Adapter, recipe: Recipe, steps: list[Update], folder: Path, names: dict[str, list[str]],
    options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return what the reference found, and, where the recipe wants the devices to matter, for each number of them."""
    folder.mkdir(exist_ok=True)
    if not recipe.depends_on_devices:
        return _reference(adapter, steps, folder, names, options["dtype"])
    initial, found = adapter.state(), {}
    for devices in options["as_devices"]:
        adapter.policy = dataclasses.replace(adapter.policy, devices=devices)
        adapter.load_state(initial)
        own = folder / f"as-{devices}"
        own.mkdir(exist_ok=True)
        found[str(devices)] = _reference(adapter, steps, own, names, options["dtype"])
    return {**next(iter(found.values())), "as_devices": found}


def _reference(
    adapter: Adapter, steps: list[Update], folder: Path, names: dict[str, list[str]], dtype: str
) -> dict[str, Any]:
    state = adapter.state()
    floor, losses = [], []
    layers: dict[str, np.ndarray] = {}
    sizes: set[int] = set()
    evaluated = _firsts_of_size(steps)
    for number, batch in enumerate(steps):
        results = [_result(adapter, batch, variant, state, dtype, number in evaluated) for variant in VARIANTS]
        _write(folder / f"state-{number:04d}.safetensors", _flat(state))
        for name, result in zip(VARIANTS, results, strict=True):
            _write(folder / f"{name}-{number:04d}.safetensors", _flat(result))
        if _update_size(batch) not in sizes and sum(array.nbytes for array in layers.values()) < MOST_LAYER_BYTES:
            sizes.add(_update_size(batch))
            layers |= {f"{number:04d}/{name}": array for name, array in _layers(adapter, batch).items()}
        adapter.load_state(State(state.trainable, results[0].states, state.slots))
        adapter.apply(results[0].gradients)
        before, state = state, adapter.state()
        losses.append(results[0].loss)
        floor.append(_compare_step(results[-1], results[0], before, names))
    _write(folder / f"state-{len(steps):04d}.safetensors", _flat(state))
    order = {name: np.array(place) for place, name in enumerate(layers)}  # safetensors sorts its names
    _write(folder / "layers.safetensors", layers | {f"order/{name}": place for name, place in order.items()})
    first = _read_state(folder, 0)
    adapter.load_state(first if _floating(steps[0]) else _moved_weights(first, VARIANTS[-1], dtype))
    rounded = [_variant(batch, VARIANTS[-1], dtype) for batch in steps]
    sizes_of_steps = [_update_size(update) for update in steps]
    return {
        "losses": losses, "sizes": sizes_of_steps, "floor": floor,
        "floor_trajectory": _trajectory(adapter, rounded, folder, losses, names),
    }  # fmt: skip


def _cell(
    adapter: Adapter, steps: list[Update], folder: Path, names: dict[str, list[str]], dtype: str
) -> dict[str, Any]:
    found, losses = [], []
    evaluated = _firsts_of_size(steps)
    for number, batch in enumerate(steps):
        before, after = _read_state(folder, number), _read_state(folder, number + 1)
        adapter.load_state(before)
        compared = []
        for name in VARIANTS[:-1]:
            truth = _read_result(folder / f"{name}-{number:04d}.safetensors")
            mine = _result(adapter, batch, name, before, dtype, number in evaluated)
            compared.append(_compare_step(mine, truth, before, names))
            if name == VARIANTS[0]:
                losses.append(truth.loss)
        truth = _read_result(folder / f"{VARIANTS[0]}-{number:04d}.safetensors")
        adapter.apply(truth.gradients)
        update = _update_errors(adapter.state(), before, after, names)
        found.append({"variants": compared, "update": update})
    layers = _layer_errors(adapter, steps, folder) if _parts(found, dtype) else []
    adapter.load_state(_read_state(folder, 0))
    return {"steps": found, "layers": layers, "trajectory": _trajectory(adapter, steps, folder, losses, names)}


def _parts(found: list[dict[str, Any]], dtype: str) -> bool:
    """Whether some step is off on every variant of its batch, so that it is worth to ask which layer begins it."""
    worst = [
        min(max([record["loss_error"], *record["gradients"].values()]) for record in step["variants"]) for step in found
    ]
    return max(worst) > 100 * float(np.finfo(dtype).eps)


def _layer_errors(adapter: Adapter, steps: list[Update], folder: Path) -> list[dict[str, Any]]:
    """Return how far each layer's output is from the reference's, in the order of the calls, per recorded step."""
    truths = load_file(folder / "layers.safetensors")
    names = sorted((name for name in truths if not name.startswith("order/")), key=lambda n: int(truths[f"order/{n}"]))
    found = []
    for number in sorted({int(name[:4]) for name in names}):
        adapter.load_state(_read_state(folder, number))
        mine = _layers(adapter, steps[number])
        errors = {}
        for name in names:
            if int(name[:4]) == number:
                rows = mine[name[5:]]  # as shipped, those of the first device alone
                errors[name[5:]] = error(rows, truths[name][: len(rows)])
        found.append({"step": number, "errors": errors})
    return found


def _layers(adapter: Adapter, update: Update) -> dict[str, np.ndarray]:
    return adapter.layer_outputs(adapter.put(update[0]))


def _update_size(update: Update) -> int:
    return update[0].update_size


def _trajectory(
    adapter: Adapter, steps: list[Update], folder: Path, losses: list[float], names: dict[str, list[str]]
) -> dict[str, Any]:
    """Free running with the real training step: errors of losses and weights against the reference's, per step."""
    loss_errors, weight_errors = [], []
    first: dict[str, float] = {}
    final: dict[str, float] = {}
    for number, batch in enumerate(steps):
        loss = adapter.losses([adapter.train_step(_put(adapter, batch))])[0]
        loss_errors.append(relative(loss, losses[number]))
        mine, truth = adapter.state(), _read_state(folder, number + 1)
        final = _errors(mine.trainable, truth.trainable, names["trainable"])
        first = first or final
        weight_errors.append(max(final.values()))
    adapter.metrics()
    return {"losses": loss_errors, "weights": weight_errors, "first_weights": first, "final_weights": final}


def _firsts_of_size(steps: list[Update]) -> set[int]:
    """Return the first step of each size, which is evaluated too."""
    sizes = [_update_size(update) for update in steps]
    return {sizes.index(size) for size in sizes}


def _compare_step(mine: StepResult, truth: StepResult, before: State, names: dict[str, list[str]]) -> dict[str, Any]:
    states = zip(names["other"], mine.states, before.other, truth.states, strict=True)
    return {
        "loss": truth.loss,
        "loss_error": relative(mine.loss, truth.loss),
        "gradient_norm": _norm_of_all(truth.gradients),
        "metrics": {name: relative(value, truth.metrics[name]) for name, value in mine.metrics.items()},
        "gradients": _errors(mine.gradients, truth.gradients, names["trainable"]),
        "states": {name: _change_error(value, old, new) for name, value, old, new in states},
    }


def _change_error(mine: np.ndarray, before: np.ndarray, truth: np.ndarray) -> float:
    """Return how far a new value is from the reference's, relative to the change, which may be small beside it.

    What storing a value rounds (two units in the last place) is no error, however small the change is.
    """
    if mine.shape != truth.shape or (np.isfinite(mine) != np.isfinite(truth)).any():
        return float("inf")
    finite = np.isfinite(truth)
    value, old, new = (np.where(finite, array, 0).astype(np.float64) for array in (mine, before, truth))
    rounding = 2 * np.finfo(truth.dtype).eps * _norm(new) if truth.dtype.kind == "f" else 0.0
    apart = max(0.0, _norm(value - new) - rounding)
    return float(apart / max(_norm(new - old), TINY)) if apart else 0.0


def _update_errors(mine: State, before: State, after: State, names: dict[str, list[str]]) -> dict[str, float]:
    """Return for each weight and slot how far its change is from the reference's."""
    errors = {}
    for kind in ("trainable", "slots"):
        groups = (getattr(mine, kind), getattr(before, kind), getattr(after, kind), names[kind])
        for value, old, truth, name in zip(*groups, strict=True):
            errors[name] = _change_error(value, old, truth)
    return errors


def _errors(mine: list[np.ndarray], truth: list[np.ndarray], names: list[str]) -> dict[str, float]:
    """Return each array's error; one that is zero but for rounding is compared on the scale of all of them."""
    whole = _norm_of_all(truth)
    return {
        name: error(a, b, whole if _norm(b) < ZERO * whole else None)
        for name, a, b in zip(names, mine, truth, strict=True)
    }


def error(mine: np.ndarray, truth: np.ndarray, scale: float | None = None) -> float:
    """Return the norm of the difference over ``scale``, or else over the norm of the truth; 0 for equal arrays."""
    if mine.shape != truth.shape or (np.isfinite(mine) != np.isfinite(truth)).any():
        return float("inf")
    finite = np.isfinite(truth)
    apart = _norm(np.where(finite, mine, 0).astype(np.float64) - np.where(finite, truth, 0).astype(np.float64))
    return apart / max(_norm(np.where(finite, truth, 0)) if scale is None else scale, 1e-30) if apart else 0.0


def relative(mine: Any, truth: Any) -> float:
    """Return the relative difference of two numbers, or the largest of two lists; 0 where both are not finite alike."""
    a, b = np.asarray(mine, np.float64), np.asarray(truth, np.float64)
    if a.shape != b.shape or (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    apart = np.abs(np.where(np.isfinite(a), a - b, 0.0))
    return float(np.max(apart / np.maximum(np.abs(np.where(np.isfinite(b), b, 1.0)), 1e-6), initial=0.0))


def _norm_of_all(arrays: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(_norm(array) ** 2 for array in arrays)))


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64)))


def _result(
    adapter: Adapter, update: Update, variant: str, state: State, dtype: str, evaluated: bool = False
) -> StepResult:
    """Return a step from this state, which the adapter has, on a variant of the update, or of the weights.

    Among its metrics are those of its rows in an evaluation, where it is to be ``evaluated``.
    """
    if variant == VARIANTS[0] or _floating(update):
        start, rows = state, _variant(update, variant, dtype)
    else:
        start, rows = _moved_weights(state, variant, dtype), update
        adapter.load_state(start)
    try:
        result = adapter.step_result(_put(adapter, rows))
        if evaluated:
            result = dataclasses.replace(result, metrics=result.metrics | _scores(adapter, rows))
            adapter.load_state(state)
        return result
    finally:
        if start is not state:
            adapter.load_state(state)


def _scores(adapter: Adapter, update: Update) -> dict[str, Any]:
    """Return loss and metrics of the rows of an update where the model does not train; layers may assign states."""
    batches = [dataclasses.replace(batch, offset=0, update=0) for batch in update]
    losses = adapter.losses([adapter.evaluate_step(adapter.put(batch)) for batch in batches])
    scores = {"loss": float(np.average(losses, weights=[batch.size for batch in batches])), **adapter.metrics()}
    return {f"{name} in evaluation": value for name, value in scores.items()}


def _floating(update: Update) -> bool:
    """Whether some input is a floating-point number, which can be a little off."""
    return any(array.dtype.kind == "f" for _, array in trees.leaves(update[0].x, "x"))


def _scale(variant: str, dtype: str) -> float:
    """Return how far, relative to its value, each number of a variant is off."""
    return float(np.finfo(dtype).eps) if variant == VARIANTS[-1] else MOVED if variant != VARIANTS[0] else 0.0


def _variant(update: Update, variant: str, dtype: str) -> Update:
    """Return an update with its floating inputs a little off, the same in every process and cell."""
    number, scale = VARIANTS.index(variant), _scale(variant, dtype)
    return tuple(_moved(batch, number, scale, dtype) for batch in update)


def _moved(batch: Batch, number: int, scale: float, dtype: str) -> Batch:
    def off(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        seeds = [[number, int(index)] for index in batch.indices[batch.positions]]
        noise = np.stack([np.random.default_rng(seed).standard_normal(array.shape[1:]) for seed in seeds])
        return (array * (1 + scale * noise)).astype(dtype)

    return dataclasses.replace(batch, x=trees.transform(off, batch.x))


def _moved_weights(state: State, variant: str, dtype: str) -> State:
    """Return a state with its weights a little off, the same in every process and cell."""
    random, scale = np.random.default_rng(VARIANTS.index(variant)), _scale(variant, dtype)
    moved = [
        (array * (1 + scale * random.standard_normal(array.shape))).astype(array.dtype) for array in state.trainable
    ]
    return dataclasses.replace(state, trainable=moved)


def _put(adapter: Adapter, update: Update) -> list[Any]:
    return [adapter.put(batch) for batch in update]


def _flat(record: State | StepResult) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, value in vars(record).items():
        if isinstance(value, list):
            arrays |= {f"{name}/{index:04d}": array for index, array in enumerate(value)}
        elif isinstance(value, dict):
            arrays |= {f"{name}/{key}": np.asarray(number, np.float64) for key, number in value.items()}
        else:
            arrays[name] = np.asarray(value, np.float64)
    return arrays


def _write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    save_file({name: np.array(array, order="C") for name, array in arrays.items()}, path)


def _read_state(folder: Path, number: int) -> State:
    arrays = load_file(folder / f"state-{number:04d}.safetensors")
    return State(*(_list(arrays, name) for name in ("trainable", "other", "slots")))


def _read_result(path: Path) -> StepResult:
    arrays = load_file(path)
    metrics = {key.partition("/")[2]: array.tolist() for key, array in arrays.items() if key.startswith("metrics/")}
    return StepResult(float(arrays["loss"]), _list(arrays, "gradients"), _list(arrays, "states"), metrics)


def _list(arrays: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    return [arrays[key] for key in sorted(arrays) if key.startswith(f"{name}/")]


