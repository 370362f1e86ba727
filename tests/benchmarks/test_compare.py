import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from contest.compare import PEERS, SHORT, Competitor, Contest, Factory, match, take_turn
from contest.flower import FlowerProcess
from contest.lean import Lean
from contest.ours import Ours
from contest.works import Task, named
from incrowd._random import Floats
from incrowd.errors import ConfigError, DataError, IncrowdError
from tests.benchmarks.small import CNN, PERCEPTRON, task

HERE = ("lean",)


@dataclass
class Different:
    """The lean loop with a mistake in what it computes."""

    task: Task
    mistake: Callable[[Floats], Floats]
    name: str = "different"
    threads: int = 1
    timed: int = 0

    def update(self) -> Floats:
        return self.mistake(Lean(self.task).update())

    def round(self, number: int) -> float:
        raise AssertionError("it was timed")

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "mistake",
    [
        lambda total: total / PERCEPTRON.cohort,
        lambda total: 1.3 * total,
        lambda total: total + np.random.default_rng(0).normal(size=total.size) / 10,
        lambda total: np.full_like(total, np.nan),
    ],
    ids=["a mean", "a longer step", "noise", "not a number"],
)
def test_unequal_work_is_found_before_anything_is_timed(mistake: Callable[[Floats], Floats]) -> None:
    with pytest.raises(IncrowdError, match="different does other work than incrowd at small b10"):
        match(task(), {"different": partial(Different, mistake=mistake)}, turns=1)


def test_where_a_batch_is_all_examples_work_is_compared_within_rounding_and_the_grid() -> None:
    whole = task(batch_size=PERCEPTRON.examples)
    found = match(whole, {"lean": Lean}, turns=1)
    assert found.timings[1].difference < 2e-3
    with pytest.raises(IncrowdError, match="different does other work"):
        match(whole, {"different": partial(Different, mistake=lambda total: 1.01 * total)}, turns=1)


@pytest.mark.slow
def test_whole_steps_of_contributions_that_are_short_are_no_other_work() -> None:
    short = Task(work=named("gru").of(clients=100, examples=200), batch_size=100)
    found = match(short, {"lean": Lean}, turns=1)
    assert 2e-3 < found.timings[1].difference < 0.01
    with pytest.raises(IncrowdError, match="different does other work"):
        match(short, {"different": partial(Different, mistake=lambda total: 1.1 * total)}, turns=1)


@dataclass
class Chaotic(Different):
    """The same, but on long passes alone, as rounding goes astray."""

    def update(self) -> Floats:
        right = Lean(self.task).update()
        return self.mistake(right) if self.task.work.examples > SHORT else right

    def round(self, number: int) -> float:
        return float(number)


LONG = replace(PERCEPTRON, examples=2 * SHORT)


@pytest.mark.slow
def test_what_differs_on_long_passes_alone_is_rounding_and_is_reported() -> None:
    found = match(Task(work=LONG, batch_size=10), {"chaotic": partial(Chaotic, mistake=lambda one: 2 * one)}, turns=1)
    assert found.timings[1].difference == pytest.approx(1, rel=0.01)


def test_what_differs_on_short_passes_too_is_other_work() -> None:
    with pytest.raises(IncrowdError, match="other work"):
        match(Task(work=LONG, batch_size=10), {"different": partial(Different, mistake=lambda one: 2 * one)}, turns=1)


@dataclass(frozen=True, kw_only=True)
class WithDifferent(Contest):
    """One more, who makes a mistake in small batches."""

    def _others(self, flower: FlowerProcess) -> dict[str, Factory]:
        def made(task: Task) -> Competitor:
            return Different(task, mistake=lambda one: 2 * one) if task.batch_size == 10 else Lean(task)

        return {"different": made}


@pytest.mark.slow
def test_what_was_measured_is_kept_when_one_task_is_other_work() -> None:
    found = WithDifferent(works=[PERCEPTRON], batch_sizes=[15, 10], against=HERE, turns=1, turn_s=0).run()
    assert {one.batch for one in found.results} == {15}
    assert "different does other work than incrowd at small b10" in found.skipped["small b10"]
    with pytest.raises(IncrowdError, match="other work"):
        WithDifferent(works=[PERCEPTRON], batch_sizes=[10], against=HERE, turns=1, turn_s=0).run()


@dataclass(frozen=True, kw_only=True)
class WithBroken(Contest):
    """One more, who fails at small batches."""

    def _others(self, flower: FlowerProcess) -> dict[str, Factory]:
        def made(task: Task) -> Competitor:
            return Lean(task) if task.batch_size != 10 else Lean(replace(task, work=replace(task.work, widths=())))

        return {"broken": made}


@pytest.mark.slow
def test_what_was_measured_is_kept_when_somebody_fails_at_one_task() -> None:
    found = WithBroken(works=[PERCEPTRON], batch_sizes=[15, 10], against=HERE, turns=1, turn_s=0).run()
    assert {one.batch for one in found.results} == {15}
    assert found.skipped["small b10"]
    with pytest.raises(Exception, match=re.escape(found.skipped["small b10"])):
        WithBroken(works=[PERCEPTRON], batch_sizes=[10], against=HERE, turns=1, turn_s=0).run()


def test_other_batches_are_found() -> None:
    one = task()
    other = Ours(one)
    total = other.update(round=1)
    other.close()
    with pytest.raises(IncrowdError, match="other work"):
        match(one, {"different": partial(Different, mistake=lambda _: total)}, turns=1)


@pytest.mark.slow
def test_equal_work_is_timed_in_turns() -> None:
    before = torch.get_num_threads()
    found = match(task(), {"lean": Lean, "double": partial(Ours, threads=2)}, turns=3)
    assert [(one.name, one.threads, len(one.seconds)) for one in found.timings] == [
        ("incrowd", 1, 3),
        ("lean", 1, 3),
        ("incrowd", 2, 3),
    ]
    assert all(second > 0 for one in found.timings for second in one.seconds)
    assert max(one.difference for one in found.timings) < 1e-3  # our sums are of whole steps
    assert len(found.overheads) == 3
    assert found.peak > 0
    assert torch.get_num_threads() == before


class Tiring(Lean):
    """Does so many rounds, and no more."""

    def round(self, number: int) -> float:
        if number == 5:
            raise StopIteration
        return super().round(number)


def test_a_turn_is_of_rounds_one_after_the_other_for_as_long_as_it_lasts() -> None:
    taken: list[float] = []
    take_turn(Tiring(task()), taken, 0.0)
    assert len(taken) == 1
    with pytest.raises(StopIteration):
        take_turn(Tiring(task()), taken, 3600.0)
    assert len(taken) == 5


@pytest.mark.slow
def test_a_contest_measures_every_work_at_every_batch_size() -> None:
    said: list[str] = []
    found = Contest(works=[PERCEPTRON, CNN], batch_sizes=[10, 15], against=HERE, turns=1, turn_s=0).run(said.append)
    measured = {(one.work, one.batch) for one in found.results if one.name == "lean"}
    assert measured == {(work, batch) for work in ("small", "small cnn") for batch in (10, 15)}
    assert len(said) == 4
    assert found.machine["data"] == "synthetic"
    assert found.memory is None
    assert {"small b10 vs lean", "small cnn b15 vs lean"} <= set(found.ratios)


@pytest.mark.slow
def test_who_is_not_installed_is_left_out_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "pfl", ("no_such_package", "pip install no-such-package"))
    contest = Contest(works=[PERCEPTRON], batch_sizes=[10], against=["lean", "pfl"], turns=1)
    found = contest.run()
    assert found.skipped["pfl"] == "not installed: pip install no-such-package"
    assert {one.name for one in found.results} == {"incrowd", "lean"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says which processors a process may use")
def test_with_one_processor_nothing_is_said_about_two_threads() -> None:
    from contest.peak import one_processor

    with one_processor():
        skipped = Contest(works=[PERCEPTRON], against=HERE).skipped
    assert skipped == {"incrowd on 2 threads": "this process may use one processor only"}


def test_who_is_unknown_or_comes_later_is_refused() -> None:
    with pytest.raises(ConfigError, match="against = 'nobody': give one or several of lean, pfl, flower"):
        Contest(works=[PERCEPTRON], against=["nobody"])
    with pytest.raises(ConfigError, match="against = 'opacus': it trains on records"):
        Contest(works=[PERCEPTRON], against=["opacus"])


def test_an_empty_contest_is_refused() -> None:
    with pytest.raises(ConfigError, match="work = "):
        Contest(works=[])
    with pytest.raises(ConfigError, match="batch = "):
        Contest(works=[PERCEPTRON], batch_sizes=[])
    with pytest.raises(ConfigError, match="turns = 0"):
        Contest(works=[PERCEPTRON], turns=0)


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="train-images"):
        Contest(works=[PERCEPTRON], against=HERE, folder=tmp_path).run()
