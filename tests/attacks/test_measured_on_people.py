"""Exact figures of private people: by a test table that they are in, whatever they are called there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.data import Clients, Columns
from incrowd.errors import ConfigError, IncrowdError
from incrowd.estimators import PrivateClassifier
from incrowd.privacy.ledger.home import Home
from incrowd.runs.config import Config
from incrowd.runs.run import Run
from tests.attacks.shop import BY_USER, HEADER, Row, config, of_silos, rows, write
from tests.command import Command

pytestmark = pytest.mark.usefixtures("one_thread")

SHARED = "data.test_clients=shared"
OTHERS = [[f"other {row[0]}", str(int(row[1]) + 1), *row[2:]] for row in rows()]
"""People of another shop."""


def by_user(table: Path, *overrides: str) -> Config:
    return of_silos(table, *BY_USER, "data.features=['age', 'spent', 'visits']", *overrides)


def renamed(table: list[Row]) -> list[Row]:
    return [[f"not {row[0]}", *row[1:]] for row in table]


def flipped(table: list[Row]) -> list[Row]:
    return [[*row[:-1], str(1 - int(row[-1]))] for row in table]


def test_people_who_train_are_not_measured_because_they_are_said_to_be_shared(
    shop: Path, tmp_path: Path, incrowd: Command
) -> None:
    write(shop.with_name("test.csv"), HEADER, rows()[:1])
    with pytest.raises(ConfigError, match=r"data\.test_clients = 'shared'.*incrowd evaluate"):
        Run.create(config(shop, "data.test_file=test.csv", SHARED), tmp_path / "run")
    settings = str(shop.with_suffix(".toml"))
    assert incrowd("train", settings, "--set", "data.test_file=test.csv", "--set", SHARED).status == 2
    assert not Home.of_user().folder.exists()  # nothing was begun


def test_control_of_public_data_anybody_may_be_measured(shop: Path, tmp_path: Path) -> None:
    write(shop.with_name("test.csv"), HEADER, rows()[:5])
    words = ("data.test_file=test.csv", "data.public=true", SHARED)
    assert Run.create(config(shop, *words), tmp_path / "run").train()["accuracy"] is not None


def test_a_data_frame_is_no_way_round() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(rows(), columns=HEADER)
    columns = Columns(client="user", label="bought", classes=2)
    stated: dict[str, Any] = {"name": "shop", "test": frame[:3], "test_clients": "shared"}
    with pytest.raises(ConfigError, match="test_clients"):
        Clients.from_table(frame, columns=columns, clients=13, **stated)
    assert Clients.from_table(frame, columns=columns, public=True, **stated).test is not None  # the control


HIDDEN: dict[str, Callable[[], tuple[Row, list[Row]]]] = {
    "other names": lambda: (HEADER, renamed(rows())),
    "another order": lambda: (HEADER, renamed(rows()[::-1])),
    "one among others": lambda: (HEADER, renamed([*OTHERS[:20], rows()[7]])),
    "another label": lambda: (HEADER, renamed(flipped(rows()))),
    "other columns": lambda: ([*HEADER[::-1], "month"], [[*row[::-1], "may"] for row in renamed(rows())]),
    "other spelling": lambda: (HEADER, [[row[0], f"{row[1]}.0", *row[2:]] for row in renamed(rows())]),
}


@pytest.mark.parametrize("how", HIDDEN)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_rows_of_people_who_train_are_no_test_table(shop: Path, tmp_path: Path, how: str, unit: str) -> None:
    write(shop.with_name("test.csv"), *HIDDEN[how]())
    with pytest.raises(ConfigError, match=r"data\.test_file.*people who train.*incrowd evaluate") as error:
        Run.create((config if unit == "client" else by_user)(shop, "data.test_file=test.csv"), tmp_path / "run")
    assert "7" not in str(error.value).replace(str(shop), "")  # neither which rows, nor how many


def test_control_rows_of_others_are_a_test_table(shop: Path, tmp_path: Path) -> None:
    write(shop.with_name("test.csv"), HEADER, OTHERS)
    found = Run.create(config(shop, "data.test_file=test.csv"), tmp_path / "run").train()
    assert found["test_set"].startswith("36 examples, public")


def test_rows_that_are_equal_by_chance_are_a_test_table_unless_they_are_all_the_same(
    shop: Path, tmp_path: Path
) -> None:
    """Of a table of few values, whose people have equal rows anyway, equal rows tell nothing of who they are."""
    dice = np.random.default_rng(0)
    few = [[f"user-{place % 12}", *map(str, dice.integers(0, 2, 4))] for place in range(120)]
    others = [[f"other-{place % 12}", *map(str, dice.integers(0, 2, 4))] for place in range(100)]
    write(shop, HEADER, few)
    write(shop.with_name("test.csv"), HEADER, others)
    Run.create(config(shop, "data.test_file=test.csv"), tmp_path / "run")
    write(shop.with_name("test.csv"), HEADER, renamed(few))
    with pytest.raises(ConfigError, match="people who train"):
        Run.create(config(shop, "data.test_file=test.csv"), tmp_path / "again")


X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
NEW = np.random.default_rng(1).normal(size=(10, 3)).astype(np.float32)


@pytest.mark.parametrize("test", [(X[:9], 1 - Y[:9]), (np.concatenate([NEW, X[3:4]]), np.zeros(11))])
def test_arrays_of_people_who_train_are_no_test_set(tmp_path: Path, test: Any) -> None:
    def train(test: Any) -> None:
        stated: dict[str, Any] = {"name": "visits", "clients": 12, "classes": 2}
        data = incrowd.Clients.from_arrays(X, Y, owner=np.arange(60) % 12, test=test, **stated)
        privacy = incrowd.Private(epsilon=3, delta=1e-3, rounds=1)
        incrowd.Federation(nn.Linear(3, 2), data, privacy=privacy).train(tmp_path / "run", progress=False)

    with pytest.raises(ConfigError, match="people who train"):
        train(test)
    train((NEW, np.zeros(10)))  # the control


def classifier(**stated: Any) -> PrivateClassifier:
    terms: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-3, "rounds": 1, "name": "visits", "clients": 60}
    return PrivateClassifier(**terms | {"ranges": (-4, 4), "classes": [0, 1]} | stated)


def test_an_estimator_is_not_scored_on_people_who_trained_it_or_train_later() -> None:
    fitted = classifier().fit(X, Y)
    for x in (X, X[:5], np.concatenate([NEW, X[3:4], X[8:9]])):
        with pytest.raises(IncrowdError, match="score"):
            fitted.score(x, np.zeros(len(x)))
    assert 0 <= fitted.score(NEW, np.zeros(10)) <= 1  # the control
    with pytest.raises(IncrowdError, match="without privacy"):
        classifier(name="new", clients=10).fit(NEW, np.arange(10) % 2)
    everybody = classifier(public=True, name=None).fit(X + 1, Y)
    assert 0 <= everybody.score(X + 1, Y) <= 1  # the control: public data
