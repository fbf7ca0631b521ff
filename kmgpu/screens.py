"""What `kmgpu train` prints: lines, a live view in a terminal, JSON, or the result alone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kmgpu import records
from kmgpu.errors import UsageError
from kmgpu.follow import Sink, complaint, number


@dataclass(frozen=True)
class Screen:
    """Where lines for a person go, and the sinks that print records."""

    show: Callable[[str], None]
    sinks: Sequence[Sink] = ()


@contextlib.contextmanager
def choose(*, quiet: bool = False, as_json: bool = False, dry_run: bool = False) -> Iterator[Screen]:
    """Give the screen that was asked for; the live view where standard output is a terminal that can show it."""
    if quiet + as_json + dry_run > 1:
        raise UsageError("--quiet, --json and --dry-run exclude each other; choose one")
    console = None if quiet or as_json or dry_run else _terminal()
    if console is not None:
        from kmgpu import live

        with live.Screen(console) as view:
            yield Screen(view.show, [view])
    elif as_json:
        yield Screen(_ignore, [_print_record])
    elif quiet:
        yield Screen(_ignore, [_print_complaint])
    else:
        yield Screen(print_line)


def result_line(path: Path, outcome: dict[str, Any]) -> str:
    """Return what --quiet prints: the metrics of the last epoch, and where the run is."""
    metrics = outcome["history"][-1] if outcome["history"] else {}
    return "  ".join([*(f"{name} {number(value)}" for name, value in metrics.items()), f"in {path}"])


def print_line(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def _terminal() -> Any:
    """Return a rich console of standard output, or None where it cannot show what moves."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_interactive and console.encoding.startswith("utf") else None


def _print_record(record: dict[str, Any]) -> None:
    print_line(records.dumps(record))


def _print_complaint(record: dict[str, Any]) -> None:
    if record["event"] == "sink_failed":
        print(f"kmgpu: {complaint(record)}", file=sys.stderr)


def _ignore(line: str) -> None:
    pass
