"""A worker process: runs the jobs of one or more run directories with one framework.

    python -P kmgpu/worker/__main__.py --process 0 --scratch DIR RUN [RUN ...]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def load_kmgpu() -> None:
    """Import the kmgpu that this file belongs to, also in an interpreter where it is not installed."""
    package = Path(__file__).resolve().parents[1]
    spec = importlib.util.spec_from_file_location(
        "kmgpu", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kmgpu"] = module
    spec.loader.exec_module(module)


def main() -> int:
    parser = argparse.ArgumentParser(prog="kmgpu.worker")
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--scratch", type=Path, required=True, help="a private directory on a local disk")
    parser.add_argument("runs", type=Path, nargs="+")
    arguments = parser.parse_args()
    if "kmgpu" not in sys.modules:
        load_kmgpu()
    from kmgpu.rundir import RunDir

    rundirs = [RunDir(path) for path in arguments.runs]
    current = rundirs[0]
    try:
        from kmgpu.worker import session, stock

        if current.job().mode == "fit":
            stock.fit(current)
            return 0
        with session.Session(arguments.process, arguments.scratch, [rundir.job() for rundir in rundirs]) as opened:
            for current in rundirs:
                opened.run(current)
    except BaseException as error:
        report(current, arguments.process, error)
        return 1
    return 0


def report(rundir: Any, process: int, error: BaseException) -> None:
    """Say in the run directory why this process stops, at once, before its peers notice."""
    from kmgpu.rundir import write_json
    from kmgpu.worker import failures, session

    kind = "OutOfMemory" if failures.is_out_of_memory(error) else type(error).__name__
    lost_peer = session.lost_peer(error)
    notes = list(getattr(error, "__notes__", ()))  # they say which row it was
    record = {
        "time": time.time(), "kind": kind, "message": str(error), "notes": notes, "where": where(rundir, error),
        "traceback": traceback.format_exc(),
    }  # fmt: skip
    rundir.path.mkdir(parents=True, exist_ok=True)  # a command line run by hand may name a new one
    write_json(rundir.error_file(process), record | {"secondary": lost_peer})
    traceback.print_exception(error)


def where(rundir: Any, error: BaseException) -> str | None:
    """Return the last line of the recipe's file that an error came through, or None."""
    with contextlib.suppress(Exception):  # no job yet
        recipe = Path(rundir.job().recipe)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(recipe)]
        return f"{recipe.name}, line {frames[-1].lineno}" if frames else None
    return None


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the frameworks' threads and atexit handlers take seconds, and can hang when a peer is gone
