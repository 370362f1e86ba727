"""A disk that is full, may not be written, or lost the run's folder: one line says so, and nothing is lost."""

import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.cli import app
from incrowd.cli._stopped import finished
from incrowd.errors import IncrowdError
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.run import Run
from tests.privacy.ledgers import quick_folder, start, status_of
from tests.runs.kills import Place, killed_in
from tests.runs.small import seeded

pytestmark = pytest.mark.usefixtures("one_thread")

NOBODY = 65534


@pytest.fixture(scope="module")
def whole() -> Iterator[bytes]:
    """The model of the run that nothing interrupts."""
    with quick_folder() as found:
        Run.create(seeded(), found).train()
        yield (found / "model.safetensors").read_bytes()


def half_done(folder: Path) -> Path:
    """A run that was cut off in its third round."""
    run = folder / "run"
    Run.create(seeded(), run)
    place = Place("privacy/ledger/ledger.py", "charge", "call", 3)
    assert status_of(start(lambda: killed_in(place, lambda: Run.open(run).train()))) != 0
    return run


def resumed(run: Path, *, first: Callable[[], object]) -> tuple[int, str]:
    """The exit status and the standard error of `incrowd resume` in a process of its own, where something is done
    `first`.
    """
    said = run.parent / "said"
    said.touch(mode=0o666)

    def work() -> None:
        descriptor = os.open(said, os.O_WRONLY | os.O_TRUNC)
        os.environ["INCROWD_STATE"] = str(run.parent / "state")
        sys.argv = ["incrowd", "resume", str(run)]
        first()
        sys.stderr = os.fdopen(descriptor, "w", buffering=1)
        os._exit(finished(app))

    status = status_of(start(work))
    return status, said.read_text()


def owned_by(user: int, folder: Path, *, files: int, folders: int) -> None:
    """Everything in a folder belongs to a user, and has these rights."""
    for path in (folder, *folder.rglob("*")):
        if os.getuid() == 0:
            os.chown(path, user, user)
        path.chmod(folders if path.is_dir() else files)


def become_nobody() -> None:
    """Whoever may do everything shall not."""
    if os.getuid() == 0:
        os.setuid(NOBODY)


def check_one_line(status: int, said: str) -> None:
    assert status in (1, 2)
    (line,) = [line for line in said.splitlines() if line.startswith("incrowd: ")]
    assert "Traceback" not in said
    assert said.splitlines()[-1] == line


def test_a_folder_that_may_not_be_written_is_one_line_and_the_run_goes_on_afterwards(
    folder: Path, whole: bytes
) -> None:
    run = half_done(folder)
    folder.chmod(0o755)
    user = NOBODY if os.getuid() == 0 else os.getuid()
    owned_by(user, run, files=0o400, folders=0o500)
    status, said = resumed(run, first=become_nobody)
    owned_by(os.getuid(), run, files=0o600, folders=0o700)
    check_one_line(status, said)
    assert str(run) in said
    Run.open(run).train()
    assert (run / "model.safetensors").read_bytes() == whole


@pytest.mark.parametrize("most", [1000, 4096, 20000])
def test_a_full_disk_is_one_line_and_the_run_goes_on_afterwards(folder: Path, whole: bytes, most: int) -> None:
    """No file may grow beyond so many bytes, which the system refuses as it refuses to fill a disk."""
    run = half_done(folder)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    status, said = resumed(run, first=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard)))
    check_one_line(status, said)
    Run.open(run).train()
    assert (run / "model.safetensors").read_bytes() == whole
    report = verify(run / "ledger.sqlite")
    assert report["intact"]
    assert report["events"] == 4


def test_a_folder_that_is_removed_in_the_middle_leaves_the_ledger_with_all_that_was_charged(folder: Path) -> None:
    run, ledger = folder / "run", folder / "mine.sqlite"

    class Remover:
        def start(self, settings: object, past: object) -> None:
            pass

        def round(self, record: object) -> None:
            shutil.rmtree(run, ignore_errors=True)

        def end(self, summary: object) -> None:
            pass

    begun = Run.create(seeded(f"privacy.ledger='{ledger}'"), run)
    with pytest.raises((IncrowdError, OSError)):
        begun.train([Remover()])
    report = verify(ledger)
    assert report["intact"]
    assert report["events"] in (1, 2)


def test_a_folder_that_is_gone_is_one_line(folder: Path) -> None:
    status, said = resumed(folder / "run", first=lambda: None)
    check_one_line(status, said)
    assert "there is no run" in said
