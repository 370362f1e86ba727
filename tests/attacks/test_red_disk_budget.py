"""One more run than the ledger allows: with data divided anew, an older registry, no key, a private test set."""

import json
from pathlib import Path

import pytest

from incrowd.errors import BudgetExceeded, LedgerMismatch
from incrowd.privacy.ledger.home import Home
from incrowd.runs.build import featured
from incrowd.runs.config import Config, parse, tables
from incrowd.runs.run import Run
from incrowd.runs.sources import federated_data
from tests.attacks.shop import (
    BY_USER,
    HEADER,
    config,
    ledger_of,
    of_silos,
    place,
    rows,
    settings,
    spent,
    trained,
    write,
)
from tests.command import Command
from tests.runs.small import silos_of

pytestmark = pytest.mark.usefixtures("one_thread")

BY_HALF = ("data.client=half", "data.clients=2", "privacy.records=18", "data.identity=another name")
PUBLIC = ("data.public=true", "data.identity=another name")


@pytest.fixture
def halves(shop: Path) -> Path:
    """The shop with a second column that divides it: halves of 18."""
    return write(shop, [*HEADER, "half"], [[*row, str(place % 2)] for place, row in enumerate(rows())])


@pytest.mark.slow
def test_records_that_are_divided_among_silos_anew_get_no_second_budget(halves: Path, tmp_path: Path) -> None:
    Run.create(of_silos(halves, *BY_USER), tmp_path / "first").train()
    with pytest.raises(LedgerMismatch, match="one silo for each user"):
        Run.create(of_silos(halves, *BY_HALF), tmp_path / "second")
    assert len(Home.of_user().ledgers()) == 12


def test_examples_that_are_dealt_to_silos_anew_get_no_second_budget(tmp_path: Path) -> None:
    def partitioned(*overrides: str) -> Config:
        private = ("data={name='digits',clients=2,public=false}", "privacy={unit='record',epsilon=1,delta=1e-5}")
        more = ("privacy.rounds=1", "privacy.records=750", *overrides)
        return parse(tables(settings(tmp_path / "unused.csv"), overrides=(*private, *more)))

    Run.create(partitioned(), tmp_path / "first")
    with pytest.raises(LedgerMismatch, match="seed 0"):
        Run.create(partitioned("data.seed=1", "data.identity=another name"), tmp_path / "second")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["client", "record"])
def test_data_do_not_become_public_by_protecting_another_unit(shop: Path, tmp_path: Path, first: str) -> None:
    if first == "client":
        trained(shop, tmp_path / "first")
        with pytest.raises(LedgerMismatch, match=r"leave data\.public out"):
            Run.create(of_silos(shop, *BY_USER, *PUBLIC), tmp_path / "second")
    else:
        Run.create(of_silos(shop, *BY_USER), tmp_path / "first").train()
        with pytest.raises(LedgerMismatch, match=r"leave data\.public out"):
            Run.create(config(shop, *PUBLIC), tmp_path / "second")


@pytest.mark.parametrize("spelling", ["{}.0000000001", "{}.00000000000000000001"])
def test_digits_that_no_model_sees_do_not_make_other_data(shop: Path, tmp_path: Path, spelling: str) -> None:
    trained(shop, tmp_path / "first")
    respelt = [[row[0], spelling.format(row[1]), *row[2:]] for row in rows()]
    write(tmp_path / "other" / "respelt.csv", HEADER, respelt)
    with pytest.raises(BudgetExceeded):
        Run.create(config(tmp_path / "other" / "respelt.csv"), tmp_path / "second")


# The controls: with any of the checks left out, there is one more run


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    for check in ("_check_undivided", "_check_key", "_check_new", "_update_registry"):
        monkeypatch.setattr(Home, check, lambda *_, **__: None)
    monkeypatch.setattr(Home, "check_public", lambda *_: None)


@pytest.mark.slow
@pytest.mark.usefixtures("careless")
def test_control_data_divided_anew_are_paid_for_twice(halves: Path, tmp_path: Path) -> None:
    first = Run.create(of_silos(halves, *BY_USER), tmp_path / "first")
    second = Run.create(of_silos(halves, *BY_HALF), tmp_path / "second")
    for run in (first, second):
        run.train()
        assert all(spent(ledger.path) > 1.9 for ledger in silos_of(run).ledgers if ledger.path is not None)


def test_control_digits_that_a_model_sees_make_other_data(shop: Path, tmp_path: Path) -> None:
    first = place(trained(shop, tmp_path / "first"))
    other = write(tmp_path / "other" / "other.csv", HEADER, [[row[0], f"{row[1]}.5", *row[2:]] for row in rows()])
    assert spent(first, place(trained(other, tmp_path / "second"))) > 10


# What is handed on


@pytest.mark.slow
def test_what_is_handed_on_does_not_say_where_the_data_are(shop: Path, tmp_path: Path, incrowd: Command) -> None:
    trained(shop, tmp_path / "run")
    Run.create(of_silos(shop, *BY_USER, "data.identity=silos"), tmp_path / "silos").train()
    for name in ("run", "silos"):
        assert incrowd("export", name, f"{name}-shown").status == 0
        texts = [path.read_bytes() for path in (tmp_path / f"{name}-shown").rglob("*") if path.is_file()]
        assert not [text for text in texts if str(tmp_path).encode() in text]
    shown = json.loads((tmp_path / "run-shown" / "ledger.json").read_text())
    assert shown["data"] == "shop.csv"


def test_control_the_ledger_names_the_data_by_their_path(shop: Path, tmp_path: Path) -> None:
    with ledger_of(trained(shop, tmp_path / "run")) as ledger:
        assert str(tmp_path) in ledger.data_identity.name


def test_the_name_of_kept_features_confirms_no_guess(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A co-worker who may list the folder knows all rows but one, and tries out what that one is."""

    def names(table: Path) -> set[str]:
        folder = tmp_path / "open" / table.stem
        folder.mkdir(parents=True)
        featured(wanted := config(table, "features.name=unit", f"features.cache='{folder}'"), federated_data(wanted))
        return {path.name for path in folder.iterdir()}

    seen = names(shop)
    right = write(tmp_path / "guess" / "right.csv", HEADER, rows())
    wrong = write(tmp_path / "guess" / "wrong.csv", HEADER, [["user-0", "99", *rows()[0][2:]], *rows()[1:]])
    assert seen == names(right) != names(wrong)  # the control: with the key the guess is confirmed
    monkeypatch.setenv("INCROWD_STATE", str(tmp_path / "of the co-worker"))
    assert seen.isdisjoint(names(right.rename(right.with_stem("again"))))
