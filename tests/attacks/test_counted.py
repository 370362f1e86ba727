"""Attack: what is counted from private data, and printed or used, tells whether somebody is in them.

Two data sets that differ by one record (or client) are trained under the same settings; whoever compares all that a run
leaves behind, but for the noise, must see no difference.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.data import Clients, Partition
from incrowd.errors import ConfigError
from incrowd.learning import ClientTensors, CohortEngine, MeanQuery, linear
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, check_declared, constant
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
    return [_without(item) for item in found]


def _parsed(cell: Any) -> Any:
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except ValueError:
        return cell


def _without(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _without(value) for key, value in item.items() if key not in NOISED | {"folder", "simulation"}}
    return [_without(value) for value in item] if isinstance(item, list) else item


def test_silos_with_a_record_more_or_less_leave_the_same_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    for each in (46, 47):
        monkeypatch.setenv("INCROWD_STATE", str(folder / f"state-{each}"))  # two worlds, which differ by a record
        data = table(folder / str(each), 2, each)
        run = Run.create(of_silos(data, records=50), folder / f"run-{each}")
        run.train()
        left.append(seen(run.folder))
    assert left[0] == left[1]
    assert "50 records" in left[0][1]


def test_a_silo_that_counts_itself_tells_who_is_there(folder: Path) -> None:
    """The control: declared public, a table is counted, and the statement says how many records it has."""
    left = []
    for each in (46, 47):
        data = table(folder / str(each), 2, each) | {"public": True}
        run = Run.create(of_silos(data), folder / f"run-{each}")
        run.train()
        left.append(seen(run.folder))
    assert left[0] != left[1]
    assert "46 records" in left[0][1]


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
        left.append(seen(run.folder))
    assert str(left[0]) == str(left[1]) or _only_the_clip_differs(*left)


def _only_the_clip_differs(one: list[Any], other: list[Any]) -> bool:
    """A quantile follows what was released with noise, and so do the bound and the noise of a later round."""
    return [_unclipped(item) for item in one] == [_unclipped(item) for item in other]


def _unclipped(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _unclipped(value) for key, value in item.items() if key not in ("clip_norm", "noise_std")}
    return item


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


def test_what_is_too_few_and_what_is_too_many_look_the_same() -> None:
    said = set()
    for held in (0, 89, 101, 10_000):
        with pytest.raises(ConfigError, match="fewer or more") as refused:
            check_declared(100, held=held, field="records", what="the records")
        said.add(str(refused.value))
    assert len(said) == 1
    for held in (90, 95, 100):
        check_declared(100, held=held, field="records", what="the records")


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
