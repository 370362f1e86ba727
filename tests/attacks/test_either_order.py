"""Two budgets for the same people: first in public and then in private, or for another label, name or owner."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.errors import BudgetExceeded, LedgerMismatch
from incrowd.estimators import PrivateClassifier
from incrowd.runs.run import Run
from incrowd.runs.sweep import Sweep
from tests.attacks.shop import BY_USER, HEADER, Row, config, of_silos, rows, search, trained, write

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLIC = "data.public=true"
NAMED = "privacy.released_before=true"
FEATURES = "data.features=['age', 'spent', 'visits']"


def same(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, table


def reversed_(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, table[::-1]


def renamed(table: list[Row]) -> tuple[Row, list[Row]]:
    return ["user", *HEADER[1:]], [[f"patient {row[0]}", *row[1:]] for row in table]


def turned(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER[::-1], [row[::-1] for row in table]


def most(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, [[row[0], f"{row[1]}.5" if place < 6 else row[1], *row[2:]] for place, row in enumerate(table)]


COPIES: list[Callable[[list[Row]], tuple[Row, list[Row]]]] = [same, reversed_, renamed, turned, most]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("first", ["client", "record"])
def test_what_was_rehearsed_in_public_is_not_private_later(
    shop: Path, tmp_path: Path, copied: Callable[[list[Row]], tuple[Row, list[Row]]], first: str
) -> None:
    rehearsal = config(shop, PUBLIC) if first == "client" else of_silos(shop, PUBLIC, FEATURES, *BY_USER)
    Run.create(rehearsal, tmp_path / "rehearsal").train()
    copy = write(tmp_path / "copy" / "earnest.csv", *copied(rows()))
    with pytest.raises(LedgerMismatch, match=r"without privacy.*privacy\.released_before"):
        Run.create(config(copy), tmp_path / "earnest")
    with pytest.raises(LedgerMismatch, match="without privacy"):
        Run.create(of_silos(copy, FEATURES, *BY_USER), tmp_path / "silos")
    named = trained(copy, tmp_path / "named", NAMED)
    assert "released without privacy" in (named.folder / "statement.txt").read_text()


@pytest.mark.parametrize("copied", COPIES)
def test_what_is_private_is_not_public_later(
    shop: Path, tmp_path: Path, copied: Callable[[list[Row]], tuple[Row, list[Row]]]
) -> None:
    trained(shop, tmp_path / "first")
    copy = write(tmp_path / "copy" / "open.csv", *copied(rows()))
    for second in (config(copy, PUBLIC), of_silos(copy, PUBLIC, FEATURES, *BY_USER)):
        with pytest.raises(LedgerMismatch, match="are declared public"):
            Run.create(second, tmp_path / "second")


def test_control_people_of_another_shop_were_never_public(shop: Path, tmp_path: Path) -> None:
    Run.create(config(shop, PUBLIC), tmp_path / "rehearsal").train()
    others = write(tmp_path / "other" / "other.csv", HEADER, [[row[0], f"{row[1]}.5", *row[2:]] for row in rows()])
    run = trained(others, tmp_path / "earnest")
    assert "without privacy" not in (run.folder / "statement.txt").read_text()
    Run.create(config(shop, PUBLIC), tmp_path / "again").train()  # nor does the trace cost those who are public


def test_a_search_in_public_leaves_its_trace(shop: Path, tmp_path: Path) -> None:
    write(shop.with_name("test.csv"), HEADER, [["not", "1", "2", "3", "1"]])
    public = search(shop)
    public = replace(public, overrides=(*public.overrides, PUBLIC))
    Sweep(search=public, out=tmp_path / "search").run()
    with pytest.raises(LedgerMismatch, match="without privacy"):
        Run.create(config(shop), tmp_path / "earnest")


def test_who_was_measured_in_public_does_not_train_in_private_later(shop: Path, tmp_path: Path) -> None:
    write(shop.with_name("test.csv"), HEADER, [[f"other {row[0]}", f"{row[1]}.5", *row[2:]] for row in rows()])
    trained(shop, tmp_path / "first", "data.test_file=test.csv")
    with pytest.raises(LedgerMismatch, match="without privacy"):
        Run.create(config(shop.with_name("test.csv")), tmp_path / "second")


X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
Z = (X[:, 1] > 0).astype(np.int64)
OWNER = np.arange(60) % 12


def fit(folder: Path, data: incrowd.Clients, **private: Any) -> None:
    privacy = incrowd.Private(**{"epsilon": 3, "delta": 1e-3, "rounds": 2} | private)
    run = incrowd.RunOptions(threads=1)
    module = nn.Linear(data.examples.shape[0], data.examples.classes or 1)
    incrowd.Federation(module, data, privacy=privacy, run=run).train(folder, progress=False)


def clients(x: Any = X, y: Any = Y, owner: Any = OWNER, **stated: Any) -> incrowd.Clients:
    terms: dict[str, Any] = {"classes": 2, "name": "visits", "clients": 12}
    return incrowd.Clients.from_arrays(x, y, owner=owner, **terms | stated)


def test_another_target_is_paid_from_the_same_ledger(tmp_path: Path) -> None:
    fit(tmp_path / "first", clients())
    for name in ("visits", "others"):
        with pytest.raises(BudgetExceeded):
            fit(tmp_path / "second", clients(y=Z, name=name))


def test_control_a_ledger_with_room_pays_for_both_targets(tmp_path: Path) -> None:
    fit(tmp_path / "first", clients(), room=4.0)
    fit(tmp_path / "second", clients(y=Z, name="others"))
    assert "other runs on the same data" in (tmp_path / "second" / "statement.txt").read_text()


@pytest.mark.parametrize(
    "again",
    [
        {"owner": np.arange(60), "clients": 60},
        {"x": X[:50], "owner": OWNER[:50], "y": Z[:50]},
        {"x": np.column_stack([X[:, :2], Y]).astype(np.float32), "y": X[:, 2], "classes": None},
        {"x": X[:, ::-1].copy()},
    ],
    ids=["other owners", "most of them", "target and column changed places", "columns in another order"],
)
def test_the_same_rows_otherwise_are_refused_and_it_is_said_whose_they_are(
    tmp_path: Path, again: dict[str, Any]
) -> None:
    data = clients(**again | {"name": "others"})
    fit(tmp_path / "first", clients())
    with pytest.raises(LedgerMismatch, match="'visits'"):
        fit(tmp_path / "second", data)


def test_control_other_people_have_a_budget_of_their_own(tmp_path: Path) -> None:
    fit(tmp_path / "first", clients())
    fit(tmp_path / "second", clients(x=X + 1, name="others"))
    dice = np.random.default_rng(2)
    for name in ("few", "few others"):  # whose rows are equal by chance
        fit(tmp_path / name, clients(x=dice.integers(0, 2, (60, 3)).astype(np.float32), name=name))


def test_what_was_fitted_in_public_is_not_private_later(tmp_path: Path) -> None:
    PrivateClassifier(public=True, rounds=1, delta=1e-3).fit(X, Y)
    stated: dict[str, Any] = {"delta": 1e-3, "rounds": 1, "clients": 60, "ranges": (-4, 4), "classes": [0, 1]}
    with pytest.raises(LedgerMismatch, match="without privacy"):
        fit(tmp_path / "earnest", clients())
    with pytest.raises(LedgerMismatch, match="without privacy"):
        PrivateClassifier(name="x", **stated).fit(X, Y)
    named = PrivateClassifier(name="x", released_before=True, **stated).fit(X, Y)
    assert "released without privacy" in named.statement_
