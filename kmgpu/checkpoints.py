"""Checkpoints as files: where they are, whether they are whole, and which is the last (docs/run-directory.md).

A checkpoint is a directory RUN/checkpoints/step-00000123 with tensors.safetensors and manifest.json. It is written
under another name and renamed when all of it is on the disk; so what has the right name was once complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.errors import UsageError

FORMAT = 1  # version of manifest.json and of the names in tensors.safetensors
TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"
_NAME = re.compile(r"step-(\d{8,})")
_EVERY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_COUNTED = ("steps", "epochs")
_SECONDS = {"s": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_SMALLER = ("loss", "error", "mse", "mae", "rmse", "perplexity", "crossentropy", "divergence")
_LARGER = ("acc", "accuracy", "precision", "recall", "auc", "f1", "score", "iou", "dice", "r2", "positives")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that is whole, and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def position(self) -> dict[str, Any]:
        return self.manifest["position"]


def folder(run: Path) -> Path:
    return run / "checkpoints"


def name(updates: int) -> str:
    """Return the name of the checkpoint after so many updates of the run."""
    return f"step-{updates:08d}"


def listed(run: Path) -> list[Path]:
    """Return the checkpoints of a run, whole or damaged, the last one at the end."""
    places = folder(run)
    found = [path for path in places.iterdir() if _NAME.fullmatch(path.name)] if places.is_dir() else []
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def find(path: Path) -> tuple[Checkpoint, list[str]]:
    """Return the last whole checkpoint of a run, or the one that ``path`` names, and a sentence for each one skipped.

    Only a run's last checkpoints are skipped if they are damaged; one that is named is refused. Raises UsageError.
    """
    if _NAME.fullmatch(path.resolve().name):
        return read(path.resolve()), []
    if not (path / "job.json").is_file():
        raise UsageError(f"{path} is neither a run nor a checkpoint; name a run's directory, or a checkpoint in it")
    skipped: list[str] = []
    for candidate in reversed(listed(path)):
        try:
            return read(candidate), skipped
        except UsageError as error:
            skipped.append(str(error))
    if skipped:
        raise UsageError(f"{path} has no whole checkpoint: {'; '.join(skipped)}")
    raise UsageError(f"{path} has no checkpoint; train with --checkpoint-every, or stop a run with Ctrl-C to get one")


def named(run: Path, words: str) -> Checkpoint:
    """Return a run's checkpoint: ``last``, ``best``, its name, or the number of its step. Raises UsageError."""
    if words == "last":
        return find(run)[0]
    known = [path.name for path in listed(run)]
    wanted = (folder(run) / "best").resolve().name if words == "best" else words
    wanted = name(int(wanted)) if wanted.isdecimal() else wanted
    if wanted in known:
        return read(folder(run) / wanted)
    there = f"it has {', '.join(known)}" if known else "it has none"
    if words == "best":
        raise UsageError(f"{run} keeps no best checkpoint (--keep-best does); {there}")
    raise UsageError(f"{run} has no checkpoint {words!r}; give last, best or a name; {there}")


def read(path: Path) -> Checkpoint:
    """Return a checkpoint whose files are what was written; raises UsageError with what is wrong with it."""
    manifest = read_manifest(path)
    for file_name, expected in manifest["files"].items():
        try:
            size = (path / file_name).stat().st_size
        except OSError:
            raise UsageError(f"{path} is damaged: it has no {file_name}") from None
        if size != expected["bytes"]:
            raise UsageError(f"{path} is damaged: {file_name} has {size:,} bytes, {expected['bytes']:,} were written")
        if file_digest(path / file_name) != expected["sha256"]:
            raise UsageError(f"{path} is damaged: {file_name} is not what was written (its SHA-256 differs)")
    return Checkpoint(path, manifest)


def read_manifest(path: Path) -> dict[str, Any]:
    """Return what a checkpoint's manifest says; raises UsageError with what is wrong with it."""
    try:
        whole = records.loads((path / MANIFEST).read_text(encoding="utf-8"))
        claimed, said = whole.pop("sha256"), whole["format"]
    except OSError as error:
        raise UsageError(f"{path} is no whole checkpoint: {MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} is damaged or foreign: {MANIFEST} is not that of a checkpoint") from None
    if said != FORMAT:
        raise UsageError(f"{path} has checkpoint format {said!r}, this kmgpu reads {FORMAT}")
    if digest(whole) != claimed:
        raise UsageError(f"{path} is damaged: {MANIFEST} is not what was written (its SHA-256 differs)")
    return whole


def digest(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest without its own."""
    return hashlib.sha256(records.dumps(manifest).encode()).hexdigest()


def file_digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def building(run: Path, called: str) -> Iterator[Path]:
    """Give a directory to fill; it gets its name when it and all in it are on the disk, and is removed on an error."""
    final = folder(run) / called
    neighbour = final.with_name(f".{called}.writing")
    shutil.rmtree(neighbour, ignore_errors=True)
    neighbour.mkdir(parents=True)
    try:
        yield neighbour
        for file in neighbour.iterdir():
            _sync(file)
        _sync(neighbour)
        if final.exists():  # of a stream the last update is known to be that only when the epoch has ended
            remove(final)
        neighbour.rename(final)
        _sync(final.parent)
    except BaseException:
        shutil.rmtree(neighbour, ignore_errors=True)
        raise


def mark_best(run: Path, called: str) -> None:
    """Let RUN/checkpoints/best be this one."""
    link = folder(run) / ".best"
    link.unlink(missing_ok=True)
    link.symlink_to(called)
    link.replace(folder(run) / "best")


def retain(run: Path, keep: int) -> None:
    """Remove all but the last ``keep`` checkpoints and the best one."""
    best_one = (folder(run) / "best").resolve().name
    for path in listed(run)[:-keep]:
        if path.name != best_one:
            remove(path)


def remove(path: Path) -> None:
    """Remove a checkpoint; a kill meanwhile leaves nothing that looks like one."""
    neighbour = path.with_name(f".{path.name}.removing")
    path.rename(neighbour)
    shutil.rmtree(neighbour)


def clean(run: Path) -> list[str]:
    """Remove what a killed run has left half-written, and return its names."""
    places = folder(run)
    left = [path for path in places.iterdir() if path.suffix in (".writing", ".removing")] if places.is_dir() else []
    for path in left:
        shutil.rmtree(path)
    return sorted(path.name for path in left)


@contextlib.contextmanager
def held(run: Path) -> Iterator[bool]:
    """Hold a run while it trains or is cleaned; false if another process holds it.

    Released by the kernel when a process dies. Where the file system has no locks, nobody is kept out.
    """
    descriptor = os.open(run / "job.json", os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
    finally:
        os.close(descriptor)


def every(words: str) -> dict[str, float]:
    """Return how often to write a checkpoint, as {"steps" or "epochs" or "seconds": number}; raises UsageError."""
    match = _EVERY.fullmatch(words.strip().lower())
    number, unit = (float(match.group(1)), match.group(2)) if match is not None else (0.0, "")
    seconds = _SECONDS.get(unit) or _SECONDS.get(unit.removesuffix("s"))
    counted = next((name for name in _COUNTED if unit in (name, name.removesuffix("s"))), None)
    if number > 0 and seconds is not None:
        return {"seconds": number * seconds}
    if number > 0 and counted is not None and number == int(number):
        return {counted: int(number)}
    raise UsageError(
        f"--checkpoint-every is {words!r}; it is a number and a unit, such as 500steps, 1epoch, 10min or 2h; or never"
    )


def best(words: str) -> dict[str, str]:
    """Return {"metric", "mode"} of ``val_accuracy`` or ``val_score:max``; raises UsageError for a name without mode."""
    metric, _, mode = words.partition(":")
    if not mode:
        parts = set(metric.lower().split("_"))
        mode = "min" if parts & set(_SMALLER) else "max" if parts & set(_LARGER) else ""
    if mode not in ("min", "max") or not metric:
        raise UsageError(f"--keep-best is {words!r}; say which is best: {metric or 'METRIC'}:min or {metric}:max")
    return {"metric": metric, "mode": mode}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
