"""What the operating system refuses is one line and exit status 1, and nothing that was paid for is lost."""

import errno
import json
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path

import pytest
import typer

from incrowd.cli._main import finished
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.folder import LEDGER
from incrowd.runs.run import Run
from tests.command import Command, command

SMALL = "[data]\nclients = 5\n[privacy]\nepsilon = 3.0\ndelta = 1e-3\nrounds = 3\n[run]\n"


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """The command line, in a folder with the settings of a small run."""
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL)
    return command(monkeypatch, capsys)


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """As on a full disk, no file grows beyond this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 3_000, 9_000, 13_000, 17_000])
def test_a_full_disk_is_one_line_and_the_run_goes_on(incrowd: Command, size: int) -> None:
    with files_of_at_most(size):
        stopped = incrowd("train", "small.toml", "--out", "run")
    assert stopped.status == 1
    told = stopped.err.splitlines()
    assert told[-1].startswith("incrowd: ")
    assert "Traceback" not in stopped.err
    assert not any(line.startswith("incrowd: ") for line in told[:-1])
    again = incrowd("resume", "run")
    if again.status != 0:
        assert "nothing was spent" in again.err or "there is no run" in again.err
        shutil.rmtree("run", ignore_errors=True)
        assert incrowd("train", "small.toml", "--out", "run").status == 0
    with Ledger.read(Path("run", LEDGER)) as ledger:
        assert ledger.charges()[0] == 3


def test_a_run_that_meets_a_full_disk_in_its_rounds_loses_nothing_it_paid_for(incrowd: Command, tmp_path: Path) -> None:
    """The folder is ready, so that it is the rounds that cannot be written."""
    from incrowd.runs.config import parse, tables

    Run.create(parse(tables(tmp_path / "small.toml")), tmp_path / "run")
    with files_of_at_most(2_000):
        stopped = incrowd("resume", "run")
    assert stopped.status == 1
    assert stopped.err.splitlines()[-1].startswith("incrowd: ")
    again = incrowd("resume", "run", "--json")
    assert again.status == 0
    assert again.object()["epsilon"] <= 3
    assert json.loads(Path("run", "summary.json").read_text())["rounds"] + again.object()["rounds_lost"] == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_may_not_be_written_is_one_line(incrowd: Command, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    refused = incrowd("train", "small.toml", "--out", "closed/run")
    assert (refused.status, refused.err.count("\n")) == (1, 1)
    assert "Permission denied" in refused.err


def app_that_raises(error: BaseException) -> typer.Typer:
    found = typer.Typer()

    @found.command()
    def fail() -> None:
        raise error

    return found


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/data/run/x"), "/data/run/x: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "/srv"), "/srv: Permission denied"),
        (OSError("the pipe\nis gone"), "the pipe is gone"),
    ],
)
def test_what_the_system_refuses_names_the_file(
    error: OSError, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["incrowd"])
    assert finished(app_that_raises(error)) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"incrowd: {told}; nothing that was paid for is lost")
    assert said.count("\n") == 1


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["incrowd"])
    with pytest.raises(ZeroDivisionError):
        finished(app_that_raises(ZeroDivisionError()))


def test_a_system_without_locks_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = util.find_spec
    monkeypatch.setattr("incrowd._lazy.find_spec", lambda name: None if name == "fcntl" else find(name))
    assert finished(app_that_raises(AssertionError())) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"incrowd: platform = {sys.platform!r}: files cannot be locked here (no fcntl): use Linux")
