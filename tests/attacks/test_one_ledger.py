"""More than one budget for the same data: by another run, another search, another name, another ledger."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from incrowd.errors import (
    BudgetExceeded,
    DataError,
    LedgerMismatch,
    LedgerMisplaced,
)
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.ledgers import RunLedger, identities_of
from incrowd.runs.run import Run
from incrowd.runs.sweep import Sweep
from tests.attacks.shop import HEADER, config, ledger_of, place, rows, search, settings, spent, trained, write
from tests.command import Command

pytestmark = pytest.mark.usefixtures("one_thread")


# Again and again


def test_five_runs_on_one_table_share_one_budget(shop: Path, tmp_path: Path) -> None:
    first = trained(shop, tmp_path / "run-1")
    for number in range(2, 6):
        with pytest.raises(BudgetExceeded, match="the budget is 8, of which 8 is spent"):
            Run.create(config(shop), tmp_path / f"run-{number}")
        assert not (tmp_path / f"run-{number}").exists()
    assert spent(place(first)) <= 8


@pytest.mark.slow
def test_who_forgets_between_runs_spends_five_budgets(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a user with another state folder each time."""
    ledgers = []
    for number in range(5):
        monkeypatch.setenv("INCROWD_STATE", str(tmp_path / f"state-{number}"))
        ledgers.append(place(trained(shop, tmp_path / f"run-{number}")))
    assert spent(*ledgers) > 20


def test_on_the_command_line_the_second_run_is_refused_and_told_why(incrowd: Command, shop: Path) -> None:
    words = ("train", str(settings(shop)), "--json", "--yes")
    assert incrowd(*words, "--out", "one").status == 0
    refused = incrowd(*words, "--out", "two")
    assert refused.status == 3
    assert "incrowd ledger show" in refused.err
    (listed,) = incrowd("ledger", "list", "--json").object()["ledgers"]
    assert (listed["name"], listed["unit"], listed["budget"]) == (str(shop), "client", 8.0)
    assert 7.99 < listed["spent"] <= 8


@pytest.mark.slow
def test_smaller_runs_add_up_on_a_ledger_that_was_begun_for_them(incrowd: Command, shop: Path) -> None:
    named = ("--data-of", str(settings(shop)), "--epsilon", "8", "--delta", "1e-3", "--witness", "other/shop.witness")
    begun = incrowd("ledger", "new", *named, "--json").object()
    small = ("train", str(settings(shop)), "--set", "privacy.epsilon=3", "--json", "--yes")
    first = incrowd(*small, "--out", "one").object()
    assert first["epsilon"] <= 3
    assert incrowd(*small, "--out", "two").status == 0
    shown = incrowd("ledger", "show", begun["ledger"], "--json").object()
    assert 3 < shown["epsilon"] <= 8
    assert len(shown["reserved"]) == 2
    assert incrowd(*small, "--set", "privacy.epsilon=6", "--out", "three").status == 3
    assert incrowd(*small, "--set", "privacy.delta=1e-4", "--out", "four").status == 1
    assert incrowd("ledger", "verify", begun["ledger"]).status == 0
    assert Path(begun["witness"]) == Path("other/shop.witness").resolve()


@pytest.mark.slow
def test_a_search_twice_is_refused_and_a_run_after_it(shop: Path, tmp_path: Path) -> None:
    found = Sweep(search=search(shop), out=tmp_path / "first").run()
    assert found["statement"]["epsilon"] == found["epsilon_of_search"]
    again = search(shop)
    with pytest.raises(BudgetExceeded, match="is spent"):
        Sweep(search=again, out=tmp_path / "second").run()
    assert not (tmp_path / "second").exists()
    with pytest.raises(BudgetExceeded):
        Run.create(config(shop), tmp_path / "run")


# Data that changed under a run


def flipped(path: Path) -> None:
    write(path, HEADER, [[*row[:-1], str(1 - int(row[-1]))] for row in rows()])


def another(path: Path) -> None:
    write(path, HEADER, [[*row[:2], "9.5", *row[3:]] for row in rows()])


def regrouped(path: Path) -> None:
    write(path, HEADER, [["user-0" if row[3] == "1" else row[0], *row[1:]] for row in rows()])


@pytest.mark.parametrize("change", [flipped, another, regrouped])
def test_a_run_does_not_go_on_with_other_data_under_the_same_name(
    shop: Path, tmp_path: Path, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(config(shop), tmp_path / "run")
    change(shop)
    with ledger_of(run) as ledger:
        head = ledger.head
    with pytest.raises(DataError, match="are not those that this run began with"):
        Run.open(tmp_path / "run")
    with ledger_of(run) as ledger:
        assert ledger.head == head
    if change is flipped:  # another label of the same people, who pay for it from the same ledger
        assert place(Run.create(config(shop), tmp_path / "new")) == place(run)
    else:
        with pytest.raises(LedgerMismatch, match="their content has changed"):
            Run.create(config(shop), tmp_path / "new")
    monkeypatch.setattr(RunLedger, "check_same", lambda *_: None)
    assert Run.open(tmp_path / "run").train()["rounds"] == 2  # the control: who does not compare goes on


@pytest.mark.parametrize("public", ["true", "false"])
def test_a_run_does_not_go_on_with_examples_that_were_divided_anew(tmp_path: Path, public: str) -> None:
    from incrowd.runs.folder import Database
    from tests.runs.small import small

    Run.create(small(f"data.public={public}"), tmp_path / "run")
    database = Database(tmp_path / "run" / "run.sqlite")
    edited = database.settings
    edited["config"]["data"]["seed"] = 1
    database.write_settings(edited)
    database.close()
    with pytest.raises(DataError, match="seed 0"):
        Run.open(tmp_path / "run")
    if public == "false":
        with pytest.raises(LedgerMismatch, match="what makes up one unit"):
            Run.create(small("data.public=false", "data.seed=1"), tmp_path / "new")


def test_data_do_not_become_public_by_a_setting(shop: Path, tmp_path: Path) -> None:
    trained(shop, tmp_path / "run")
    with pytest.raises(LedgerMismatch, match=r"leave data\.public out"):
        Run.create(config(shop, "data.public=true"), tmp_path / "public")


def test_another_column_for_the_clients_is_another_promise(shop: Path, tmp_path: Path) -> None:
    trained(shop, tmp_path / "run", "privacy.epsilon=1")
    with pytest.raises(LedgerMismatch, match="one client for each user"):
        Run.create(config(shop, "data.client=visits", "data.clients=36", "data.features=['age']"), tmp_path / "other")


# The same data in another dress


def shuffled(path: Path) -> list[str]:
    write(path, HEADER, rows()[::-1])
    return []


def renamed(path: Path) -> list[str]:
    write(path, HEADER, rows())
    return []


def columns_dropped(path: Path) -> list[str]:
    write(path, HEADER, rows())
    return ['data.features=["age"]']


def columns_reordered(path: Path) -> list[str]:
    write(path, HEADER[::-1], [row[::-1] for row in rows()])
    return []


def spelt_otherwise(path: Path) -> list[str]:
    write(path, HEADER, [[row[0], f"{row[1]}.0", f"{row[2]}00", *row[3:]] for row in rows()])
    return []


def as_parquet(path: Path) -> list[str]:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = dict(zip(HEADER, [str, int, float, int, int], strict=True))
    columns = {name: [kind(row[HEADER.index(name)]) for row in rows()] for name, kind in kinds.items()}
    parquet.write_table(arrow.table(columns), path.with_suffix(".parquet"))
    return ["data.file=dress.parquet"]


def other_settings(path: Path) -> list[str]:
    write(path, HEADER, rows())
    return ["features.name=unit", "model.kind=mlp", "data.identity=a new name", "privacy.rounds=3"]


DRESSES = [shuffled, renamed, columns_dropped, columns_reordered, spelt_otherwise, as_parquet, other_settings]


@pytest.mark.parametrize("dress", DRESSES)
def test_the_same_data_in_another_dress_have_the_same_ledger(
    shop: Path, tmp_path: Path, dress: Callable[[Path], list[str]]
) -> None:
    first = trained(shop, tmp_path / "run")
    other = tmp_path / "other" / "dress.csv"
    other.parent.mkdir()
    overrides = dress(other)
    with pytest.raises(BudgetExceeded):
        Run.create(config(other, *overrides), tmp_path / "new")
    assert len(Home.of_user().ledgers()) == 1
    assert spent(place(first)) <= 8


def test_a_table_that_grew_is_refused_under_its_name_until_it_is_said_what_it_is(
    incrowd: Command, shop: Path, tmp_path: Path
) -> None:
    trained(shop, tmp_path / "run", "privacy.epsilon=3")
    write(shop, HEADER, [*rows(), ["user-99", "44", "0.5", "7", "1"]])
    assert incrowd("train", str(settings(shop)), "--out", "grown").status == 1
    before = Home.of_user().ledgers()[0]
    assert incrowd("ledger", "include", "--data-of", str(settings(shop))).status == 0
    assert incrowd("train", str(settings(shop)), "--set", "privacy.epsilon=9", "--out", "grown").status == 3
    (after,) = Home.of_user().ledgers()
    assert (after.id, len(after.fingerprints)) == (before.id, 2 * len(before.fingerprints))


def test_a_fingerprint_tells_nothing_without_the_key(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = identities_of(config(shop))[0].fingerprint
    assert identities_of(config(shop))[0].fingerprint == first
    monkeypatch.setenv("INCROWD_STATE", os.environ["INCROWD_STATE"] + "-other")
    assert identities_of(config(shop))[0].fingerprint != first


# What is in the hands of an operator


@pytest.mark.slow
def test_a_fresh_start_is_possible_and_says_so_for_good(
    incrowd: Command, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = place(trained(shop, tmp_path / "run"))
    unfinished = ("ledger", "fresh", str(shop), "--epsilon", "2", "--delta", "1e-3")
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "something else")
    assert incrowd(*unfinished).status == 2
    begun = incrowd(*unfinished, "--i-understand", "--json").object()
    with Ledger.read(begun["ledger"]) as ledger:
        (forgotten,) = ledger.forgets
        assert forgotten.epsilon == pytest.approx(8, rel=1e-3)
        assert ledger.budget == Budget(epsilon=2.0, delta=1e-3)
    assert place(trained(shop, tmp_path / "second", "privacy.epsilon=2")) == Path(begun["ledger"])
    with pytest.raises(LedgerMisplaced, match="closed by a deliberate fresh start"):
        Ledger.open(old)
    assert [row["retired"] for row in incrowd("ledger", "list", "--json").object()["ledgers"]] == [True, False]
