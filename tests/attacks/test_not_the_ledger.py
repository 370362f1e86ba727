"""Another file in the place of a ledger: none, an older one, a copy, a second name, one that others may write."""

import os
import shutil
from pathlib import Path

import pytest

from incrowd.errors import (
    BudgetExceeded,
    LedgerMismatch,
    LedgerMisplaced,
    LedgerRolledBack,
)
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.run import Run
from tests.attacks.shop import config, place, trained
from tests.privacy.ledgers import SMALL, begin

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_ledger_that_is_deleted_with_its_witness_is_missed(shop: Path, tmp_path: Path) -> None:
    ledger = place(trained(shop, tmp_path / "run"))
    witness = ledger.with_name(f"{ledger.name}.witness")
    kept = ledger.read_bytes(), witness.read_bytes()
    ledger.unlink()
    with pytest.raises(LedgerRolledBack, match="gone or empty"):
        Run.create(config(shop), tmp_path / "second")
    witness.unlink()
    with pytest.raises(LedgerRolledBack, match=r"gone or empty.*incrowd ledger fresh"):
        Run.create(config(shop), tmp_path / "second")
    ledger.write_bytes(kept[0])
    witness.write_bytes(kept[1])
    with pytest.raises(BudgetExceeded):
        Run.create(config(shop), tmp_path / "second")


def test_a_ledger_that_is_put_back_with_its_witness_is_noticed(shop: Path, tmp_path: Path) -> None:
    run = Run.create(config(shop), tmp_path / "run")
    shutil.copytree(place(run).parent, tmp_path / "kept")
    run.train()
    for file in (tmp_path / "kept").iterdir():
        shutil.copy(file, place(run).parent)
    with pytest.raises(LedgerRolledBack, match=r"registry\.sqlite saw 4"):
        Run.create(config(shop), tmp_path / "second")


def test_without_a_registry_neither_is_noticed(tmp_path: Path) -> None:
    """The control: a ledger that nobody registered."""
    begin(tmp_path / "ledger").close()
    shutil.copytree(tmp_path, tmp_path / "kept")
    with begin(tmp_path / "ledger") as ledger:
        ledger.charge(SMALL)
    for name in ("ledger", "ledger.witness"):
        shutil.copy(tmp_path / "kept" / name, tmp_path / name)
    begin(tmp_path / "ledger").close()
    for name in ("ledger", "ledger.witness"):
        (tmp_path / name).unlink()
    begin(tmp_path / "ledger").close()


def charged(path: Path) -> Path:
    with begin(path) as ledger:
        ledger.charge(SMALL)
    return path


def test_a_symbolic_link_to_a_copy_does_not_avoid_the_witness(tmp_path: Path) -> None:
    begin(tmp_path / "ledger").close()
    shutil.copy(tmp_path / "ledger", tmp_path / "copy")  # nothing is spent there, and it has no witness
    charged(tmp_path / "ledger").unlink()
    (tmp_path / "ledger").symlink_to(tmp_path / "copy")
    begin(tmp_path / "copy").close()  # the control: under its own name nothing is known of it
    for leads in (tmp_path / "ledger", tmp_path / "link"):
        with pytest.raises(LedgerRolledBack, match=r"ledger\.witness saw 2"):
            begin(leads)
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / "ledger")


def test_a_symbolic_link_is_fine_where_nothing_is_missing(tmp_path: Path) -> None:
    charged(tmp_path / "ledger")
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    with begin(tmp_path / "link") as ledger:
        ledger.charge(SMALL)
    with begin(tmp_path / "ledger") as ledger:
        assert ledger.charges()[0] == 2


def test_a_second_name_for_the_file_is_refused(tmp_path: Path) -> None:
    charged(tmp_path / "ledger")
    (tmp_path / "other").hardlink_to(tmp_path / "ledger")
    for path in (tmp_path / "ledger", tmp_path / "other"):
        with pytest.raises(LedgerMisplaced, match="2 names"):
            begin(path)
    (tmp_path / "other").unlink()
    begin(tmp_path / "ledger").close()


def test_a_copy_of_a_registered_ledger_is_not_charged(shop: Path, tmp_path: Path) -> None:
    run = Run.create(config(shop), tmp_path / "run")
    copy = tmp_path / "copy.sqlite"
    shutil.copy(place(run), copy)
    for opened in (Ledger.open, Ledger.read):
        with pytest.raises(LedgerMisplaced, match="is a copy of the ledger at"):
            opened(copy)
    with pytest.raises(LedgerMismatch, match="name that one"):
        Run.create(config(shop, f"privacy.ledger='{copy}'"), tmp_path / "second")
    with pytest.raises(LedgerMismatch, match="incrowd ledger move"):
        Run.create(config(shop, f"privacy.ledger='{tmp_path / 'new.sqlite'}'"), tmp_path / "second")


def test_a_ledger_that_others_may_write_is_refused(tmp_path: Path) -> None:
    charged(tmp_path / "ledger")
    for name in ("ledger", "ledger.witness"):
        (tmp_path / name).chmod(0o620)
        with pytest.raises(LedgerMisplaced, match="chmod go-w"):
            begin(tmp_path / "ledger")
        (tmp_path / name).chmod(0o600)
    begin(tmp_path / "ledger").close()


def test_whatever_the_umask_ledgers_are_for_their_user_alone(shop: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        trained(shop, tmp_path / "run")
    finally:
        os.umask(before)
    for path in Path(os.environ["INCROWD_STATE"]).rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
