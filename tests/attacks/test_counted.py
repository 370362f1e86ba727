"""A reader of what a run leaves, or says when it starts: what is counted from private data tells who is in them.

Two data sets that differ by one record (or client) are trained under the same settings; whoever compares all that a run
leaves behind, but for the noise, must see no difference. Whether a run starts is seen by everybody: it may not tell
whether anybody has an example of the last class, nor what a table's schema was looked up in.
"""

import json
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd import Local
from incrowd._random import Integers, SeededRandomness
from incrowd.data import Clients, Columns, Partition, columns_of, read_table
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, MeanQuery, linear
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun
from incrowd.runs.config import Config, parse
from incrowd.runs.data_config import DigitsData
from incrowd.runs.run import Run
from incrowd.runs.work import assemble, assemble_silos
from tests.algorithms.conftest import CLASSES, FEATURES

pytestmark = pytest.mark.usefixtures("one_thread")


Tables = dict[str, Any]
RUN = {"randomness": "seeded", "seed": 7}
QUERY = MeanQuery(name="label", size=1, vector=lambda own: own.labels.float().mean()[None])


def table(folder: Path, clients: int, each: int) -> Tables:
    """A private table of so many clients of so many examples."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(3)
    rows = [f"{who:03d},{x:.3f},{y}" for who in range(clients) for x, y in _examples(generator, each)]
    (folder / "table.csv").write_text("\n".join(["who,x,y", *rows]) + "\n")
    return {"name": "table", "folder": str(folder), "file": "table.csv", "client": "who", "label": "y", "classes": 2}


def _examples(generator: np.random.Generator, count: int) -> list[tuple[float, int]]:
    labels = generator.integers(0, 2, count)
    return [(float(label + generator.normal()), int(label)) for label in labels]


def of_silos(data: Tables, **privacy: Any) -> Config:
    terms = {"unit": "record", "epsilon": 4.0, "delta": 1e-3, "rounds": 2} | privacy
    return parse({"data": data | {"clients": 2}, "privacy": terms, "run": RUN})


def of_clients(data: Tables, **privacy: Any) -> Config:
    terms = {"epsilon": 4.0, "delta": 1e-3, "rounds": 2, "sampling": "poisson", "cohort": 5.0} | privacy
    return parse({"data": data, "privacy": terms, "run": RUN, "local": {"batch_size": 4}})


NOISED = {"accuracy", "loss", "seconds", "clients_per_second", "client_updates_per_second", "run", "label", "plot"}


def seen(folder: Path) -> list[Any]:
    """All that a run leaves behind and that is not noised, timed, or a name."""
    found: list[Any] = [json.loads((folder / "summary.json").read_text()), (folder / "statement.txt").read_text()]
    with closing(sqlite3.connect(folder / "run.sqlite")) as database:
        database.row_factory = sqlite3.Row
        names = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()]
        rows = [row for name in names for row in database.execute(f"SELECT * FROM {name}").fetchall()]  # noqa: S608 - its own names
        found += [{key: _parsed(cell) for key, cell in dict(row).items()} for row in rows if not {*row} & NOISED]
    return [_without(item, NOISED | {"folder", "simulation"}) for item in found]


def _parsed(cell: Any) -> Any:
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        return cell


def _without(item: Any, names: Collection[str]) -> Any:
    if isinstance(item, dict):
        return {key: _without(value, names) for key, value in item.items() if key not in names}
    return [_without(value, names) for value in item] if isinstance(item, list) else item


@pytest.mark.parametrize("public", [False, True], ids=["", "control"])
def test_silos_with_a_record_more_or_less_leave_the_same_behind(
    public: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Declared public, a table is counted, and the statement says how many records it has."""
    left = []
    for each in (46, 47):
        monkeypatch.setenv("INCROWD_STATE", str(folder / f"state-{each}"))  # two worlds, which differ by a record
        data = table(folder / str(each), 2, each) | ({"public": True} if public else {})
        run = Run.create(of_silos(data, **({} if public else {"records": 50})), folder / f"run-{each}")
        run.train()
        left.append(seen(run.folder))
    assert (left[0] == left[1]) is not public
    assert f"{46 if public else 50} records" in left[0][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"sampling": "fixed"},
        {"sampling": "everyone", "cohort": None},
        {"sampling": "everyone", "cohort": None, "noise": "correlated", "groups": 2},
        {"clip": {"kind": "quantile", "bit_noise": 9.0}},
    ],
    ids=["poisson", "fixed", "everyone", "correlated", "quantile"],
)
def test_a_client_more_or_less_leaves_the_same_behind(
    folder: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = []
    for clients in (18, 19):
        monkeypatch.setenv("INCROWD_STATE", str(folder / f"state-{clients}"))  # two worlds, which differ by a client
        data = table(folder / str(clients), clients, 5) | {"clients": 20}
        run = Run.create(of_clients(data, **how), folder / f"run-{clients}")
        assert run.train()["clients"] == 20
        # A quantile follows what was released with noise, and so do the bound and the noise of a later round.
        followed = ("clip_norm", "noise_std") if "clip" in how else ()
        left.append([_without(item, followed) for item in seen(run.folder)])
    assert str(left[0]) == str(left[1])


REFUSED: list[tuple[Callable[[Tables], object], str]] = [
    (of_clients, r"data\.clients = None: how many clients private data have is never counted"),
    (lambda data: assemble(of_clients(data | {"clients": 49})), r"data\.clients = 49: .* fewer or more"),
    (lambda data: assemble(of_clients(data | {"clients": 60})), r"data\.clients = 60: .* fewer or more"),
    (lambda data: assemble(of_clients(data | {"clients": 0})), r"data\.clients = 0"),
    (lambda data: assemble_silos(of_silos(data)), r"data\.clients = 2: .* fewer or more"),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_a_number_of_clients_that_is_not_declared_or_does_not_fit_is_refused_without_one(
    folder: Path, attempt: Callable[[Tables], object], message: str
) -> None:
    data = table(folder / "data", 50, 1)
    with pytest.raises(ConfigError, match=message) as refused:
        attempt(data)
    assert "50" not in str(refused.value)


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ({}, r"privacy\.records = None: how many records a silo has is private and never counted"),
        ({"records": 46}, r"privacy\.records = 46: the records of silo-1 are fewer or more"),
        ({"records": 53}, r"privacy\.records = 53: the records of silo-1 are fewer or more"),
        ({"records": [48, 500]}, r"privacy\.records = 500: the records of silo-2 are fewer or more"),
        ({"records": [48]}, r"privacy\.records = \(48,\): give one for each of the 2 silos"),
        ({"records": 0}, r"privacy\.records = 0"),
        ({"records": 48.5}, r"privacy\.records = 48\.5"),
    ],
)
def test_a_number_of_records_that_is_not_declared_or_does_not_fit_is_refused_without_one(
    folder: Path, privacy: dict[str, Any], message: str
) -> None:
    data = table(folder / "data", 2, 47)
    with pytest.raises(ConfigError, match=message) as refused:
        Run.create(of_silos(data, **privacy), folder / "run")
    assert "47" not in str(refused.value)
    assert not (folder / "run").exists()


def test_clients_that_noise_for_themselves_are_all_there(folder: Path) -> None:
    data = table(folder / "data", 19, 5)
    local = {"sampling": "everyone", "noise_by": "party", "cohort": None}
    with pytest.raises(ConfigError, match=r"privacy\.noise_by = 'party': every client sends something"):
        assemble(of_clients(data | {"clients": 20}, **local))
    assert assemble(of_clients(data | {"clients": 19}, **local)).data.clients == 19


def test_no_share_of_private_examples_is_made_public() -> None:
    terms = {"epsilon": 4.0, "delta": 1e-3}
    with pytest.raises(ConfigError, match=r"data\.validation = 0\.1: a share of private examples tells how many"):
        parse({"data": {"validation": 0.1, "public": False}, "privacy": terms})
    digits = parse({"data": {"validation": 0.1}, "privacy": terms}).data
    assert isinstance(digits, DigitsData)
    assert digits.public


def test_those_who_are_declared_and_not_there_add_nothing(data: Clients) -> None:
    lists = [np.arange(3 * client, 3 * client + 3) for client in range(18)]
    few = replace(data, partition=Partition.of(lists), declared=20)
    assert (few.clients, few.present, few.describe()["clients"]) == (20, 18, 20)
    config = PlanConfig(members=20, schedule=constant(rounds=1, cohort=20), sampling=Everyone)
    plan = config.calibrate(Budget(epsilon=1e6, delta=1e-5))
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(1), size=QUERY.width)
    assert QUERY.ask(few, private).mean.shape == (1,)
    smaller = PlanConfig(members=18, schedule=constant(rounds=1, cohort=18), sampling=Everyone).calibrate(plan.budget)
    counted = PrivateRun(smaller, ledger=ledger, randomness=SeededRandomness(1), size=QUERY.width, label="counted")
    with pytest.raises(ConfigError, match="clients = 18: that is what the plan is for"):
        QUERY.ask(few, counted)
    engine = CohortEngine(linear(FEATURES, CLASSES), ClientTensors.of(few), Local(learning_rate=1.0))
    assert engine.present(np.arange(20)).tolist() == list(range(18))


SCHEMA = {"age": {"range": [0, 100], "missing": 50, "indicator": True}, "sex": {"levels": ["f", "m"], "other": True}}
WARD = Columns(client="patient", label="died", classes=2, schema=columns_of(SCHEMA))
HEADER = "patient,age,sex,died"
KNOWN = [f"p{place % 9},{20 + place},{'fm'[place % 2]},{place % 2}" for place in range(36)]
RARE = "p8,,intersex,1"
"""One row more: a level that nobody else has, and the only age that is missing."""


def written(folder: Path, rows: list[str], name: str = "ward.csv") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_what_the_others_become_does_not_tell_whether_a_row_is_there(tmp_path: Path) -> None:
    with_it, _ = read_table(written(tmp_path, [*KNOWN, RARE]), WARD)
    without, _ = read_table(written(tmp_path, KNOWN), WARD)
    assert with_it.shape == without.shape
    assert (with_it.features[:-1] == without.features).all()


def test_control_a_schema_that_is_looked_up_tells(tmp_path: Path) -> None:
    """Levels, a mean to impute and a range to scale by, as scikit-learn would find them in the rows."""
    seen: list[Any] = []
    for rows in (KNOWN, [*KNOWN, RARE, "p8,99,f,0"]):
        cells = [line.split(",") for line in rows]
        ages = np.array([float(age) for _, age, *_ in cells if age])
        schema = {
            "age": {"range": [float(ages.min()), float(ages.max())], "missing": float(ages.mean())},
            "sex": {"levels": sorted({sex for _, _, sex, _ in cells})},
        }
        columns = Columns(client="patient", label="died", classes=2, schema=columns_of(schema))
        seen.append(read_table(written(tmp_path, rows), columns)[0])
    assert seen[0].shape != seen[1].shape
    assert (seen[0].features[:, 0] != seen[1].features[:36, 0]).any()


PEOPLE, EACH = 30, 4
OWNERS = np.arange(PEOPLE * EACH) % PEOPLE
DRAWN = np.random.default_rng(0)
NUMBERS = DRAWN.normal(size=(len(OWNERS), 6)).astype(np.float32)
TOKENS = DRAWN.integers(0, 10, (len(OWNERS), 5))


def labels(last: bool) -> Integers:
    """Of three stated classes two, or all three."""
    found = np.arange(len(OWNERS), dtype=np.int64) % 2
    found[-1] = 2 if last else 1
    return found


def people(features: Any, answers: Integers, *, classes: int, test: Any = None) -> incrowd.Clients:
    held = None if test is None else (test, answers[-len(test) :])
    return incrowd.Clients.from_arrays(
        features, answers, owner=OWNERS, classes=classes, name=f"x{answers[-1]}", clients=PEOPLE, test=held
    )


def federation(module: nn.Module, held: incrowd.Clients) -> incrowd.Federation:
    private = incrowd.Private(epsilon=4, delta=1e-3, rounds=3, cohort=6, sampling="poisson")
    return incrowd.Federation(module, held, local=incrowd.Local(batch_size=4, learning_rate=0.1), privacy=private)


def answer(module: nn.Module, held: incrowd.Clients, folder: Path) -> str:
    """What everybody sees of a start."""
    try:
        federation(module, held).train(folder, progress=False)
    except (incrowd.ConfigError, incrowd.DataError) as error:
        return f"{type(error).__name__}: {error}"
    return "it learns"


@pytest.mark.parametrize(("outputs", "seen"), [(2, "it has 2 outputs"), (4, "it has 4 outputs"), (3, "it learns")])
def test_a_model_of_other_classes_is_refused_whoever_has_the_last(
    outputs: int, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, told = nn.Linear(6, outputs), set()
    for last in (False, True):  # two worlds, with a ledger each
        monkeypatch.setenv("INCROWD_STATE", str(tmp_path / f"state-{last}"))
        told.add(answer(module, people(NUMBERS, labels(last), classes=3), tmp_path / str(last)))
    assert len(told) == 1
    assert seen in told.pop()


def embedding() -> nn.Module:
    return nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 2))


@pytest.mark.parametrize("token", [10, -1, 9])
def test_a_token_that_has_no_place_is_refused_before_anything_is_paid_for(token: int, tmp_path: Path) -> None:
    tokens, folder = TOKENS.copy(), tmp_path / "run"
    tokens[77, 3] = token
    told = answer(embedding(), people(tokens, labels(last=False), classes=2), folder)
    if token == 9:  # the control: it has one
        assert told == "it learns"
    else:
        beside = answer(embedding(), people(TOKENS, labels(last=False), classes=2, test=tokens[77:]), folder)
        assert "the whole numbers that some test examples have" in beside
        assert told.startswith("DataError: the model cannot take the whole numbers that some examples have: ")
        assert "give its Embedding a place for every token" in told
        assert not folder.exists()


def test_a_record_is_looked_at_too(tmp_path: Path) -> None:
    tokens, folder = TOKENS.copy(), tmp_path / "run"
    tokens[77, 3] = 10
    silos = incrowd.Private(unit="record", epsilon=4, delta=1e-3, rounds=2)
    held = incrowd.Clients.from_arrays(tokens, labels(last=False), owner=np.arange(120) % 2, classes=2, public=True)
    with pytest.raises(incrowd.DataError, match="the whole numbers that some records have"):
        incrowd.Federation(embedding(), held, privacy=silos).train(folder, progress=False)
    assert not folder.exists()
