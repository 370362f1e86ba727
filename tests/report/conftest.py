"""Folders of each kind, made once for all tests of what is shown of them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.learning.execution import with_threads
from tests.privacy.ledgers import quick_folder
from tests.report.folders import KINDS

Made = Callable[[str], Path]


@pytest.fixture(scope="session")
def made() -> Iterator[Made]:
    """The folder of a kind, which no test changes."""
    with quick_folder() as place, with_threads(1):
        folders: dict[str, Path] = {}

        def make(kind: str) -> Path:
            if kind not in folders:
                folders[kind] = KINDS[kind](place / kind.replace(" ", "-"))
            return folders[kind]

        yield make


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where that is possible."""
    with quick_folder() as found:
        yield found
