"""Searches of a few small runs: what they cost, that they go on, and that nothing of what must not be seen is left."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from incrowd._random import SeededRandomness
from incrowd.errors import BudgetExceeded, DataError, IncrowdError, LedgerError
from incrowd.privacy.account.selection import LAWS, Repetitions
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.folder import LEDGER, PRIVATE, RESULT, Summary
from incrowd.runs.run import Run
from incrowd.runs.search import Search, axis
from incrowd.runs.sweep import ATTEMPTS, Sweep

BASE = (
    "features={name='none'}",
    "model={kind='linear'}",
    "data.clients=12",
    "privacy.rounds=2",
    "run.randomness=seeded",
    "run.seed=7",
)


def search(*axes: str, **wanted: Any) -> Search:
    overrides = (*BASE, *wanted.pop("overrides", ()))
    return Search(overrides=overrides, axes=[axis(text) for text in axes or ["server.learning_rate=2,16"]], **wanted)


def private(seed: int = 7, *, mean: float = 3.0, shape: float = 1.0) -> Search:
    overrides = (f"run.seed={seed}",)
    return search(select="private", repetitions=Repetitions(mean=mean, shape=shape), overrides=overrides)


def run(wanted: Search, folder: Path) -> Summary:
    return Sweep(search=wanted, out=folder / "search").run()


def spent(folder: Path) -> float:
    with Ledger.read(folder / "search" / LEDGER) as ledger:
        return ledger.spent().epsilon


@pytest.mark.slow
def test_a_grid_is_searched_and_every_run_charged(folder: Path) -> None:
    said: list[str] = []
    wanted = search("server.learning_rate=2,16", "privacy.rounds=1,2")
    found = Sweep(search=wanted, out=folder / "search", say=said.append).run()
    assert [row["settings"] for row in found["runs"]] == [
        {"server.learning_rate": rate, "privacy.rounds": rounds} for rate in (2, 16) for rounds in (1, 2)
    ]
    assert found["best"]["accuracy"] == max(row["accuracy"] for row in found["runs"])
    assert found["epsilon_of_search"] == pytest.approx(spent(folder))
    assert found["epsilon_of_search"] > 2 * found["runs"][0]["epsilon"]
    assert found["validation_set"].startswith("297 examples, public")
    assert any("flattering" in caveat for caveat in found["statement"]["caveats"])
    assert found["statement"]["epsilon"] == found["epsilon_of_search"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert len(said) == 5
    assert said[-1].startswith("run ")


class Stop(Exception):
    pass


def stopping(after: int) -> Callable[[str], None]:
    """Something to tell lines that stops the search after so many finished runs."""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == after + 1:
            raise Stop

    return say


@pytest.mark.slow
def test_a_search_that_was_cut_off_goes_on_and_repeats_no_run(folder: Path) -> None:
    wanted = search("server.learning_rate=2,4,8")
    whole = run(wanted, folder / "whole")
    with pytest.raises(Stop):
        Sweep(search=wanted, out=folder / "search", say=stopping(1)).run()
    first = folder / "search/runs/0000/model.safetensors"
    before = first.stat().st_mtime_ns
    assert spent(folder) == pytest.approx(whole["runs"][0]["epsilon"])
    found = run(wanted, folder)
    assert first.stat().st_mtime_ns == before
    assert spent(folder) == pytest.approx(whole["epsilon_of_search"])
    for ours, theirs in zip(found["runs"], whole["runs"], strict=True):
        assert (ours["accuracy"], ours["loss"]) == (theirs["accuracy"], theirs["loss"])


def test_a_run_that_was_paid_for_and_is_gone_is_not_trained_again(folder: Path) -> None:
    with pytest.raises(Stop):
        Sweep(search=search(), out=folder / "search", say=stopping(1)).run()
    shutil.rmtree(folder / "search/runs/0000")
    with pytest.raises(DataError, match="paid for"):
        run(search(), folder)
    for name in (LEDGER, f"{LEDGER}.witness"):
        (folder / "search" / name).unlink()
    with pytest.raises(IncrowdError):  # nor does it help to take the ledger away
        run(search(), folder)


def test_a_budget_that_does_not_allow_the_search_leaves_nothing_behind(folder: Path) -> None:
    with pytest.raises(BudgetExceeded):
        run(search(budget=9.0), folder)
    assert not (folder / "search").exists()


def test_of_a_private_selection_only_the_best_is_left(folder: Path) -> None:
    found = run(private(), folder)
    assert found["runs"] == [found["best"]]
    assert found["best"]["epsilon"] == found["epsilon_of_search"] == pytest.approx(spent(folder))
    assert 8 < found["epsilon_of_search"] < 3 * 8
    left = sorted(path.name for path in (folder / "search").iterdir())
    assert left == [
        "best", "ledger.sqlite", "ledger.sqlite.witness", RESULT, "search.json", "search.lock"
    ]  # fmt: skip
    best = sorted(path.name for path in (folder / "search/best").iterdir())
    assert best == ["model.safetensors", "statement.json", "statement.txt", "summary.json"]
    statement = json.loads((folder / "search/best/statement.json").read_text())
    assert statement["epsilon"] == found["epsilon_of_search"]
    with Ledger.read(folder / "search" / LEDGER) as ledger:
        assert len([entry for entry in ledger.entries() if entry.kind == "charge"]) == 1
    assert found["expected_runs"] == 3.0
    # The generating function of the geometric law of mean 3 is x / (3 - 2 x), at 1/2 it is 1/4.
    assert found["chance_that_a_setting_is_tried"] == pytest.approx(3 / 4)
    assert run(private(), folder) == found


def attempts(seed: int, mean: float, shape: float) -> int:
    return Repetitions(mean=mean, shape=shape).sample(SeededRandomness(seed=seed).stream("attempts"))


def test_the_number_of_runs_is_drawn_and_kept_over_an_interruption(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = next(seed for seed in range(100) if attempts(seed, 3.0, 1.0) == 3)
    trained: list[Path] = []
    train = Run.train

    def counting(self: Run, watchers: Any = ()) -> Any:
        if len(trained) == 2:
            trained.clear()
            raise Stop
        trained.append(self.folder)
        return train(self, watchers)

    monkeypatch.setattr(Run, "train", counting)
    with pytest.raises(Stop):
        run(private(seed), folder)
    picks = json.loads((folder / "search" / PRIVATE / ATTEMPTS).read_text())
    assert len(picks) == 3
    found = run(private(seed), folder)
    assert [path.name for path in trained] == [picks[2][0]]
    assert found["best"] is not None
    assert spent(folder) == pytest.approx(found["epsilon_of_search"])


def test_a_selection_whose_draw_is_gone_is_not_drawn_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        patched.setattr(Run, "train", stop)
        with pytest.raises(Stop):
            run(private(), folder)
    kept = (folder / "search" / PRIVATE / ATTEMPTS).read_text()
    (folder / "search" / PRIVATE / ATTEMPTS).unlink()
    with pytest.raises(DataError, match="paid for"):
        run(private(), folder)
    (folder / "search" / PRIVATE / ATTEMPTS).write_text(kept)
    shutil.rmtree(folder / "search" / PRIVATE / json.loads(kept)[0][0])
    with pytest.raises(DataError, match="paid for"):
        run(private(), folder)


def test_no_run_at_all_may_be_drawn_and_is_paid_for(folder: Path) -> None:
    seed = next(seed for seed in range(100) if attempts(seed, 1.0, LAWS["poisson"]) == 0)
    found = run(private(seed, mean=1.0, shape=LAWS["poisson"]), folder)
    assert (found["best"], found["runs"]) == (None, [])
    assert found["epsilon_of_search"] == pytest.approx(spent(folder))
    assert spent(folder) > 7


def test_an_edited_ledger_stops_the_search(folder: Path) -> None:
    with pytest.raises(Stop):
        Sweep(search=search(), out=folder / "search", say=stopping(1)).run()
    path = folder / "search" / LEDGER
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(LedgerError):
        run(search(), folder)
