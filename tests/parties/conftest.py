from pathlib import Path

import pytest

from tests.parties.parties import Made


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A party that has not been started."""
    return Made(tmp_path / "north")
