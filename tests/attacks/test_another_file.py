"""A user of the machine who puts another file in the place of a ledger or of a table: older, a copy, a link, a name.

Who turns a link while a run is being made has some data learned from and others recognised, and charged.
"""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from incrowd.data import Clients, load_mnist, reading
from incrowd.data.reading import read_once, read_rows
from incrowd.errors import BudgetExceeded, ConfigError, DataError, LedgerMismatch, LedgerMisplaced, LedgerRolledBack
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs import sources
from incrowd.runs.config import Config
from incrowd.runs.run import Run
from tests.attacks.shop import HEADER, config, place, rows, trained, write
from tests.privacy.ledgers import SMALL, begin
from tests.runs.small import load, write_mnist

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
    begin(tmp_path / "other").close()
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    begin(charged(tmp_path / "link")).close()  # the control: where nothing is missing


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


def turned(link: Path, target: Path) -> None:
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.replace(link)


def rows_of(path: Path) -> list[object]:
    return [cells for _, cells in read_rows(path).rows]


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Path, Path, Path]:
    private = write(tmp_path / "private.csv", HEADER, rows())
    others = [[*row[:1], str(place), *row[2:]] for place, row in enumerate(rows())]
    decoy = write(tmp_path / "decoy.csv", HEADER, others)
    link = tmp_path / "table.csv"
    link.symlink_to(private)
    return private, decoy, link


def test_what_is_learned_from_is_what_is_recognised(
    linked: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, decoy, link = linked
    trained(private, tmp_path / "first")
    load = Clients.from_table

    def load_and_turn(*args: object, **kwargs: object) -> object:
        found = load(*args, **kwargs)  # type: ignore[arg-type]  # passed on
        turned(link, decoy)
        return found

    monkeypatch.setattr(Clients, "from_table", load_and_turn)
    with pytest.raises(BudgetExceeded):
        Run.create(config(link, "data.identity=another"), tmp_path / "second")


def test_control_read_twice_a_file_is_what_it_was_turned_to(linked: tuple[Path, Path, Path]) -> None:
    private, decoy, link = linked
    before = rows_of(link)
    turned(link, decoy)
    assert rows_of(link) == rows_of(decoy) != before
    turned(link, private)
    with read_once():
        before = rows_of(link)
        turned(link, decoy)
        with read_once():
            assert rows_of(link) == before == rows_of(private)
        assert rows_of(link) == before
    assert rows_of(link) == rows_of(decoy)
    assert reading._READ.get() is None


def test_what_gives_other_bytes_each_time_is_no_table(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    with pytest.raises(DataError, match="no regular file"):
        read_rows(pipe)


def test_data_that_are_handed_in_are_not_charged_as_the_settings_data(
    linked: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    private, decoy, _ = linked
    with pytest.raises(ConfigError, match="which data a ledger is charged for is seen when they are loaded"):
        Run.create(config(decoy), tmp_path / "run", data=sources.federated_data(config(private)))


STEM = "train-images-idx3-ubyte"


def pictures(folder: Path, *overrides: str) -> Config:
    epsilon = ["privacy.epsilon=8.0", "privacy.delta=1e-3", "privacy.rounds=2"]
    own = ["data.name=mnist", "data.clients=12", "data.public=false", *epsilon]
    return load(data=folder, overrides=[*own, *overrides])


def a_link(folder: Path) -> None:
    """The file is a link, which is turned."""
    turned(folder / STEM, folder / "decoy")


def a_packed_file(folder: Path) -> None:
    """Beside the file there is now a packed one, which is looked for first."""
    (folder / f"{STEM}.gz").write_bytes(gzip.compress((folder / "decoy").read_bytes()))


def a_folder(folder: Path) -> None:
    """In the folder there is now one that is looked into first."""
    (folder / "mnist").mkdir()
    write_mnist(folder / "mnist")
    (folder / "mnist" / STEM).write_bytes((folder / "decoy").read_bytes())


@pytest.mark.parametrize("change", [None, a_link, a_packed_file, a_folder])
def test_pictures_that_are_learned_from_are_recognised(
    change: Callable[[Path], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    write_mnist(folder)
    private, link = folder / "private", folder / STEM
    link.rename(private)
    (folder / "decoy").write_bytes(private.read_bytes()[:-1] + b"\7")
    link.symlink_to(private)
    Run.create(pictures(folder), tmp_path / "first").train()
    left = [] if change is None else [change]

    def load_and_change(*args: object, **kwargs: object) -> object:
        found = load_mnist(*args, **kwargs)  # type: ignore[arg-type]  # passed on
        if left:
            left.pop()(folder)
        return found

    monkeypatch.setattr(sources, "load_mnist", load_and_change)
    with pytest.raises(BudgetExceeded):
        Run.create(pictures(folder, "data.identity=another"), tmp_path / "second")
    assert not left
