"""Torch: Threefry as a C function, since operator after operator it takes several times as long.

The machine's C compiler makes it at first use, in less than a second; it is kept in the user's cache directory.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
ZEROS = 0x6B200159 ^ 0x99BA4EFE  # Random123's known answer for a key and a counter of zeros
KEY_AND_RANGE = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64)


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the functions of threefry.c, or None where they cannot be compiled."""
    source = Path(__file__).with_name("threefry.c")
    name = f"threefry-{platform.machine()}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    for folder in (_cache, tempfile.mkdtemp):  # the second where a home is not there or cannot be written
        try:
            path = Path(folder()) / name
            if not path.exists():
                _compile(source, path)
            return _checked(ctypes.CDLL(str(path)))
        except (OSError, RuntimeError, subprocess.SubprocessError):
            continue
    return None


def _cache() -> Path:
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "kmgpu"


def _compile(source: Path, path: Path) -> None:
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or COMPILERS[0], *COMPILERS))), None)
    if compiler is None:
        raise OSError("there is no C compiler")
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_suffix(f".{os.getpid()}")  # processes of one run may do this at the same time
    command = [compiler, "-O3", "-shared", "-fPIC", "-o", str(own), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    os.replace(own, path)


def _checked(found: ctypes.CDLL) -> ctypes.CDLL:
    """Return the functions with their types, once they give a published answer."""
    found.words.argtypes = (*KEY_AND_RANGE, ctypes.c_void_p)
    found.below.argtypes = (*KEY_AND_RANGE, ctypes.c_uint32, ctypes.c_void_p)
    found.pairs.argtypes = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_int64, ctypes.c_void_p)
    for function in (found.words, found.below, found.pairs):
        function.restype = None
    answer = ctypes.c_uint32()
    found.words(0, 0, 0, 1, ctypes.addressof(answer))
    if answer.value != ZEROS:
        raise OSError(f"the compiled generator gives {answer.value:#x} where {ZEROS:#x} is right")
    return found
