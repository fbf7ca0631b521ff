"""Fixtures of all tests."""

from __future__ import annotations

import cells
import pytest


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> cells.Contract:
    """Cells that have run: ``ran(backend, name, devices)``; the first of a backend launches all of that backend."""
    return cells.Contract(tmp_path_factory.mktemp("contract"))
