"""Keras's callbacks: which can run, which of their hooks do something, and what they may change beside variables."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kmgpu.errors import UsageError

HOOKS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end", "on_test_batch_begin", "on_test_batch_end"),
)
REFUSED = {
    "OrbaxCheckpoint": "it writes with JAX alone; ModelCheckpoint, or kmgpu's own checkpoints, serve all backends",
}


def check_callbacks(callbacks: Any) -> None:
    """Refuse by name what cannot run, before anything is trained."""
    import keras

    if not isinstance(callbacks, (list, tuple)):
        raise UsageError(f"the recipe's callbacks are a {type(callbacks).__name__}; give a list of keras callbacks")
    for callback in callbacks:
        name = type(callback).__name__
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError(f"the recipe's callbacks hold a {name}; each must be a keras.callbacks.Callback")
        if isinstance(callback, keras.callbacks.CallbackList):
            raise UsageError("the recipe's callbacks hold a CallbackList; give its callbacks one by one")
        for refused, why in REFUSED.items():
            if isinstance(callback, getattr(keras.callbacks, refused, ())):
                raise UsageError(f"the callback {name} is not supported: {why}; leave it out")


def ignored_by_steps(model: Any) -> list[str]:
    """Return a note on what ``model.compile`` was told of the way to run, which is not the recipe's to say here."""
    given = []
    if model.run_eagerly:
        given.append("run_eagerly=True")
    elif model.jit_compile != model._resolve_auto_jit_compile():
        given.append(f"jit_compile={model.jit_compile}")
    if model.steps_per_execution != 1:
        given.append(f"steps_per_execution={model.steps_per_execution}")
    if not given:
        return []
    return [f"{', '.join(given)} of model.compile has no effect: kmgpu runs each backend's steps in its own way"]


def callback_list(callbacks: Sequence[Any], model: Any, epochs: int, steps: int | None) -> list[Any]:
    """Return the callbacks with their parameters set, as fit sets them, and Keras's History; ``set_model`` is left."""
    import keras

    model.stop_training, model._initial_epoch = False, None
    made = keras.callbacks.CallbackList(list(callbacks), add_history=True, verbose=0, epochs=epochs, steps=steps)
    model.history = made._history
    return list(made.callbacks)


def overridden(callbacks: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the callbacks that do something in a hook, by hook; hooks without any are left out."""
    found = {hook: [callback for callback in callbacks if _does(callback, hook)] for hook in HOOKS}
    return {hook: those for hook, those in found.items() if those}


def _does(callback: Any, hook: str) -> bool:
    import keras

    kept = keras.callbacks
    alias = hook.replace("_train_batch_", "_batch_")  # the default hook of a training batch calls on_batch_begin or end
    if all(getattr(getattr(callback, name), "_is_default", False) for name in {hook, alias}):
        return False
    if "_batch_" in hook and type(callback) in (kept.ModelCheckpoint, kept.BackupAndRestore):
        return callback.save_freq != "epoch"
    if "_batch_" in hook and type(callback) is kept.TensorBoard:
        return callback.update_freq != "epoch" or callback.write_steps_per_second or callback._should_trace
    return True


def go_on(callbacks: Sequence[Any], epoch: int) -> list[str]:
    """Let tables that callbacks write go on at an epoch, instead of beginning anew; returns notes for the user."""
    import keras

    notes = []
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
            removed = _cut_table(Path(callback.filename), callback.sep, epoch)
            if removed:
                notes.append(f"{callback.filename} goes on; rows of epochs that are trained again are gone: {removed}")
    return notes


def _cut_table(path: Path, separator: str, epoch: int) -> int:
    """Remove the rows from an epoch on of a CSVLogger's file, if it is one; return how many they are."""
    if not path.is_file():
        return 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if not lines or not lines[0].startswith("epoch"):
        return 0
    kept = [lines[0]] + [line for line in lines[1:] if _number(line.partition(separator)[0]) < epoch]
    if len(kept) < len(lines):
        neighbour = path.with_name(f".{path.name}.part")
        neighbour.write_text("".join(kept), encoding="utf-8")
        neighbour.replace(path)
    return len(lines) - len(kept)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1


class Watch:
    """What a callback may change of a model beside the values of its variables, and what it may not."""

    def __init__(self, model: Any):
        self._model, self._optimizer = model, model.optimizer
        inner = [getattr(model.optimizer, "inner_optimizer", None), *getattr(model.optimizer, "optimizers", ())]
        self._optimizers = [model.optimizer, *(optimizer for optimizer in inner if optimizer is not None)]
        self._layers, self._variables = model._flatten_layers(), model.variables
        losses = (model._compile_loss._flat_losses or ()) if model._compile_loss is not None else ()
        self._holders = [*self._layers, *(loss for _, loss, _, _ in losses)]
        self._rates = [optimizer._learning_rate for optimizer in self._optimizers]

    def settings(self, each_batch: bool = False) -> dict[str, Any]:
        """Return what is trainable (of layers, of variables), and the plain numbers of optimizers, layers and losses.

        The numbers of Keras's own layers are left out for a hook that is called with ``each_batch``.
        """
        holders = [*self._optimizers, *self._holders]
        return {
            "layers": [bool(layer._trainable) for layer in self._layers],
            "variables": [bool(variable.trainable) for variable in self._variables],
            "numbers": [{} if each_batch and _of_keras(holder) else _numbers(holder) for holder in holders],
        }

    def set(self, settings: dict[str, Any]) -> None:
        """Set what ``settings`` returned in another process."""
        for layer, trainable in zip(self._layers, settings["layers"], strict=True):
            layer._trainable = trainable
        for variable, trainable in zip(self._variables, settings["variables"], strict=True):
            variable.trainable = trainable
        for holder, values in zip([*self._optimizers, *self._holders], settings["numbers"], strict=True):
            for name, value in values.items():
                if getattr(holder, name, None) != value:
                    setattr(holder, name, value)

    def refused(self) -> str | None:
        """Return what a callback has done that training cannot follow, or None."""
        model = self._model
        if model.optimizer is not self._optimizer:
            return "replaces the optimizer; change its learning rate or its other numbers instead"
        rates = (optimizer._learning_rate for optimizer in self._optimizers)
        if any(rate is not known for rate, known in zip(rates, self._rates, strict=True)):
            return "replaces the learning rate by a schedule; assign numbers to it instead"
        if len(model.variables) != len(self._variables) or len(model._flatten_layers()) != len(self._layers):
            return "adds or removes layers or weights, which is for the recipe to do"
        if not model.trainable_variables:
            return "freezes all weights; set model.stop_training = True to end the training"
        frozen = len(model.trainable_variables) != len(self._optimizer._trainable_variables)
        if frozen and any(getattr(optimizer, "use_ema", False) for optimizer in self._optimizers):
            return "freezes layers while the optimizer keeps moving averages (use_ema), which Keras then mixes up"
        known = {id(variable) for optimizer in self._optimizers for variable in optimizer._trainable_variables}
        unknown = [variable.path for variable in model.trainable_variables if id(variable) not in known]
        if unknown:
            return (
                f"unfreezes {unknown[0]}, of which the optimizer knows nothing; leave it trainable in the recipe and "
                "freeze it in on_train_begin"
            )
        return None


def _of_keras(holder: Any) -> bool:
    return type(holder).__module__.startswith("keras.src.layers.")


def _numbers(holder: Any) -> dict[str, Any]:
    """Return the attributes that are plain numbers, or may become one, such as momentum, clipnorm, weight_decay."""
    found: dict[str, Any] = {}
    for name, value in vars(holder).items():
        if name.startswith(("_", "stop_")) or name == "built":  # Keras's methods set stop_training and its like
            continue
        if value is None or isinstance(value, (bool, int)):
            found[name] = value
        elif isinstance(value, numbers.Real):
            found[name] = float(value)
    return found


def finalize(model: Any) -> bool:
    """Leave the moving averages in the weights where an optimizer keeps some, as fit does; whether it does."""
    optimizer = getattr(model.optimizer, "inner_optimizer", None) or model.optimizer
    if not any(each.use_ema for each in (optimizer, *getattr(optimizer, "optimizers", ()))):
        return False
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return True


def learning_rate(model: Any) -> float:
    """Return the learning rate of the next update, by the variables as Keras sees them."""
    from keras import ops

    return float(ops.convert_to_numpy(model.optimizer.learning_rate))
