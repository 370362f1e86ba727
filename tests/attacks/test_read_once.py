"""Who turns a link while a run is being made has some data learned from and others recognised, and charged."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from incrowd.data import Clients, load_mnist, reading
from incrowd.data.reading import read_once, read_rows
from incrowd.errors import BudgetExceeded, ConfigError, DataError
from incrowd.runs import sources
from incrowd.runs.config import Config, load
from incrowd.runs.run import Run
from tests.attacks import shop
from tests.runs.small import write_mnist


def turned(link: Path, target: Path) -> None:
    fresh = link.with_name("fresh")
    fresh.symlink_to(target)
    fresh.replace(link)


def rows_of(path: Path) -> list[object]:
    return [cells for _, cells in read_rows(path).rows]


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path, Path]:
    private = shop.write(tmp_path / "private.csv", shop.HEADER, shop.rows())
    others = [[*row[:1], str(place), *row[2:]] for place, row in enumerate(shop.rows())]
    decoy = shop.write(tmp_path / "decoy.csv", shop.HEADER, others)
    link = tmp_path / "table.csv"
    link.symlink_to(private)
    return private, decoy, link


def test_what_is_learned_from_is_what_is_recognised(
    tables: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, decoy, link = tables
    shop.trained(private, tmp_path / "first")
    load = Clients.from_table

    def load_and_turn(*args: object, **kwargs: object) -> object:
        found = load(*args, **kwargs)  # type: ignore[arg-type]  # passed on
        turned(link, decoy)
        return found

    monkeypatch.setattr(Clients, "from_table", load_and_turn)
    with pytest.raises(BudgetExceeded):
        Run.create(shop.config(link, "data.identity=another"), tmp_path / "second")


def test_control_read_twice_a_file_is_what_it_was_turned_to(tables: tuple[Path, Path, Path]) -> None:
    private, decoy, link = tables
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
    tables: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    private, decoy, _ = tables
    with pytest.raises(ConfigError, match="which data a ledger is charged for is seen when they are loaded"):
        Run.create(shop.config(decoy), tmp_path / "run", data=sources.federated_data(shop.config(private)))


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
