"""Raw records inside a report: the JSON of its studies, packed, so that a report is its own proof.

Weights, models and logs stay behind. Paths of this machine are shortened: a study's own to its name, the home directory
to ``~``, and one that is a field of its own (a recipe, an interpreter) to its last part.
"""

from __future__ import annotations

import base64
import io
import lzma
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

from kmgpu.errors import UsageError
from kmgpu.report.studies import Study

KEPT = (
    "study.json", "proof.json", "comparison.json", "recipe.py", "job.json", "environment.json", "events.jsonl",
    "monitor.jsonl", "outcome.json", "parity.json",
)  # fmt: skip
OPENING, CLOSING = '<script type="application/x-xz" id="records">', "</script>"
FIELD = re.compile(rb'(": ")/[^"\s]*/([^"/\s]*")')  # "recipe": "/somewhere/digits_cnn.py"
MOST = 2**30  # bytes that are unpacked at most


def pack(read: Sequence[Study]) -> str:
    """Return the records of studies as text: a tar file, xz, base64; the same for the same records."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, study in enumerate(read):
            for path in _files(study):
                text = _shortened(path.read_bytes(), study.path)
                inside = path.relative_to(study.path) if study.asked else Path(path.parent.name, path.name)
                entry = tarfile.TarInfo(f"{number:02d}/{study.name}/{inside}")
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text))
    return base64.encodebytes(lzma.compress(stream.getvalue(), preset=6)).decode()


def read(report: Path) -> str:
    """Return the packed records of a report; raises UsageError without any."""
    try:
        text = report.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{report} cannot be read as a report: {error}") from error
    packed = re.search(re.escape(OPENING) + r"(.*?)" + re.escape(CLOSING), text, re.DOTALL)
    if packed is None:
        raise UsageError(f"{report} holds no records: it is no report of kmgpu, or they were cut out")
    return packed[1]


def unpack(packed: str, into: Path) -> list[Path]:
    """Write packed records into a directory and return those of their studies; raises UsageError if damaged."""
    try:
        raw = lzma.LZMADecompressor().decompress(base64.b64decode(packed), MOST)
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            tar.extractall(into, filter="data")
    except (OSError, ValueError, lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise UsageError(f"the records of this report are damaged: {error}") from error
    into.mkdir(exist_ok=True)
    return [child for number in sorted(into.iterdir()) for child in sorted(number.iterdir())]


def _files(study: Study) -> list[Path]:
    """Return the records of a study, sorted; of single runs only those of these runs."""
    if not study.asked:  # single runs, from wherever
        return [run.path / name for run in study.runs for name in KEPT if (run.path / name).is_file()]
    patterns = [f"{depth}{name}" for name in KEPT for depth in ("", "*/", "*/*/")]
    found = {path for pattern in patterns for path in study.path.glob(pattern) if path.is_file()}
    beside = {"checkpoints", "evaluations", "predictions", "exports"}
    return sorted(path for path in found if not beside & set(path.relative_to(study.path).parts[:-1]))


def _shortened(raw: bytes, root: Path) -> bytes:
    """Return a text without the paths of this machine."""
    for place, word in ((str(root.resolve()), root.name), (str(Path.home()), "~")):
        if len(place) > 1:
            raw = raw.replace(place.encode(), word.encode())
    return FIELD.sub(rb"\1.../\2", raw)
