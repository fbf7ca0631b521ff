"""The errors a user can meet, each with the exit code that the command line returns for it."""

from __future__ import annotations

import re
from typing import Any


class KmgpuError(Exception):
    """Something went wrong; the message says what came, what was expected and what to do."""

    exit_code = 1


class UsageError(KmgpuError):
    """An unknown recipe, setting, backend or strategy, or a combination that cannot work."""

    exit_code = 2


class MissingEnvironment(KmgpuError):
    """No interpreter with the framework of a backend, or too few devices."""

    exit_code = 3


class RunFailed(KmgpuError):
    """A process of a run stopped: which one, its exit code or signal, its last lines, its log."""

    exit_code = 1


class NotComparable(KmgpuError):
    """Runs that differ in more than what is compared; the message names the facts that differ."""

    exit_code = 4


class ParityFailed(KmgpuError):
    """Two cells did not compute the same mathematics."""

    exit_code = 5


class TimedOut(KmgpuError):
    """Something did not answer within its limit."""

    exit_code = 6


class OutOfMemory(KmgpuError):
    """A process ran out of host or device memory."""

    exit_code = 7


class Interrupted(KmgpuError):
    """The run was stopped by SIGINT (130) or SIGTERM (143)."""

    def __init__(self, message: str, signal_number: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number


BY_NAME = {
    error.__name__: error
    for error in (
        KmgpuError,
        UsageError,
        MissingEnvironment,
        RunFailed,
        NotComparable,
        ParityFailed,
        TimedOut,
        OutOfMemory,
    )
}  # how a worker's report of an error finds its class again


def nearest(word: Any, candidates: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest candidate, or an empty string."""
    import difflib

    close = difflib.get_close_matches(str(word), candidates, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def expect(name: str, value: Any, kinds: Any, words: str) -> None:
    """Raise UsageError unless a value is None or of one of these classes, which ``words`` describe."""
    if value is not None and not isinstance(value, kinds):
        raise UsageError(f"{name} is {value!r}; it is {words}")


def counted(number: int, noun: str) -> str:
    """Return ``1 epoch``, ``2 epochs`` or ``1,437 samples``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """Return the class of an exception and what it says in one line, though it may say pages."""
    said = essence(str(error))
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def essence(message: str) -> str:
    """Return the first line of a message; where it announces something, as Keras and TensorFlow do, with what that is.

    They say ``Exception encountered when calling Layer.call().``, perhaps half a page that ends with ``Error
    encountered:``, or ``Graph execution error:``, and then what it was.
    """
    said = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", message).splitlines() if line.strip()]
    if len(said) > 1 and _announces(said[0]):
        told = next((line for line in said[1:] if not _announces(line)), said[1])
        return f"{said[0].rstrip('.:')}: {told}"
    return said[0] if said else ""


def _announces(line: str) -> bool:
    return line.endswith(":") or line.startswith("Exception encountered when calling")
