"""What the tests of the reproductions share."""

import os
from pathlib import Path

import pytest

from incrowd.data import Split
from papers.shared import load
from tests.command import Command, command
from tests.papers.small import write_set


@pytest.fixture
def reproduce(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`incrowd reproduce`, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return command(monkeypatch, capsys, "reproduce")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a small set in MNIST's format, in mnist/."""
    found = tmp_path_factory.mktemp("data")
    write_set(found / "mnist")
    return found


@pytest.fixture(scope="session")
def split(folder: Path) -> Split:
    return load(folder)


@pytest.fixture(scope="session")
def mnist() -> Split:
    """The real thing, where there is one."""
    found = os.environ.get("INCROWD_DATA")
    if found is None:
        pytest.skip("INCROWD_DATA does not name a folder that holds MNIST")
    return load(Path(found))
