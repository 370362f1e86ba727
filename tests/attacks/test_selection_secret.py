"""What a private selection keeps back: how many attempts there were, and what they were.

Attack: compare what is left, said and dated after a selection of one attempt with what is after one of three that
selects the same. Whatever differs tells their number, on whose secrecy the price rests.
"""

import json
import re
import signal
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incrowd import _files
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.privacy.account.selection import Repetitions
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs import trackers
from incrowd.runs.folder import LEDGER, PRIVATE, RESULT, SUMMARY, listed
from incrowd.runs.run import Run
from incrowd.runs.search import Search, axis
from incrowd.runs.sweep import Sweep
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import Place, killed_in
from tests.runs.small import SMALL

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:.*delta")]

# Under this seed the first of three attempts is the best, so that one attempt and three select the same.
SEED = 5
OPTIONS = (*SMALL, "privacy.rounds=2", "privacy.delta=0.1", "run.randomness=seeded", f"run.seed={SEED}")


RANDOM = re.compile(r"[0-9a-f]{16,}")  # names that are drawn for each search


def selection(*more: str) -> Search:
    return Search(
        overrides=(*OPTIONS, *more),
        axes=[axis("server.learning_rate=8")],
        select="private",
        repetitions=Repetitions(mean=3.0, shape=1.0),
    )


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many attempts are drawn."""

    def say(count: int) -> None:
        monkeypatch.setattr(Repetitions, "sample", lambda *_: count)

    return say


def selected(place: Path, monkeypatch: pytest.MonkeyPatch, *, search: Search | None = None) -> dict[str, Any]:
    """All that can be found below a folder after a selection, and all that was said: made comparable."""
    for name in ("tmp", "state"):
        _files.folder(place / name)
    monkeypatch.setenv("XDG_STATE_HOME", str(place / "state"))
    monkeypatch.setenv("INCROWD_STATE", str(place / "state"))
    monkeypatch.setenv("TMPDIR", str(place / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    said: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        result = Sweep(search=search or selection(), out=place / "search", say=said.append).run()
    files = {str(path.relative_to(place)): _seen(path, place) for path in sorted(place.rglob("*"))}
    return {
        "files": files,
        "said": said,
        "warnings": sorted(str(one.message) for one in warned),
        "result": json.dumps(result).replace(str(place), ""),
        "listed": json.dumps(listed(place)).replace(str(place), ""),
    }


def _seen(path: Path, place: Path) -> tuple[int, float | None, object]:
    """Rights, date and content; of a ledger its entries."""
    inside = path.is_relative_to(place / "search")
    date = path.stat().st_mtime if inside else None
    if path.is_dir():
        return path.stat().st_mode, date, sorted(one.name for one in path.iterdir())
    if path.name == LEDGER:
        with Ledger.read(path) as ledger:
            entries = [(entry.kind, entry.at, entry.content()) for entry in ledger.entries()]
            return path.stat().st_mode, date, RANDOM.sub("#", str(entries))
    if path.suffix == ".witness":
        return path.stat().st_mode, date, json.loads(path.read_text())["entries"]
    if path.suffix == ".json":
        return path.stat().st_mode, date, RANDOM.sub("#", path.read_text()).replace(str(place), "")
    return path.stat().st_mode, date, path.read_bytes().replace(str(place).encode(), b"")


def test_after_one_attempt_and_after_three_everything_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attempts: Callable[[int], None]
) -> None:
    found = []
    for count in (1, 3):
        attempts(count)
        found.append(selected(folder / str(count), monkeypatch))
    assert found[0] == found[1]
    assert "result.json" in " ".join(found[0]["files"])


@pytest.mark.parametrize("broken", ["remove", "undate"])
def test_control_what_is_not_removed_or_dated_tells(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attempts: Callable[[int], None], broken: str
) -> None:
    """The same comparison where deletions fail silently, or files keep their dates."""
    found = []
    for count in (1, 3):
        attempts(count)
        with monkeypatch.context() as patched:
            patched.setattr(_files, broken, lambda _: None)
            found.append(selected(folder / str(count), monkeypatch))
    assert found[0]["files"] != found[1]["files"]


def test_control_the_runs_of_a_search_that_shows_all_are_seen(folder: Path) -> None:
    found = []
    for name, rates in (("one", "8"), ("three", "8,9,10")):
        said: list[str] = []
        search = Search(overrides=OPTIONS, axes=[axis(f"server.learning_rate={rates}")])
        Sweep(search=search, out=folder / name, say=said.append).run()
        found.append((len(said), len(list((folder / name / "runs").iterdir()))))
    assert found == [(2, 1), (4, 3)]


@pytest.mark.parametrize("name", ["csv", "jsonl", "tensorboard", "mlflow", "wandb"])
def test_a_tracker_that_would_be_told_of_all_attempts_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"run\.trackers = .*leave them out"):
        Sweep(search=selection(f'run.trackers=["{name}"]'), out=folder / "search").run()
    assert not (folder / "search").exists()


def test_control_a_tracker_would_be_told_of_all_attempts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setitem(trackers.BUILT_IN, "csv", lambda place: _Telling(told, place.name))
    rates = [axis("server.learning_rate=8,9,10")]
    Sweep(search=Search(overrides=(*OPTIONS, 'run.trackers=["csv"]'), axes=rates), out=folder / "search").run()
    assert sorted(set(told)) == ["0000", "0001", "0002"]


class _Telling:
    """A tracker that is told in another place."""

    def __init__(self, told: list[str], name: str) -> None:
        self._told, self._name = told, name

    def start(self, *_: object) -> None:
        self._told.append(self._name)

    def round(self, *_: object) -> None: ...

    def end(self, *_: object) -> None: ...


def test_attempts_that_cannot_be_removed_are_an_error_and_nothing_is_published(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attempts: Callable[[int], None]
) -> None:
    attempts(2)

    def stuck(path: Path) -> None:
        raise OSError(f"{path} is held")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", stuck)
        with pytest.raises(DataError, match="must not be kept, and cannot be removed"):
            Sweep(search=selection(), out=folder / "search").run()
        assert not (folder / "search" / RESULT).exists()
    found = Sweep(search=selection(), out=folder / "search").run()
    assert found["best"] is not None
    assert not (folder / "search" / PRIVATE).exists()


PUBLISHING = [
    Place("runs/sweep.py", "_moved", "return", 1),
    Place("runs/sweep.py", "_published", "call", 1),
    Place("incrowd/_files.py", "remove", "return", 8),
    Place("incrowd/_files.py", "undate", "call", 1),
    Place("incrowd/_files.py", "undate", "call", 3),
    Place("runs/sweep.py", "_published", "return", 1),
]


@pytest.mark.slow
@pytest.mark.parametrize("place", PUBLISHING, ids=lambda place: f"{place.function}-{place.happening}-{place.time}")
def test_wherever_it_is_killed_nothing_more_is_left_in_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attempts: Callable[[int], None], place: Place
) -> None:
    attempts(3)
    whole = selected(folder / "whole", monkeypatch)
    search = folder / "killed" / "search"
    sweep = Sweep(search=selection(), out=search)
    assert status_of(start(lambda: killed_in(place, sweep.run))) == -signal.SIGKILL
    again = selected(folder / "killed", monkeypatch)
    for found in (whole, again):  # what was killed computed its prices in a process of its own
        found["files"] = {name: seen for name, seen in found["files"].items() if name.startswith("search")}
    for what in ("files", "result", "listed"):
        assert again[what] == whole[what]


def test_until_then_the_attempts_are_for_this_user_alone_and_nameless(
    folder: Path, monkeypatch: pytest.MonkeyPatch, attempts: Callable[[int], None]
) -> None:
    """A crash in the middle leaves them until the search goes on; an error that names one does not tell how many."""
    attempts(3)

    def fails(self: Run, _: object = ()) -> None:
        raise IncrowdError(f"{self.folder} is full")

    sweep = Sweep(search=selection(), out=folder / "search")
    with monkeypatch.context() as patched:
        patched.setattr(Run, "train", fails)
        with pytest.raises(IncrowdError, match=r"/private/[0-9a-f]{16} is full$"):
            sweep.run()
    assert (folder / "search" / PRIVATE).stat().st_mode & 0o077 == 0
    assert len(listed(folder)) == 1
    assert listed(folder)[0]["state"] == "a search, not over"
    found = Sweep(search=selection(), out=folder / "search").run()
    assert json.loads((Path(found["best"]["run"]) / SUMMARY).read_text())["seconds"] is None
    assert not (folder / "search" / PRIVATE).exists()
