"""Real texts that every Python brings, and texts as numbers: words, characters, windows."""

from __future__ import annotations

import ast
import collections
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from kmgpu.data.datasets import check_split
from kmgpu.errors import MissingEnvironment

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
PADDING, UNKNOWN = 0, 1  # of a vocabulary


def python_docs(split: str) -> str:
    """Return the Python language reference as `help()` has it: 0.4 million characters; the last tenth is "test".

    Source: the module pydoc_data.topics of the running Python, so that the text depends on its version.
    """
    check_split("python_docs", split)
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise MissingEnvironment("this Python has no pydoc_data.topics; install its standard library whole") from error
    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    cut = len(text) * 9 // 10
    return text[cut:] if split == "test" else text[:cut]


def python_docstrings(split: str) -> tuple[list[str], np.ndarray]:
    """Return docstrings of Python's standard library, and which of ``PACKAGES`` each is from (int32).

    About 1,700 of at least 20 characters, each text once; "test" is every fifth. They depend on the Python version.
    """
    check_split("python_docstrings", split)
    library = Path(sysconfig.get_paths()["stdlib"])
    seen: dict[str, int] = {}
    for label, package in enumerate(PACKAGES):
        for path in sorted((library / package).rglob("*.py")):
            if not {"test", "tests", "__pycache__"} & set(path.relative_to(library).parts):
                for text in _docstrings(path):
                    seen.setdefault(text, label)
    if not seen:
        raise MissingEnvironment(f"{library} has no source files of Python's standard library; install them")
    rows = [index for index in range(len(seen)) if (index % 5 == 0) == (split == "test")]
    texts, labels = list(seen), list(seen.values())
    return [texts[row] for row in rows], np.array([labels[row] for row in rows], np.int32)


def words(text: str) -> list[str]:
    """Return lower-case words and single signs, in order."""
    return re.findall(r"[a-z]+|\d|[^\sa-z\d]", text.lower())


def vocabulary(tokens: Iterable[str], size: int) -> dict[str, int]:
    """Return a number for each of the most frequent tokens; 0 is padding and 1 is unknown."""
    counts = collections.Counter(tokens)
    frequent = sorted(counts, key=lambda token: (-counts[token], token))[: size - 2]
    return {token: number for number, token in enumerate(frequent, start=2)}


def encode(texts: Iterable[Sequence[str]], known: dict[str, int], length: int) -> np.ndarray:
    """Return (texts, length) int32: the numbers of each text's first tokens, padded with 0."""
    rows = [[known.get(token, UNKNOWN) for token in tokens[:length]] for tokens in texts]
    encoded = np.full((len(rows), length), PADDING, np.int32)
    for row, numbers in zip(encoded, rows, strict=True):
        row[: len(numbers)] = numbers
    return encoded


def _docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            if len(text) >= 20:
                yield text
