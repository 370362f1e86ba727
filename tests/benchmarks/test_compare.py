from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

from contest.compare import Contest, match
from contest.lean import Lean
from contest.ours import Ours
from contest.works import Task
from incrowd._random import Floats
from incrowd.errors import IncrowdError
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
