"""What the attacks attack: the federation, the folders, the parties and the table that several of them use."""

from pathlib import Path

import pytest

from tests.algorithms.conftest import data
from tests.attacks.shop import HEADER, rows, write
from tests.command import Command, command
from tests.parties.conftest import made
from tests.parties.members import Hospitals
from tests.runs.conftest import folder

__all__ = ["data", "folder", "hospitals", "incrowd", "made", "shop"]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return write(tmp_path / "data" / "shop.csv", HEADER, rows())


@pytest.fixture
def hospitals(tmp_path: Path) -> Hospitals:
    return Hospitals(tmp_path)


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys)
