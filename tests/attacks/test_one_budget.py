"""An operator who wants more than one budget for the same people: by another run, search, name, label, door or order.

First in public and then in private, by the command line and then from Python, as a table and then as a data frame.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd as library
from incrowd.data import Columns
from incrowd.errors import BudgetExceeded, DataError, LedgerMismatch
from incrowd.estimators import PrivateClassifier
from incrowd.privacy.ledger.home import Home
from incrowd.runs.build import featured
from incrowd.runs.folder import Database
from incrowd.runs.ledgers import RunLedger
from incrowd.runs.run import Run
from incrowd.runs.sources import federated_data
from incrowd.runs.sweep import Sweep
from tests.attacks.shop import (
    BY_USER,
    HEADER,
    Row,
    config,
    ledger_of,
    of_silos,
    place,
    rows,
    search,
    settings,
    spent,
    trained,
    write,
)
from tests.command import Command
from tests.runs.small import silos_of, small

pytestmark = pytest.mark.usefixtures("one_thread")

Copy = Callable[[list[Row]], tuple[Row, list[Row]]]


# Again and again


def test_five_runs_on_one_table_share_one_budget(incrowd: Command, shop: Path, tmp_path: Path) -> None:
    words = ("train", str(settings(shop)), "--json", "--yes")
    assert incrowd(*words, "--out", "one").status == 0
    for number in range(2, 5):
        with pytest.raises(BudgetExceeded, match="the budget is 8, of which 8 is spent"):
            Run.create(config(shop), tmp_path / f"run-{number}")
        assert not (tmp_path / f"run-{number}").exists()
    refused = incrowd(*words, "--out", "two")
    assert (refused.status, "incrowd ledger show" in refused.err) == (3, True)
    (listed,) = incrowd("ledger", "list", "--json").object()["ledgers"]
    assert (listed["name"], listed["unit"], listed["budget"]) == (str(shop), "client", 8.0)
    assert 7.99 < listed["spent"] <= 8


@pytest.mark.slow
def test_control_who_forgets_between_runs_spends_three_budgets(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with another state folder each time."""
    ledgers = []
    for number in range(3):
        monkeypatch.setenv("INCROWD_STATE", str(tmp_path / f"state-{number}"))
        ledgers.append(place(trained(shop, tmp_path / f"run-{number}")))
    assert spent(*ledgers) > 14


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


# Data that changed under a run, or were divided otherwise


def flipped(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, [[*row[:-1], str(1 - int(row[-1]))] for row in table]


def another(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, [[*row[:2], "9.5", *row[3:]] for row in table]


def regrouped(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, [["user-0" if row[3] == "1" else row[0], *row[1:]] for row in table]


@pytest.mark.parametrize("change", [flipped, another, regrouped])
def test_a_run_does_not_go_on_with_other_data_under_the_same_name(
    shop: Path, tmp_path: Path, change: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(config(shop), tmp_path / "run")
    write(shop, *change(rows()))
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


def test_another_column_for_the_clients_is_another_promise(shop: Path, tmp_path: Path) -> None:
    trained(shop, tmp_path / "run", "privacy.epsilon=1")
    with pytest.raises(LedgerMismatch, match="one client for each user"):
        Run.create(config(shop, "data.client=visits", "data.clients=36", "data.features=['age']"), tmp_path / "other")


BY_HALF = ("data.client=half", "data.clients=2", "privacy.records=18", "data.identity=another name")


@pytest.mark.slow
@pytest.mark.parametrize("careless", [False, True], ids=["", "control"])
def test_records_that_are_divided_among_silos_anew_get_no_second_budget(
    careless: bool, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(shop, [*HEADER, "half"], [[*row, str(number % 2)] for number, row in enumerate(rows())])
    first = Run.create(of_silos(shop, *BY_USER), tmp_path / "first")
    assert len(Home.of_user().ledgers()) == 12
    if not careless:
        with pytest.raises(LedgerMismatch, match="one silo for each user"):
            Run.create(of_silos(shop, *BY_HALF), tmp_path / "second")
        return
    for check in ("_check_undivided", "_check_key", "_check_new", "_update_registry", "check_public"):
        monkeypatch.setattr(Home, check, lambda *_, **__: None)
    second = Run.create(of_silos(shop, *BY_HALF), tmp_path / "second")
    for run in (first, second):
        run.train()
        assert all(spent(ledger.path) > 1.9 for ledger in silos_of(run).ledgers if ledger.path is not None)


# The same data in another dress


def same(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, table


def reversed_(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, table[::-1]


def turned(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER[::-1], [row[::-1] for row in table]


def respelt(age: str, spent: str = "{}") -> Copy:
    return lambda table: (HEADER, [[row[0], age.format(row[1]), spent.format(row[2]), *row[3:]] for row in table])


def as_parquet(path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    kinds = dict(zip(HEADER, [str, int, float, int, int], strict=True))
    columns = {name: [kind(row[HEADER.index(name)]) for row in rows()] for name, kind in kinds.items()}
    pytest.importorskip("pyarrow.parquet").write_table(arrow.table(columns), path.with_suffix(".parquet"))


def with_commas(path: Path) -> None:
    path.write_text(path.read_text().replace(",", ";").replace(".", ","))


def as_it_is(_: Path) -> None: ...


OTHERS = ["features.name=unit", "model.kind=mlp", "data.identity=a new name", "privacy.rounds=3"]
DRESSES: dict[str, tuple[Copy, Callable[[Path], None], list[str]]] = {
    "another file": (same, as_it_is, []),
    "another order": (reversed_, as_it_is, []),
    "fewer columns": (same, as_it_is, ['data.features=["age"]']),
    "columns in another order": (turned, as_it_is, []),
    "zeros at the end": (respelt("{}.0", "{}00"), as_it_is, []),
    "digits that no model sees": (respelt("{}.0000000001"), as_it_is, []),
    "digits that no float has": (respelt("{}.00000000000000000001"), as_it_is, []),
    "parquet": (same, as_parquet, ["data.file=dress.parquet"]),
    "semicolons and decimal commas": (same, with_commas, ["data.delimiter=';'", "data.decimal=','"]),
    "other settings": (same, as_it_is, OTHERS),
}


@pytest.mark.parametrize("dress", DRESSES)
def test_the_same_data_in_another_dress_have_the_same_ledger(shop: Path, tmp_path: Path, dress: str) -> None:
    first = trained(shop, tmp_path / "run")
    copy, written, overrides = DRESSES[dress]
    other = write(tmp_path / "other" / "dress.csv", *copy(rows()))
    written(other)
    with pytest.raises(BudgetExceeded):
        Run.create(config(other, *overrides), tmp_path / "new")
    assert len(Home.of_user().ledgers()) == 1
    assert spent(place(first)) <= 8


def test_control_digits_that_a_model_sees_make_other_data(shop: Path, tmp_path: Path) -> None:
    first = place(trained(shop, tmp_path / "first"))
    other = write(tmp_path / "other" / "other.csv", *respelt("{}.5")(rows()))
    assert spent(first, place(trained(other, tmp_path / "second"))) > 10


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


# By another door


def learn(data: "library.Clients | library.Table", folder: Path, *, inputs: int = 3, **private: Any) -> None:
    promise = library.Private(**{"epsilon": 8, "delta": 1e-3, "rounds": 2} | private)
    run = library.RunOptions(threads=1)
    library.Federation(nn.Linear(inputs, 2), data, privacy=promise, run=run).train(folder, progress=False)


def as_table(path: Path, folder: Path, *, public: bool = False, identity: str | None = None) -> None:
    meaning: dict[str, Any] = {"client": "user", "label": "bought", "classes": 2, "clients": 13}
    learn(library.Table(file=str(path), public=public, identity=identity, **meaning), folder)


def as_frame(table: list[Row], folder: Path, *features: str, public: bool = False) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(table, columns=HEADER).astype({"age": int, "spent": float, "visits": int})
    columns = Columns(client="user", label="bought", classes=2, features=features)
    data = library.Clients.from_table(frame, columns=columns, name=folder.name, clients=13, public=public)
    learn(data, folder, inputs=len(features))


@pytest.mark.parametrize("first", ["file", "frame"])
def test_what_was_spent_by_one_door_cannot_be_spent_by_another(shop: Path, tmp_path: Path, first: str) -> None:
    """Whatever it is called, however its rows are ordered, and whichever of its columns are learned from."""
    if first == "file":
        trained(shop, tmp_path / "first")
    else:
        as_frame(rows(), tmp_path / "first", "age")
    copy, folder = write(tmp_path / "copy.csv", *reversed_(rows())), tmp_path / "second"
    spent_already: list[Callable[[], None]] = [
        lambda: as_frame(rows(), folder, "age", "spent", "visits"),
        lambda: as_frame(rows()[::-1], folder, "visits", "age"),
        lambda: as_table(shop, folder),
        lambda: as_table(copy, folder, identity="another"),
    ]
    for again in spent_already:
        with pytest.raises(BudgetExceeded):
            again()
    with pytest.raises(LedgerMismatch, match="have a ledger as private data"):
        as_frame(rows(), folder, "age", public=True)
    with pytest.raises(LedgerMismatch, match="have a ledger as private data"):
        as_table(copy, folder, public=True)
    others = [[*row[:1], str(number), *row[2:]] for number, row in enumerate(rows())]
    as_frame(others, tmp_path / "others", "age")  # the control: other rows have their own


def test_a_frame_whose_values_are_missing_is_known_too(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = [[*row[:1], "" if number % 5 == 0 else row[1], *row[2:]] for number, row in enumerate(rows())]
    path = write(tmp_path / "shop.csv", HEADER, table)
    trained(path, tmp_path / "first", "data.features=['spent', 'visits']")
    for kind, frame in enumerate((pandas.read_csv(path), pandas.read_csv(path, dtype={"age": "Int64"}))):
        columns = Columns(client="user", label="bought", classes=2, features=("visits",))
        data = library.Clients.from_table(frame, columns=columns, name=f"other {kind}", clients=13)
        with pytest.raises(BudgetExceeded):
            learn(data, tmp_path / f"second {kind}", inputs=1)


# In either order


PUBLIC, NAMED = "data.public=true", "privacy.released_before=true"
FEATURES = "data.features=['age', 'spent', 'visits']"


def renamed(table: list[Row]) -> tuple[Row, list[Row]]:
    return ["user", *HEADER[1:]], [[f"patient {row[0]}", *row[1:]] for row in table]


def most(table: list[Row]) -> tuple[Row, list[Row]]:
    return HEADER, [[row[0], f"{row[1]}.5" if number < 6 else row[1], *row[2:]] for number, row in enumerate(table)]


COPIES: list[Copy] = [same, reversed_, renamed, turned, most]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("first", ["client", "record"])
def test_what_was_rehearsed_in_public_is_not_private_later(
    shop: Path, tmp_path: Path, copied: Copy, first: str
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
@pytest.mark.parametrize("first", ["client", "record"])
def test_what_is_private_is_not_public_later(shop: Path, tmp_path: Path, copied: Copy, first: str) -> None:
    private = config(shop) if first == "client" else of_silos(shop, FEATURES, *BY_USER)
    Run.create(private, tmp_path / "first")
    copy = write(tmp_path / "copy" / "open.csv", *copied(rows()))
    for second in (config(copy, PUBLIC), of_silos(copy, PUBLIC, FEATURES, *BY_USER)):
        with pytest.raises(LedgerMismatch, match="are declared public"):
            Run.create(second, tmp_path / "second")
    with pytest.raises(LedgerMismatch, match=r"leave data\.public out"):
        Run.create(config(shop, PUBLIC), tmp_path / "third")


def test_control_people_of_another_shop_were_never_public(shop: Path, tmp_path: Path) -> None:
    Run.create(config(shop, PUBLIC), tmp_path / "rehearsal").train()
    others = write(tmp_path / "other" / "other.csv", *respelt("{}.5")(rows()))
    run = trained(others, tmp_path / "earnest")
    assert "without privacy" not in (run.folder / "statement.txt").read_text()
    Run.create(config(shop, PUBLIC), tmp_path / "again").train()  # nor does the trace cost those who are public


def test_a_search_in_public_leaves_its_trace(shop: Path, tmp_path: Path) -> None:
    write(shop.with_name("test.csv"), HEADER, [["not", "1", "2", "3", "1"]])
    public = search(shop)
    Sweep(search=replace(public, overrides=(*public.overrides, PUBLIC)), out=tmp_path / "search").run()
    with pytest.raises(LedgerMismatch, match="without privacy"):
        Run.create(config(shop), tmp_path / "earnest")


def test_who_was_measured_in_public_does_not_train_in_private_later(shop: Path, tmp_path: Path) -> None:
    write(shop.with_name("test.csv"), *respelt("{}.5")([[f"other {row[0]}", *row[1:]] for row in rows()]))
    trained(shop, tmp_path / "first", "data.test_file=test.csv")
    with pytest.raises(LedgerMismatch, match="without privacy"):
        Run.create(config(shop.with_name("test.csv")), tmp_path / "second")


X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
Z = (X[:, 1] > 0).astype(np.int64)
OWNER = np.arange(60) % 12


def fit(folder: Path, data: "library.Clients", **private: Any) -> None:
    privacy = library.Private(**{"epsilon": 3, "delta": 1e-3, "rounds": 2} | private)
    module = nn.Linear(data.examples.shape[0], data.examples.classes or 1)
    run = library.RunOptions(threads=1)
    library.Federation(module, data, privacy=privacy, run=run).train(folder, progress=False)


def clients(x: Any = X, y: Any = Y, owner: Any = OWNER, **stated: Any) -> "library.Clients":
    terms: dict[str, Any] = {"classes": 2, "name": "visits", "clients": 12}
    return library.Clients.from_arrays(x, y, owner=owner, **terms | stated)


def test_another_target_is_paid_from_the_same_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path / "first", clients())
    for name in ("visits", "others"):
        with pytest.raises(BudgetExceeded):
            fit(tmp_path / "second", clients(y=Z, name=name))
    monkeypatch.setenv("INCROWD_STATE", str(tmp_path / "state"))  # the control: a ledger with room pays for both
    fit(tmp_path / "third", clients(), room=4.0)
    fit(tmp_path / "fourth", clients(y=Z, name="others"))
    assert "other runs on the same data" in (tmp_path / "fourth" / "statement.txt").read_text()


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
