"""Readers of the disk, and watchers of time: what a run leaves, who may read it, and what its times tell.

With the memory of correlated noise, which lay in the last checkpoint and in the repr of a release, the last round's sum
is what was released minus its noise, to the last bit. A client with far more examples than the others makes the rounds
in which it takes part longer: who reads the seconds of each round, or the difference of two times, knows when it did.
"""

import json
import os
import re
import secrets
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from incrowd import _files
from incrowd._random import Floats, SeededRandomness
from incrowd.algorithms import Answer, ClientCohort, Silo, State
from incrowd.cli import main
from incrowd.errors import DataError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.release import PrivateRun
from incrowd.runs.config import Config
from incrowd.runs.folder import PRIVATE
from incrowd.runs.run import Run
from incrowd.runs.sources import federated_data
from incrowd.runs.sweep import Search, Sweep, axis
from incrowd.runs.trackers import Lines
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in
from tests.runs.small import SEEDED, SMALL, clients_of, seeded, small
from tests.runs.test_silo_run import small as silos

pytestmark = pytest.mark.usefixtures("one_thread")


CORRELATED = ("privacy.noise=correlated", "privacy.groups=2")
ROUNDS = 4


def arrays_below(folder: Path) -> Iterator[NDArray[np.generic]]:
    """Every array in every file of tensors in a folder."""
    for path in sorted(folder.rglob("*.safetensors")):
        yield from load_file(path).values()


def knows(folder: Path, noise: Floats) -> bool:
    """Whether the noise of a round can be read from some file."""
    flat = (np.asarray(array, dtype=np.float64).ravel() for array in arrays_below(folder))
    return any(array.shape == noise.shape and np.allclose(array, noise, rtol=1e-9, atol=0) for array in flat)


def run_and_its_noise(folder: Path, *, keeps: bool, monkeypatch: pytest.MonkeyPatch) -> list[Floats]:
    """Trains a run with correlated noise; the noise of each round, as the noise remembered it.

    With `keeps` it is the broken twin, whose checkpoints hold the memory and which never forgets it.
    """
    noises: list[Floats] = []
    from incrowd.privacy.mechanism import correlated

    original = correlated.CorrelatedNoise.add

    def noted(self, total, *, memory_of=original, **how):  # type: ignore[no-untyped-def]  # passes everything on
        out, state = memory_of(self, total, **how)
        noises.append(state.memory[0].copy())
        return out, state

    monkeypatch.setattr(correlated.CorrelatedNoise, "add", noted)
    if keeps:
        plain = State.to_arrays

        def leaky(self: State) -> dict[str, NDArray[np.generic]]:
            return plain(self) | ({"noise.0": noises[-1]} if noises else {})

        monkeypatch.setattr(State, "to_arrays", leaky)
    Run.create(small(*CORRELATED), folder).train()
    return noises


@pytest.mark.parametrize("keeps", [False, True], ids=["", "control"])
def test_the_noise_of_no_round_is_left_on_the_disk(keeps: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noises = run_and_its_noise(folder, keeps=keeps, monkeypatch=monkeypatch)
    assert len(noises) == ROUNDS
    assert any(knows(folder, noise) for noise in noises) is keeps
    assert not (folder / PRIVATE).exists()


def test_what_a_release_shows_does_not_give_the_sum_away() -> None:
    """All that is public of the rounds, and their repr, leaves the noise unknown; its memory tells the sum exactly."""
    size, contribution = 3, np.array([0.6, 0.64, 0.48])
    plan = PlanConfig.in_turns(clients=6, rounds=ROUNDS, groups=2).calibrate(Budget(epsilon=8.0, delta=1e-3))
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    run = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(3), size=size)
    carry = run.start()
    opened = run.round(0, carry=carry)
    opened.add(contribution, clients=[int(run.cohort(0)[0])])
    release, carry = opened.release(), opened.after
    assert carry.noise is not None
    noise = carry.noise.memory[0] * release.total.step
    assert release.total.values - noise == pytest.approx(contribution, abs=1e-6)  # the control: who has the memory
    shown = " ".join(map(repr, (release, carry, carry.noise, opened, run, plan)))
    numbers = [float(word) for word in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", shown)]
    assert not any(
        np.isclose(abs(number), np.abs([*noise, *carry.noise.memory[0]]), rtol=1e-4).any() for number in numbers
    )


KINDS = ("run", "correlated", "silos", "search")
DOCS = Path(__file__).parents[2] / "docs"


def leave(kind: str, folder: Path) -> None:
    """A run of each kind, with all trackers that write files."""
    tracked = 'run.trackers=["csv", "jsonl"]'
    if kind == "silos":
        Run.create(silos(tracked), folder).train()
    elif kind == "search":
        overrides = (*SMALL, "privacy.rounds=2", "run.randomness=seeded", "run.seed=7")
        axes = [axis("server.learning_rate=2,8")]
        Sweep(search=Search(overrides=overrides, axes=axes), out=folder).run()
    else:
        Run.create(small(tracked, *(CORRELATED if kind == "correlated" else ())), folder).train()


def open_to_others(folder: Path) -> list[str]:
    """What somebody else may read, write or enter."""
    return [str(path) for path in (folder, *folder.rglob("*")) if path.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [0, 0o077])
def test_nobody_else_may_read_what_a_run_leaves(folder: Path, kind: str, mask: int) -> None:
    before = os.umask(mask)
    try:
        leave(kind, folder / "deep" / "run")
        (folder / "control").write_text("weights")  # as files are that are just opened
    finally:
        os.umask(before)
    assert (folder / "deep" / "run").is_dir()
    for left in (folder / "deep", Path(os.environ["INCROWD_STATE"])):
        assert not left.exists() or open_to_others(left) == []  # no ledger is known of public data
    assert bool(open_to_others(folder / "control")) is (mask == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_that_is_left_is_known(folder: Path, kind: str) -> None:
    """A new file cannot be forgotten: whether it may be handed on has to be said."""
    leave(kind, folder / "run")
    page = DOCS / ("sweep.md" if kind == "search" else "runs.md")
    known = re.findall(r"^\| `([^`]+)` \| .+ \| (?:as it is|in part|no) \|$", page.read_text(), re.MULTILINE)
    left = [str(path.relative_to(folder / "run")) for path in (folder / "run").rglob("*") if path.is_file()]
    assert [path for path in left if not any(fnmatchcase(path, each) for each in known)] == []
    assert any(fnmatchcase(path, "*.safetensors") for path in left)


FORGETTING = [
    Place("incrowd/_files.py", "remove", "call", 1),
    Place("runs/round_loop.py", "add", "return", 5),
    Place("runs/round_loop.py", "save", "return", 3),
    Place("runs/round_loop.py", "leave", "return", 7),
    Place("runs/round_loop.py", "write_state", "return", 5),
    Place("incrowd/_files.py", "remove", "return", 4),
    Place("runs/run.py", "_finished", "call"),
]


@pytest.mark.parametrize("place", FORGETTING, ids=lambda place: f"{place.function}-{place.happening}-{place.time}")
def test_wherever_a_run_is_killed_its_secrets_last_as_long_as_they_are_needed(folder: Path, place: Place) -> None:
    Run.create(seeded(*CORRELATED), folder / "whole").train()
    Run.create(seeded(*CORRELATED), folder / "run")
    assert status_of(start(lambda: killed_in(place, Run.open(folder / "run").train))) == -signal.SIGKILL
    assert Run.open(folder / "run").train()["rounds_lost"] == 0
    same = [(folder / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert same[0] == same[1]
    assert not (folder / "run" / PRIVATE).exists()


def test_secrets_that_cannot_be_removed_are_an_error_and_there_is_no_result(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(seeded(*CORRELATED), folder)

    def stuck(path: Path) -> None:
        raise OSError(f"{path} is held")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", stuck)
        with pytest.raises(DataError, match="must not be kept, and cannot be removed"):
            run.train()
    assert not (folder / "summary.json").exists()
    assert Run.open(folder).train()["rounds_lost"] == 0
    assert not (folder / PRIVATE).exists()


def test_a_run_that_lost_its_secrets_does_not_go_on(folder: Path) -> None:
    Run.create(seeded(*CORRELATED), folder)
    place = Place("algorithms/fedavg.py", "apply", "return", 2)
    status_of(start(lambda: killed_in(place, Run.open(folder).train)))
    _files.remove(folder / PRIVATE)
    with pytest.raises(DataError, match="put it back"):
        Run.open(folder).train()


def exported(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr("sys.argv", ["incrowd", "export", str(folder), str(out)])
    with pytest.raises(SystemExit):
        main()
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_handed_on_holds_nothing_that_was_not_listed(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that somebody put beside the others, a path, a seed, a time: none of it leaves."""
    leave(kind, folder / "run")
    (folder / "run" / "contributions.npy").write_bytes(b"client 3")
    found = exported(folder / "run", folder / "out", monkeypatch)
    assert "statement.txt" in found
    assert not any("contributions" in name or "checkpoint" in name or name.endswith(".sqlite") for name in found)
    read = (".json", ".csv", ".txt", ".md")
    text = "".join(path.read_text() for path in (folder / "out").rglob("*") if path.suffix in read)
    assert str(folder) not in text
    for word in ("seconds", '"seed"', "per_second", '"at"', "nonce"):
        assert word not in text
    dates = {path.stat().st_mtime for path in (folder / "out", *(folder / "out").rglob("*"))}
    assert dates == {_files.PUBLIC_TIME}
    if kind == "run":  # the control: the folder itself tells more
        text = "".join(path.read_text() for path in (folder / "run").rglob("*") if path.suffix in read)
        assert str(folder) in text
        assert "seconds" in json.loads((folder / "run" / "summary.json").read_text())


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


@pytest.mark.parametrize("unit", [pytest.param("client", marks=pytest.mark.slow), "record"])
def test_in_earnest_nothing_of_a_run_depends_on_how_long_it_took(
    unit: str, folder: Path, worked: Callable[[float], None]
) -> None:
    found, config = [], small(*UNEVEN) if unit == "client" else silos('run.trackers=["csv"]')
    for name, pace in (("quick", 0.001), ("slow", 0.5)):
        worked(pace)
        found.append(trained(folder / name, config))
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
