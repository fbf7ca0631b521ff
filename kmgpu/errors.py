"""The errors a user can meet, each with the exit code that the command line returns for it."""

from __future__ import annotations


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
        KmgpuError, UsageError, MissingEnvironment, RunFailed, NotComparable, ParityFailed, TimedOut, OutOfMemory,
    )
}  # how a worker's report of an error finds its class again


def nearest(word: str, candidates: list[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest candidate, or an empty string."""
    import difflib

    close = difflib.get_close_matches(word, candidates, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def counted(number: int, noun: str) -> str:
    """Return ``1 epoch``, ``2 epochs`` or ``1,437 samples``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """Return the class of an exception and the first line of what it says, which may be pages."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
