"""A table that was learned from by the settings of a file, once more from Python: it has one ledger, and one budget."""

from pathlib import Path

import pytest
from torch import nn

import incrowd
from incrowd.data import Columns
from incrowd.errors import BudgetExceeded, LedgerMismatch
from tests.attacks import shop

pytestmark = pytest.mark.usefixtures("one_thread")


def again(path: Path, folder: Path, *, public: bool = False, identity: str | None = None) -> None:
    table = incrowd.Table(
        file=str(path), client="user", label="bought", classes=2, clients=13, public=public, identity=identity
    )
    promise = incrowd.Private(epsilon=8, delta=1e-3, rounds=2)
    run = incrowd.RunOptions(threads=1)
    incrowd.Federation(nn.Linear(3, 2), table, privacy=promise, run=run).train(folder, progress=False)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return shop.write(tmp_path / "shop.csv", shop.HEADER, shop.rows())


def test_what_the_command_line_spent_python_cannot_spend_again(table: Path, tmp_path: Path) -> None:
    shop.trained(table, tmp_path / "first")
    with pytest.raises(BudgetExceeded):
        again(table, tmp_path / "second")
    copy = shop.write(tmp_path / "copy.csv", shop.HEADER, shop.rows()[::-1])
    with pytest.raises(BudgetExceeded):
        again(copy, tmp_path / "third", identity="another")
    with pytest.raises(LedgerMismatch, match="have a ledger as private data"):
        again(copy, tmp_path / "fourth", public=True)


def as_frame(rows: list[shop.Row], folder: Path, *features: str, public: bool = False) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows, columns=shop.HEADER).astype({"age": int, "spent": float, "visits": int})
    columns = Columns(client="user", label="bought", classes=2, features=features)
    data = incrowd.Clients.from_table(frame, columns=columns, name=folder.name, clients=13, public=public)
    promise = incrowd.Private(epsilon=8, delta=1e-3, rounds=2)
    run = incrowd.RunOptions(threads=1)
    federation = incrowd.Federation(nn.Linear(len(features), 2), data, privacy=promise, run=run)
    federation.train(folder, progress=False)


@pytest.mark.parametrize("first", ["file", "frame"])
def test_a_data_frame_of_the_same_rows_has_the_same_ledger(table: Path, tmp_path: Path, first: str) -> None:
    """Whatever it is called, however its rows are ordered, and whichever of its columns are learned from."""
    if first == "file":
        shop.trained(table, tmp_path / "first")
    else:
        as_frame(shop.rows(), tmp_path / "first", "age")
    with pytest.raises(BudgetExceeded):
        as_frame(shop.rows(), tmp_path / "second", "age", "spent", "visits")
    with pytest.raises(BudgetExceeded):
        as_frame(shop.rows()[::-1], tmp_path / "third", "visits", "age")
    with pytest.raises(LedgerMismatch, match="have a ledger as private data"):
        as_frame(shop.rows(), tmp_path / "fourth", "age", public=True)
    with pytest.raises(BudgetExceeded):
        again(table, tmp_path / "fifth")


def test_a_frame_whose_values_are_missing_is_known_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [[*row[:1], "" if place % 5 == 0 else row[1], *row[2:]] for place, row in enumerate(shop.rows())]
    path = shop.write(tmp_path / "shop.csv", shop.HEADER, rows)
    shop.trained(path, tmp_path / "first", "data.features=['spent', 'visits']")
    for kind, frame in enumerate((pandas.read_csv(path), pandas.read_csv(path, dtype={"age": "Int64"}))):
        columns = Columns(client="user", label="bought", classes=2, features=("visits",))
        data = incrowd.Clients.from_table(frame, columns=columns, name=f"other {kind}", clients=13)
        promise = incrowd.Private(epsilon=8, delta=1e-3, rounds=2)
        with pytest.raises(BudgetExceeded):
            incrowd.Federation(nn.Linear(1, 2), data, privacy=promise).start(tmp_path / f"second {kind}")


def test_control_other_rows_in_a_frame_have_their_own(table: Path, tmp_path: Path) -> None:
    shop.trained(table, tmp_path / "first")
    others = [[*row[:1], str(place), *row[2:]] for place, row in enumerate(shop.rows())]
    as_frame(others, tmp_path / "second", "age")
