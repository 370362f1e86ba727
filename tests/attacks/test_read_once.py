"""Who turns a link while a run is being made has one table learned from and another one recognised, and charged."""

import os
from pathlib import Path

import pytest

from incrowd.data import _rows
from incrowd.data import tables as tables_of
from incrowd.data._rows import read_once, read_rows
from incrowd.errors import BudgetExceeded, ConfigError, DataError
from incrowd.runs import build
from incrowd.runs.run import Run
from tests.attacks import shop


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
    load = tables_of.load_table

    def load_and_turn(*args: object, **kwargs: object) -> object:
        found = load(*args, **kwargs)  # type: ignore[arg-type]  # passed on
        turned(link, decoy)
        return found

    monkeypatch.setattr(build, "load_table", load_and_turn)
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
    assert _rows._READ.get() is None


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
        Run.create(shop.config(decoy), tmp_path / "run", data=build.federated_data(shop.config(private)))
