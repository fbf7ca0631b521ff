"""Fixtures of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import cells
import pytest
from measured import Measured


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was proved before says nothing here, and what is proved here stays here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> cells.Contract:
    """Cells that have run: ``ran(backend, name, devices)``; the first of a backend launches all of that backend."""
    return cells.Contract(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="session")
def measured() -> Iterator[Measured]:
    """Keeps what is measured of the features; KMGPU_MEASURED names a file for it, if it is set."""
    found = Measured()
    yield found
    if "KMGPU_MEASURED" in os.environ:
        Path(os.environ["KMGPU_MEASURED"]).write_text(found.as_json(), encoding="utf-8")
