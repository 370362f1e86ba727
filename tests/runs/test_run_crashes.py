"""Runs that are killed with SIGKILL: at every stage of a round, at every line, and at random moments."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from incrowd.errors import BudgetExceeded
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.ledger import Ledger, verify
from incrowd.runs.config import Config, parse
from incrowd.runs.folder import Database, Record
from incrowd.runs.ledgers import identities_of
from incrowd.runs.run import Run
from tests.privacy.ledgers import quick_folder, start, status_of
from tests.runs.kills import Place, killed_at, killed_in
from tests.runs.small import seeded, small

ROUNDS = 4
OPTIONS = ("privacy.sampling=poisson", "privacy.cohort=6", "server.kind=momentum", "server.average=tail")
KILLED = -signal.SIGKILL


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    """The run that nothing interrupts."""
    with quick_folder() as found:
        Run.create(seeded(*OPTIONS), found).train()
        yield found


def begun(folder: Path, *, simulated: bool, options: tuple[str, ...] = ()) -> Path:
    Run.create((seeded if simulated else small)(*OPTIONS, *options), folder)
    return folder


def rows(folder: Path) -> list[Record]:
    """The rounds, but for how long they took."""
    database = Database(folder / "run.sqlite")
    found = database.rounds()
    database.close()
    return [replace(row, seconds=0.0, clients_per_second=0.0) for row in found]


def check_same(folder: Path, whole: Path) -> None:
    """The run ended as the one that nothing interrupted."""
    assert Run.open(folder).train()["rounds_lost"] == 0
    last = f"checkpoints/round-{ROUNDS:06d}.safetensors"
    for name in ("model.safetensors", last, "statement.txt"):
        assert (folder / name).read_bytes() == (whole / name).read_bytes()
    assert rows(folder) == rows(whole)
    check_ledger(folder)


def check_ledger(folder: Path) -> None:
    """The whole plan was charged, once."""
    report = verify(folder / "ledger.sqlite")
    assert report["intact"], report
    assert report["events"] == ROUNDS
    assert report["epsilon"] is not None
    assert report["epsilon"] <= 8.0


BEFORE_THE_CHARGE = [
    Place("runs/round_loop.py", "restored", "call"),
    Place("runs/round_loop.py", "save", "call"),
    Place("incrowd/_files.py", "write", "call"),
    Place("runs/round_loop.py", "save", "return"),
    Place("privacy/plan/sampling.py", "sample", "return", 2),
    Place("learning/engine.py", "_train_group", "return", 3),
    Place("privacy/release.py", "release", "call", 2),
    Place("privacy/ledger/ledger.py", "charge", "call", 2),
]
CHARGED_AND_NOT_KEPT = [
    Place("privacy/ledger/ledger.py", "charge", "return", 2),
    Place("privacy/release.py", "charge", "return", 2),
    Place("privacy/paid.py", "added", "return", 2),
    Place("algorithms/fedavg.py", "after", "return", 2),
    Place("algorithms/fedavg.py", "apply", "return", 1),
    Place("runs/folder.py", "add", "call", 1),
    Place("runs/folder.py", "add", "return", 3),
    Place("runs/round_loop.py", "save", "call", 3),
    Place("algorithms/fedavg.py", "apply", "return", 4),
]
KEPT = [
    Place("runs/round_loop.py", "add", "return", 3),
    Place("runs/round_loop.py", "save", "return", 3),
    Place("runs/run.py", "_finished", "call"),
    Place("runs/run.py", "_finished", "return"),
]
STAGES = BEFORE_THE_CHARGE + CHARGED_AND_NOT_KEPT + KEPT


@pytest.mark.parametrize("place", STAGES, ids=lambda place: f"{place.function}-{place.happening}-{place.time}")
def test_a_seeded_run_killed_at_any_stage_ends_as_if_it_had_not_been(folder: Path, whole: Path, place: Place) -> None:
    begun(folder, simulated=True)
    assert status_of(start(lambda: killed_in(place, Run.open(folder).train))) == KILLED
    check_same(folder, whole)


@pytest.mark.parametrize("place", STAGES, ids=lambda place: f"{place.function}-{place.happening}-{place.time}")
def test_under_the_systems_randomness_a_round_that_was_charged_and_not_kept_is_lost_and_stays_paid(
    folder: Path, place: Place
) -> None:
    begun(folder, simulated=False)
    assert status_of(start(lambda: killed_in(place, Run.open(folder).train))) == KILLED
    summary = Run.open(folder).train()
    lost = int(place in CHARGED_AND_NOT_KEPT)
    assert summary["rounds_lost"] == lost
    assert summary["rounds"] == ROUNDS - lost
    assert [row.lost for row in rows(folder)].count(True) == lost
    assert [row.round for row in rows(folder)] == list(range(ROUNDS))
    assert Run.open(folder).train()["rounds_lost"] == lost  # and does not forget it
    check_ledger(folder)


@pytest.mark.parametrize("simulated", [True, False])
def test_with_rare_checkpoints_more_is_repeated_or_lost(folder: Path, whole: Path, simulated: bool) -> None:
    begun(folder, simulated=simulated, options=("run.checkpoint_every=4",))
    place = Place("runs/folder.py", "add", "return", 3)
    assert status_of(start(lambda: killed_in(place, Run.open(folder).train))) == KILLED
    if simulated:
        check_same(folder, whole)
    else:
        assert Run.open(folder).train()["rounds_lost"] == 3
        check_ledger(folder)


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.slow)])
def test_a_seeded_run_killed_at_random_moments_ends_as_if_it_had_not_been(
    folder: Path, whole: Path, kills: int
) -> None:
    moments = random.Random(kills)  # noqa: S311 - when to kill is no secret
    for attempt in range(kills):
        place = begun(folder / str(attempt), simulated=True)
        for _ in range(3):
            process = start(Run.open(place).train)
            time.sleep(moments.uniform(0.0, 0.2))
            os.kill(process, signal.SIGKILL)
            status_of(process)
            Ledger.open(place / "ledger.sqlite").close()  # takes an interrupted write back
            report = verify(place / "ledger.sqlite")
            assert report["intact"], report
        check_same(place, whole)


@pytest.mark.parametrize("stride", [101, pytest.param(9, marks=pytest.mark.slow)])
def test_a_run_killed_again_and_again_at_some_line_loses_what_it_must_and_no_more(folder: Path, stride: int) -> None:
    """Each attempt lives a little longer than the one before, so that in the end one finishes."""
    begun(folder, simulated=False)
    run = Run.open(folder)
    attempts = 0
    for line in range(stride, 10**6, stride):
        attempts += 1
        status = status_of(start(lambda: killed_at("/incrowd/runs/", line, run.train)))  # noqa: B023 - waited for
        report = verify(folder / "ledger.sqlite")
        assert report["intact"], report
        if status == 0:
            break
        assert status == KILLED
    summary = run.train()
    assert summary["rounds"] + summary["rounds_lost"] == ROUNDS
    assert attempts > 3
    check_ledger(folder)


@pytest.mark.parametrize("stride", [31, pytest.param(3, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_makes_a_run_leaves_one_that_can_be_used_or_is_refused(
    folder: Path, stride: int
) -> None:
    place = folder / "run"
    usable = []
    for line in range(1, 10**4, stride):
        for path in place.glob("*"):
            path.unlink()
        status = status_of(start(lambda: killed_at("/incrowd/runs/", line, lambda: Run.create(small(), place))))  # noqa: B023 - waited for
        if (place / "ledger.sqlite").exists() and (place / "ledger.sqlite").stat().st_size:
            assert verify(place / "ledger.sqlite")["events"] == 0
        try:
            Run.open(place)
        except ValueError:
            usable.append(False)
        else:
            usable.append(True)
        if status == 0:
            break
    assert usable == sorted(usable)  # refused until it is complete
    assert usable[-1]
    assert len(usable) > 3


@pytest.fixture
def config(folder: Path) -> Config:
    """Runs of 6 rounds for an epsilon of 2, on a table whose ledger allows 5."""
    (folder / "shop.csv").write_text(
        "user,age,bought\n" + "".join(f"user-{k % 12},{20 + k},{k % 2}\n" for k in range(36))
    )
    table = {"name": "table", "folder": str(folder), "file": "shop.csv", "client": "user", "label": "bought"}
    privacy = {"epsilon": 2.0, "delta": 1e-3, "rounds": 6}
    return parse({"data": {**table, "classes": 2, "clients": 12}, "privacy": privacy, "run": {"threads": 1}})


def ledger_of(config: Config) -> Path:
    """The ledger, with room for a few runs."""
    budget, relation = Budget(epsilon=5.0, delta=1e-3), Relation.REPLACE_SPECIAL
    return Home.of_user().ledger_of(identities_of(config)[0], budget=budget, relation=relation).path


def train(config: Config, place: Path) -> None:
    """A new run, or the one that is there, as far as it gets."""
    if (place / "run.sqlite").exists():
        Run.open(place).train()
    else:
        Run.create(config, place).train()


def check_ledgers(path: Path, folder: Path) -> int:
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
    path, charged, number, died = ledger_of(config), 0, 0, 0
    for _ in range(kills):
        after, seconds = moments.choice([0, 0, 1, 2, 4]), moments.uniform(0.0, 0.02)
        died += killed(partial(train, long, folder / f"run-{number}"), path, after=after, seconds=seconds) == KILLED
        now = check_ledgers(path, folder)
        assert now >= charged
        number, charged = number + moments.choice([0, 0, 0, 1]), now
    assert charged > 0
    assert died > kills / 4


@pytest.mark.slow
def test_two_processes_at_once_share_what_there_is(folder: Path, config: Config) -> None:
    path = ledger_of(config)
    processes = [start(partial(train, config, folder / f"run-{place}")) for place in range(5)]
    ended = [status_of(process) for process in processes]
    events = check_ledgers(path, folder)
    finished = [place for place in range(5) if (folder / f"run-{place}" / "summary.json").exists()]
    assert events == 6 * len(finished)
    assert 2 <= len(finished) < 5
    assert [place for place, status in enumerate(ended) if status == 0] == finished
    with pytest.raises(BudgetExceeded):
        Run.create(config, folder / "one-more")
