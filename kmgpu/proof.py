"""The proof that stands at the head of a comparison: a short parity check of the very cells that are timed.

What was proved of a cell is not proved again while recipe, settings, versions, machine and kmgpu itself are what they
were; where one cell is missing, all are compared anew. Proofs lie in the user's cache directory (XDG_CACHE_HOME, or
~/.cache), one small file each, and not beside the studies: what was proved does not depend on where a study is written,
and two studies at once need no lock. Only success is kept: who meets a failure wants its details, and a new attempt
after whatever was done about it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kmgpu import environment, proving, records
from kmgpu.errors import Interrupted, KmgpuError, MissingEnvironment, UsageError
from kmgpu.report import backing, matrix
from kmgpu.report.backing import Proof, skipped
from kmgpu.report.parity import Cell
from kmgpu.rundir import read_json, write_json

STEPS = 5  # enough for optimizer slots and moving statistics to count; each is compared by itself
DTYPE = "float32"


def prove(
    recipe: Path,
    *,
    backends: Sequence[str],
    devices: Sequence[int],
    out: Path,
    show: Callable[[str], None] = lambda line: None,
    **asked: Any,
) -> Proof:
    """Return the proof of a grid, from the cache or by a parity check into ``out``.

    ``asked`` are settings, batch_size, seed, python and device_kind, as ``kmgpu.proving.parity`` has them. What is
    wrong with the request itself is raised, as is an interruption; any other failure is a failed proof.
    """
    reference, *others = proving.grid(backends, devices)
    if not others:
        return skipped("there is one cell, and nothing to compare it with")
    names = keys(recipe, reference[0], others, **asked)
    known = [found for found in map(recall, names) if found is not None]
    if len(known) == len(names):
        when = min(found["when"] for found in known)
        show(f"same mathematics: proved on {when}, and nothing that it rests on has changed since")
        said = matrix.agreement(f"{reference[0]} on 1 device", STEPS, DTYPE, known)
        return Proof(True, f"Same mathematics proved: {said} (on {when}, for what is the same today).", {})
    show("first, whether all cells do the same mathematics (--no-parity leaves this out)")
    try:
        result = proving.parity(
            recipe, backends=backends, devices=devices, steps=STEPS, dtype=DTYPE, out=out, show=show, **asked
        )
    except (Interrupted, UsageError, MissingEnvironment):
        raise
    except KmgpuError as error:
        why = f"the reference cell of the parity check did not run: {str(error).splitlines()[0]}"
        cells = {(backend, count): why for backend in backends for count in devices}
        return Proof(False, f"Same mathematics: NOT PROVED; {why}.", cells)
    proof = backing.of_check(result)
    show(proof.sentence)
    for name, cell in zip(names, result.cells, strict=True):
        if cell.verdict.ok:
            remember(name, cell)
    return proof


def keys(
    recipe: Path, reference: str, cells: Sequence[tuple[str, int]], *, python: Mapping[str, str], **asked: Any
) -> list[str]:
    """Return for each cell a hash of all that its proof rests on: source texts, settings, versions, machine."""
    machine, package = environment.machine(), Path(__file__).parent
    backends = dict.fromkeys([reference, *(backend for backend, _ in cells)])
    interpreters = {backend: environment.interpreter(backend, python) for backend in backends}
    versions = {backend: [path, environment.versions(backend, path)] for backend, path in interpreters.items()}
    ground = {
        "asked": [asked, STEPS, DTYPE],
        "recipe": [_digest(path) for path in sources(recipe)],
        "kmgpu": [_digest(path) for path in sorted([*package.rglob("*.py"), *package.rglob("*.c")])],
        "machine": {name: machine[name] for name in ("os", "kernel", "cpu", "gpus", "gpu_driver", "variables")},
    }
    return [
        hashlib.sha256(
            records.dumps([ground, reference, versions[reference], backend, versions[backend], devices]).encode()
        ).hexdigest()
        for backend, devices in cells
    ]


def sources(recipe: Path) -> list[Path]:
    """Return the files that a recipe's file is made of: itself, and its neighbours that it imports, also indirectly."""
    found: list[Path] = []
    waiting = [recipe]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found.append(path)
        for name in _imported(path):
            single, package = recipe.parent / f"{name}.py", recipe.parent / name
            waiting += [single] if single.is_file() else sorted(package.rglob("*.py")) if package.is_dir() else []
    return found


def recall(name: str) -> Mapping[str, Any] | None:
    """Return what was remembered under a name, or None."""
    try:
        return read_json(_file(name))
    except (OSError, ValueError, RuntimeError):  # not there, or cut; RuntimeError: there is no home
        return None


def remember(name: str, cell: Cell) -> None:
    """Keep the proof of a cell; where that is not possible, it will be made again."""
    verdict = cell.verdict
    proof = {"largest": verdict.largest_of_a_step, "kinks": verdict.kinks, "noise": verdict.word == "noise"}
    try:
        _file(name).parent.mkdir(parents=True, exist_ok=True)
        write_json(_file(name), {"when": time.strftime("%Y-%m-%d %H:%M"), **proof})
    except (OSError, RuntimeError):
        return  # a home that is read-only, or that is not there


def _file(name: str) -> Path:
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "kmgpu" / "proofs" / f"{name}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _imported(path: Path) -> list[str]:
    """Return the top-level names that a file imports, wherever in it."""
    names: list[str] = []
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a neighbour that only the worker's Python understands, or none
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module.partition(".")[0])
    return list(dict.fromkeys(names))
