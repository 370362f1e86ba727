"""Fixtures for the tests of the ledger."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd.privacy.ledger.ledger import Ledger
from tests.privacy.ledgers import begin, in_memory, quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder


@pytest.fixture
def path(folder: Path) -> Path:
    """Where a ledger may be begun."""
    return folder / "run.ledger"


@pytest.fixture(params=["file", "memory"])
def ledger(request: pytest.FixtureRequest, path: Path) -> Iterator[Ledger]:
    with begin(path) if request.param == "file" else in_memory() as ledger:
        yield ledger
