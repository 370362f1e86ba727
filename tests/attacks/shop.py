"""A private table of a shop, and runs on it."""

import csv
import random
from pathlib import Path

from dp_accounting import DpEvent

from incrowd.privacy.account.accounting import Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.config import Config, parse, tables
from incrowd.runs.run import Run
from incrowd.runs.sweep import Search, axis
from tests.runs.small import load, payer_of

HEADER = ["user", "age", "spent", "visits", "bought"]
Row = list[str]


def rows() -> list[Row]:
    dice = random.Random(1)  # noqa: S311 - people who are made up
    return [
        [f"user-{place % 12}", str(dice.randrange(18, 80)), f"{dice.random():.2f}", str(place), str(dice.randrange(2))]
        for place in range(36)
    ]


def write(path: Path, header: Row, table: list[Row]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *table])
    return path


def settings(table: Path) -> Path:
    """Settings for a private table: a run of two rounds, for the whole budget of 8."""
    path = table.with_suffix(".toml")
    path.write_text(
        f'[data]\nname = "table"\nfolder = "."\nfile = "{table.name}"\nclient = "user"\nlabel = "bought"\nclasses = 2\n'
        "clients = 13\n"
        "[privacy]\nepsilon = 8.0\ndelta = 1e-3\nrounds = 2\n[run]\n"
    )
    return path


def config(table: Path, *overrides: str) -> Config:
    return load(settings(table), overrides=overrides)


SILOS = ("privacy.unit=record", "privacy.rounds=1", "privacy.epsilon=2", "data.features=['age']")
BY_USER = ("data.clients=12", "privacy.records=3")


def of_silos(table: Path, *overrides: str) -> Config:
    return parse(tables(settings(table), overrides=(*SILOS, *overrides)))


def trained(table: Path, out: Path, *overrides: str) -> Run:
    run = Run.create(config(table, *overrides), out)
    run.train()
    return run


def ledger_of(run: Run) -> Ledger:
    return payer_of(run).open(run.folder / "ledger.sqlite")


def spent(*ledgers: Path) -> float:
    """What all that is on these ledgers costs together."""
    events: list[tuple[DpEvent, int]] = []
    for path in ledgers:
        with Ledger.read(path) as ledger:
            events += ledger.commitments()
    return price(compose(events), delta=1e-3, relation=Relation.ADD_OR_REMOVE_ONE).epsilon


def place(run: Run) -> Path:
    found = payer_of(run).path
    assert found is not None
    return found


def search(table: Path) -> Search:
    others = [[f"not {row[0]}", f"{row[1]}.5", *row[2:]] for row in rows()[:4]]
    write(table.with_name("test.csv"), HEADER, others)
    axes = [axis("local.learning_rate=0.1,1")]
    overrides = ("data.test_file=test.csv", "privacy.epsilon=3")
    return Search(source=settings(table), overrides=overrides, axes=axes)
