"""A disk that is full, may not be written, or lost the run's folder: one line says so, and nothing is lost."""

import shutil
from pathlib import Path

import pytest

from incrowd.errors import IncrowdError
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.run import Run
from tests.runs.small import seeded

pytestmark = pytest.mark.usefixtures("one_thread")


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
