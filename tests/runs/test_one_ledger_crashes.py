"""Runs on one private table that are killed at random moments and race: the budget is kept, the registry not lost."""

import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from incrowd.errors import BudgetExceeded
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.runs.config import Config, load
from incrowd.runs.folder import Database
from incrowd.runs.run import Run
from tests.privacy.ledgers import start, status_of

KILLED = -signal.SIGKILL

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def config(folder: Path) -> Config:
    """Runs of 6 rounds for an epsilon of 2, on a table whose ledger allows 5."""
    (folder / "shop.csv").write_text(
        "user,age,bought\n" + "".join(f"user-{k % 12},{20 + k},{k % 2}\n" for k in range(36))
    )
    (folder / "shop.toml").write_text(
        '[data]\nname = "table"\nfolder = "."\nfile = "shop.csv"\nclient = "user"\nlabel = "bought"\nclasses = 2\n'
        "clients = 12\n"
        "[privacy]\nepsilon = 2.0\ndelta = 1e-3\nrounds = 6\n[run]\nthreads = 1\n"
    )
    return load(folder / "shop.toml")


def begun(config: Config) -> Path:
    """The ledger, with room for a few runs."""
    from incrowd.privacy.account.accounting import Budget, Relation
    from incrowd.runs.ledgers import identities_of

    budget, relation = Budget(epsilon=5.0, delta=1e-3), Relation.REPLACE_SPECIAL
    return Home.of_user().ledger_of(identities_of(config)[0], budget=budget, relation=relation).path


def train(config: Config, place: Path) -> None:
    """A new run, or the one that is there, as far as it gets."""
    if (place / "run.sqlite").exists():
        Run.open(place).train()
    else:
        Run.create(config, place).train()


def check(path: Path, folder: Path) -> int:
    """What holds at any moment; how many events are charged."""
    Ledger.open(path).close()  # takes an interrupted write back
    report = verify(path)
    assert report["intact"], report
    assert report["epsilon"] is not None
    assert report["epsilon"] <= 5.0
    (known,) = Home.of_user().ledgers()
    assert known.path == path
    released = 0
    for place in folder.glob("run-*/run.sqlite"):
        database = Database(place)
        released += sum(not row.lost for row in database.rounds())
        database.close()
    assert released <= (report["events"] or 0)
    return report["events"] or 0


def killed(work: Callable[[], None], path: Path, *, after: int, seconds: float) -> int:
    """Kill a process a moment after it has written so many entries: a slow machine gets as far as a fast one."""
    registry = Home.of_user()

    def entries() -> int:
        known = registry.at(path)
        assert known is not None
        return known.mark.entries

    awaited = entries() + after
    process = start(work)
    while entries() < awaited and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)
    return status_of(process)


@pytest.mark.parametrize("kills", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_runs_that_are_killed_at_random_moments_never_overspend(folder: Path, config: Config, kills: int) -> None:
    moments = random.Random(kills)  # noqa: S311 - when to kill is no secret
    long = config.model_copy(update={"privacy": config.privacy.model_copy(update={"rounds": 60})})
    path, charged, number, died = begun(config), 0, 0, 0
    for _ in range(kills):
        after, seconds = moments.choice([0, 0, 1, 2, 4]), moments.uniform(0.0, 0.02)
        died += killed(partial(train, long, folder / f"run-{number}"), path, after=after, seconds=seconds) == KILLED
        now = check(path, folder)
        assert now >= charged
        number, charged = number + moments.choice([0, 0, 0, 1]), now
    assert charged > 0
    assert died > kills / 4


@pytest.mark.slow
def test_two_processes_at_once_share_what_there_is(folder: Path, config: Config) -> None:
    path = begun(config)
    processes = [start(partial(train, config, folder / f"run-{place}")) for place in range(5)]
    ended = [status_of(process) for process in processes]
    events = check(path, folder)
    finished = [place for place in range(5) if (folder / f"run-{place}" / "summary.json").exists()]
    assert events == 6 * len(finished)
    assert 2 <= len(finished) < 5
    assert [place for place, status in enumerate(ended) if status == 0] == finished
    with pytest.raises(BudgetExceeded):
        Run.create(config, folder / "one-more")
