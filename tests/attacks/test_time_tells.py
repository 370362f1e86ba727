"""What the time that a run takes tells about who took part.

Attack: a client with far more examples than the others makes the rounds in which it takes part longer, so whoever reads
the seconds of each round (or the difference of two times that stand beside two rounds) knows when it did.
"""

import csv
import json
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from incrowd import _files
from incrowd._random import Floats, SeededRandomness
from incrowd.algorithms import Answer, ClientCohort, Silo
from incrowd.runs.config import Config
from incrowd.runs.run import Run
from incrowd.runs.sources import federated_data
from incrowd.runs.trackers import Bar, Lines, progress
from tests.runs.small import SEEDED, clients_of, small
from tests.runs.test_silo_run import small as silos

pytestmark = pytest.mark.usefixtures("one_thread")

UNEVEN = (
    "data.partition=dirichlet",
    "data.alpha=0.1",
    "privacy.sampling=poisson",
    "privacy.cohort=6",
    "privacy.rounds=8",
    'run.trackers=["csv", "jsonl"]',
)


@dataclass
class Clock:
    """A clock that goes on with the work: so many seconds for an example."""

    pace: float
    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


@dataclass(frozen=True)
class Repeatable(SeededRandomness):
    """What a run in earnest draws, drawn twice: so that two such runs differ in nothing but their times."""

    simulated: bool = False  # what it pretends


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time passes with the examples that are trained, at a pace; in earnest, the same numbers are drawn."""
    monkeypatch.setattr("incrowd.runs.build.SystemRandomness", lambda: Repeatable(seed=5))
    monkeypatch.setattr(secrets, "token_hex", lambda size: "0" * 2 * size)
    present, answer = ClientCohort.present, Silo.answer
    sizes = federated_data(small(*UNEVEN)).sizes

    def at(pace: float) -> None:
        clock = Clock(pace)
        monkeypatch.setattr("incrowd.algorithms.fedavg.time", clock)
        monkeypatch.setattr("incrowd.algorithms.clients.time", clock)

        def working(self: ClientCohort, cohort: NDArray[np.int64], *, number: int) -> NDArray[np.int64]:
            found = present(self, cohort, number=number)
            clock.now += clock.pace * float(sizes[found].sum())
            return found

        def asked(self: Silo, number: int, weights: Floats) -> Answer:
            clock.now += clock.pace * (1 + number % 3)
            return answer(self, number, weights)

        monkeypatch.setattr(ClientCohort, "present", working)
        monkeypatch.setattr(Silo, "answer", asked)

    return at


def auc(scores: Sequence[float], present: Sequence[bool]) -> float:
    """The chance that a round with the client has the higher score."""
    pairs = [(a, b) for a, here in zip(scores, present, strict=True) for b, there in zip(scores, present, strict=True)
             if here and not there]  # fmt: skip
    return float(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))


def rounds_with_the_largest(run: Run) -> list[bool]:
    work, largest = clients_of(run), int(np.argmax(run.work.data.sizes))
    plan, source = work.plan, work.randomness
    drawn = (plan.round(number).sampler.sample(source.stream("sampling", number), round=number) for number in range(8))
    return [largest in cohort for cohort in drawn]


def seconds_in(folder: Path) -> list[float | None]:
    with closing(sqlite3.connect(folder / "run.sqlite")) as connection:
        return [found for (found,) in connection.execute("SELECT seconds FROM rounds ORDER BY round")]


def content(path: Path) -> Iterator[object]:
    """What is in a file, but for where the folder is."""
    if path.suffix != ".sqlite":
        yield path.read_bytes().replace(str(path.parent).encode(), b"")
        return
    with closing(sqlite3.connect(path)) as connection:
        yield list(connection.iterdump())


def left_in(folder: Path) -> dict[str, object]:
    """What is in each file below a folder."""
    return {str(path.relative_to(folder)): list(content(path)) for path in folder.rglob("*") if path.is_file()}


def trained(folder: Path, config: Config) -> tuple[dict[str, object], str]:
    """All that a run leaves and says, made comparable."""
    said = StringIO()
    run = Run.create(config, folder)
    summary = run.train([Lines(said)])
    shown = json.dumps(summary).replace(str(folder), "")
    return {**left_in(folder), "summary": shown}, said.getvalue()


@pytest.mark.slow
def test_in_earnest_nothing_of_a_run_depends_on_how_long_it_took(folder: Path, worked: Callable[[float], None]) -> None:
    found = []
    for name, pace in (("quick", 0.001), ("slow", 0.5)):
        worked(pace)
        found.append(trained(folder / name, small(*UNEVEN)))
    assert found[0] == found[1]
    assert set(seconds_in(folder / "slow")) == {None}
    assert "clients/s" not in found[0][1]


@pytest.mark.slow
def test_control_the_seconds_of_a_simulation_tell_when_the_largest_client_took_part(
    folder: Path, worked: Callable[[float], None]
) -> None:
    """The same attack on exact times, which only simulations have."""
    worked(0.5)
    config = small(*UNEVEN, *SEEDED)
    left, said = trained(folder / "seeded", config)
    seconds = [one for one in seconds_in(folder / "seeded") if one is not None]
    present = rounds_with_the_largest(Run.open(folder / "seeded"))
    assert 0 < sum(present) < 8
    assert auc(seconds, present) > 0.85
    assert "clients/s" in said
    worked(0.001)
    assert trained(folder / "again", config)[0] != left


def test_in_earnest_nothing_of_silos_depends_on_how_long_they_took(
    folder: Path, worked: Callable[[float], None]
) -> None:
    found = []
    for name, pace in (("quick", 0.001), ("slow", 0.5)):
        worked(pace)
        place = folder / name
        summary = Run.create(silos('run.trackers=["csv"]'), place).train()
        left = {
            str(path.relative_to(place)): list(content(path)) for path in sorted(place.rglob("*")) if path.is_file()
        }
        found.append((left, json.dumps(summary).replace(str(place), "")))
    assert found[0] == found[1]
    assert set(seconds_in(folder / "slow")) == {None}


@pytest.mark.parametrize("more", [(), ("privacy.noise=correlated", "privacy.groups=2")])
def test_in_earnest_states_have_no_date_of_their_own(folder: Path, more: tuple[str, ...]) -> None:
    """The difference of two is the time of a round."""
    dates: list[set[float]] = []

    class Looking:
        def start(self, settings: object, past: object) -> None: ...

        def round(self, record: object) -> None:
            states = [*(folder / "checkpoints").iterdir(), *folder.glob("private/*")]
            dates.append({path.stat().st_mtime for path in states})

        def end(self, summary: object) -> None: ...

    Run.create(small(*more), folder).train([Looking()])
    assert dates == [{_files.PUBLIC_TIME}] * 4


def test_a_ledger_and_the_tables_of_trackers_know_no_time(folder: Path) -> None:
    Run.create(small('run.trackers=["csv", "jsonl"]'), folder).train()
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as connection:
        assert {len(at) for (at,) in connection.execute("SELECT at FROM entries")} == {len("2026-01-31")}
    (header, *rows) = csv.reader((folder / "rounds.csv").read_text().splitlines())
    timed = [place for place, name in enumerate(header) if "second" in name]
    assert {row[place] for row in rows for place in timed} == {""}


def test_the_progress_of_a_run_in_earnest_says_no_speed() -> None:
    settings = {
        "rounds": 2,
        "clients": 3,
        "noise_multiplier": 1.0,
        "config": {"run": {"report_every": 1, "seed": None}},
    }
    said = StringIO()
    shown = progress(said)
    assert isinstance(shown, Lines | Bar)
    shown.start(settings, [])
    shown.end(None)
    assert "/s" not in said.getvalue()
