"""The callbacks of a recipe: they run in process 0, and what they decide or change holds in all processes."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from kmgpu.errors import KmgpuError, RunFailed, UsageError
from kmgpu.worker.callback_state import Memories
from kmgpu.worker.run import Run

OWN_LOOP = ("fit", "compile", "train_on_batch")  # methods of a model that train beside the loop
EVALUATION = {"evaluate", "test_on_batch"}
BATCH_HOOKS = {"on_train_batch_begin", "on_train_batch_end"}


class Callbacks:
    """Calls Keras's callbacks where fit calls them; a hook that none of them overrides costs nothing."""

    def __init__(self, run: Run, epoch: int = 0):
        """``epoch`` is the one at which a run that is resumed goes on."""
        self.stop: str | None = None  # who has set model.stop_training; the same in all processes
        self.seconds = 0.0  # spent in hooks
        self.changes = 0  # how often a callback has changed what is trained, or how; the same in all processes
        self._adapter = run.adapter
        self._saved = bool(run.job.checkpoints)
        self._watch = run.adapter.tools.Watch(run.adapter.model)
        self._called: dict[str, list[Any]] = {}  # by hook; empty but in process 0
        self._compiled = self._watch.settings()  # of the recipe
        self._memories = Memories(())  # of none but in process 0
        self._notes: list[str] = []
        if run.adapter.process == 0:
            self._called = self._set_up(run, epoch)
        # Process 0's, should a recipe give its processes different ones.
        self._hooks = set(json.loads(run.adapter.broadcast(json.dumps(sorted(self._called)).encode())))

    @property
    def each_batch(self) -> bool:
        """Whether a callback looks at each batch, so that steps cannot be grouped."""
        return bool(self._hooks & BATCH_HOOKS)

    def notes(self) -> list[str]:
        names = sorted({_name(callback) for hook in BATCH_HOOKS for callback in self._called.get(hook, ())})
        kept = self._notes + (self._memories.notes() if self._saved else [])
        if not names:
            return kept
        return [*kept, f"{', '.join(names)} looks at each batch: every step is waited for before the next one starts"]

    def take_seconds(self) -> float:
        """Return the seconds spent in hooks since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def overrides(self, hook: str) -> bool:
        return hook in self._hooks

    def call(self, hook: str, *arguments: Any) -> None:
        """Run a hook in process 0, with the state of training in the model, and follow it everywhere. All processes."""
        if hook not in self._hooks:
            return
        began = time.perf_counter()
        self._adapter.lend()
        decided = self._run(hook, arguments) if self._adapter.process == 0 else {}
        told = self._adapter.broadcast(json.dumps(decided).encode() if decided else b"")
        self._follow(json.loads(told) if told else {})
        self.seconds += time.perf_counter() - began

    def begin(self) -> int:
        """Run ``on_train_begin``; return the epoch at which training is to begin, as ``fit`` has it. All processes.

        Another than 0 where BackupAndRestore has found a backup, and loaded its weights and slots.
        """
        if "on_train_begin" not in self._hooks:
            return 0
        self.call("on_train_begin")
        self._memories.begin()
        first = (self._adapter.model._initial_epoch or 0) if self._adapter.process == 0 else 0
        return int(self._adapter.broadcast(str(first).encode()))

    def end_of_stopped(self, record: Callable[..., None]) -> None:
        """Run ``on_train_end`` of a run that is asked to stop, so that files are closed; it ends in any case."""
        if "on_train_end" not in self._called:
            return
        # A backup is for the run after this one.
        self._called["on_train_end"] = [each for each in self._called["on_train_end"] if not _is_backup(each)]
        self._adapter.lend()
        try:
            self._run("on_train_end", ({},))
        except KmgpuError as error:
            record("note", text=str(error))

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a checkpoint is to hold beside the model's variables, as JSON and named arrays, in process 0.

        "settings", where callbacks have changed what is trainable or a number of the optimizer; "remembered" by each.
        """
        settings = self._watch.settings()
        remembered, arrays = self._memories.take()
        return {"settings": None if settings == self._compiled else settings, "remembered": remembered}, arrays

    def set(self, state: dict[str, Any]) -> None:
        """Make trainable what was when ``state`` was taken, and set the optimizer's numbers. All processes."""
        wanted, settings = state.get("settings") or self._compiled, self._watch.settings()
        if wanted == settings:
            return
        if any(len(wanted[kind]) != len(settings[kind]) for kind in settings):
            raise UsageError("the checkpoint is of a model with other layers; resume with the recipe it had")
        self._watch.set(wanted)
        self._adapter.rebuild()

    def remember(self, state: dict[str, Any], arrays: dict[str, Any]) -> list[str]:
        """Let the callbacks remember what ``state`` says; return the names of those of which it says nothing."""
        return self._memories.give(state.get("remembered", {}), arrays)

    def _set_up(self, run: Run, epoch: int) -> dict[str, list[Any]]:
        # A run stops by itself for a loss that is not a number, unless it is told to go on.
        ended = run.job.on_nan == "stop"
        given = [each for each in run.recipe.callbacks if not (ended and _name(each) == "TerminateOnNaN")]
        if not given:
            return {}
        tools, model = self._adapter.tools, self._adapter.model
        if run.job.resume is not None:
            self._notes += tools.go_on(given, epoch)
        callbacks = tools.callback_list(given, model, run.epochs, run.train.steps)
        for callback in callbacks:
            _call(callback, "set_model", (model,))
        self._memories = Memories(callbacks)
        return tools.overridden(callbacks)

    def _run(self, hook: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """Return what the callbacks have decided: who stops, which variables they assigned to, new settings."""
        model, stop, each_batch = self._adapter.model, self.stop, "_batch_" in hook
        before = self._watch.settings(each_batch)
        for callback in self._called[hook]:
            with self._guarded():
                _call(callback, hook, arguments)
            if not each_batch and (refused := self._watch.refused()):
                raise UsageError(f"the callback {_name(callback)} {refused} ({hook})")
            stop = (stop or _name(callback)) if model.stop_training else None
        settings = self._watch.settings(each_batch)
        decided = {
            "stop": None if stop == self.stop else [stop],
            "settings": None if settings == before else settings,
            "changed": self._adapter.changed(),
        }
        return decided if any(decided.values()) else {}

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Within it, the model's methods that would disturb training raise UsageError, or leave no trace in it."""
        model, refused = self._adapter.model, (*OWN_LOOP, *self._adapter.not_in_callbacks)
        for name in refused:
            vars(model)[name] = _refuse(name)
        for name in EVALUATION - set(refused):
            vars(model)[name] = self._apart(getattr(model, name))
        try:
            yield
        finally:
            for name in {*refused, *EVALUATION}:
                del vars(model)[name]

    def _apart(self, method: Any) -> Any:
        """Return a method that leaves the metrics of training as they are."""

        def kept(*arguments: Any, **options: Any) -> Any:
            with self._adapter.tools.restored(self._adapter.model.metrics_variables):
                return method(*arguments, **options)

        return kept

    def _follow(self, decided: dict[str, Any]) -> None:
        if decided.get("stop"):
            (self.stop,) = decided["stop"]
        if decided.get("changed"):
            self._adapter.share(decided["changed"])
            self.changes += 1
        if decided.get("settings"):
            self._watch.set(decided["settings"])
            self._adapter.rebuild()
            self.changes += 1


def _call(callback: Any, hook: str, arguments: tuple[Any, ...]) -> None:
    """Call a hook; what goes wrong in it is said with the callback's name."""
    first = arguments[0] if arguments and isinstance(arguments[0], int) else None
    what = "" if first is None else f" of {'epoch' if 'epoch' in hook else 'batch'} {first}"
    where = f"the callback {_name(callback)} failed in {hook}{what}"
    try:
        getattr(callback, hook)(*arguments)
    except KmgpuError as error:
        raise type(error)(f"{where}: {error}") from error
    except Exception as error:
        traceback.print_exception(error)
        raise RunFailed(f"{where}: {type(error).__name__}: {error}") from error


def _refuse(name: str) -> Any:
    def refused(*arguments: Any, **options: Any) -> Any:
        why = "trains beside the loop" if name in OWN_LOOP else "this backend cannot do on several devices"
        raise UsageError(f"it calls model.{name}, which {why}; callbacks may predict, save, and set weights")

    return refused


def _is_backup(callback: Any) -> bool:
    return any(ancestor.__name__ == "BackupAndRestore" for ancestor in type(callback).__mro__)


def _name(callback: Any) -> str:
    return type(callback).__name__
