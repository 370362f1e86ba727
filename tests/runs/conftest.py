"""What the tests of runs share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.privacy.ledgers import quick_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a run, in memory where that is possible: a run waits for the disk several times a round."""
    with quick_folder() as found:
        yield found
