import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from contest import works
from contest.records import MODES, Opacus, Ours, RecordContest, RecordTask, match
from contest.report import RecordReport, RecordResult
from incrowd._random import Floats
from incrowd.errors import IncrowdError
from tests.benchmarks.small import PERCEPTRON, task

TASK = RecordTask(task=task(batch_size=10), steps=3)


@dataclass
class Different:
    """Our engine with a mistake in what it sums."""

    task: RecordTask
    mistake: Callable[[Floats], Floats]
    name: str = field(default="different", init=False)

    def clipped_sum(self, number: int) -> Floats:
        return self.mistake(Ours(self.task).clipped_sum(number))

    def steps(self, number: int) -> tuple[int, float]:
        raise AssertionError("it was timed")


@pytest.mark.parametrize(
    "mistake",
    [lambda total: total / 10, lambda total: 1.001 * total, lambda total: np.full_like(total, np.nan)],
    ids=["a mean", "a longer bound", "not a number"],
)
def test_unequal_work_is_found_before_anything_is_timed(mistake: Callable[[Floats], Floats]) -> None:
    with pytest.raises(IncrowdError, match="different does other work than incrowd at records small b10"):
        match(TASK, {"different": lambda one: Different(one, mistake)}, rounds=1)


@pytest.mark.parametrize("mode", MODES.values())
def test_opacus_clips_as_we_do_and_then_trains_with_noise(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Secure RNG turned off")
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        other = Opacus("opacus", TASK, mode=mode)
        expected = Ours(TASK).clipped_sum(0)
        np.testing.assert_allclose(other.clipped_sum(0), expected, rtol=1e-3, atol=1e-5)
        before = torch.cat([p.detach().reshape(-1).clone() for p in other.parameters])
        torch.testing.assert_close(before, TASK.task.start)
        records, seconds = other.steps(0)
    moved = torch.cat([p.detach().reshape(-1) for p in other.parameters]) - before
    # Three steps of at least the noise: 0.1 / 10 times a Gaussian of 1 each.
    assert float(moved.std()) > 0.009
    assert records == sum(map(len, TASK.batches(0)))
    assert seconds > 0


def test_a_contest_measures_all_modes_at_every_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(works.WORKS, "small", PERCEPTRON)
    said: list[str] = []
    found = RecordContest(models=["small"], batch_sizes=[5, 10], rounds=1, steps=2).run(said.append)
    others = ("incrowd exact noise", "plain", *MODES)
    assert set(found.ratios) == {f"records small b{size} vs {name}" for size in (5, 10) for name in others}
    assert len(said) == 2
    assert found.machine["data"] == "synthetic"
    assert not found.skipped


def report() -> RecordReport:
    ours = RecordResult.of(TASK.task, "incrowd", rates=[10.0, 500.0, 40.0], difference=0.0)
    other = RecordResult.of(TASK.task, "opacus", rates=[5.0], difference=2e-6)
    plain = RecordResult.of(TASK.task, "plain", rates=[50.0], difference=None)
    return RecordReport(results=[ours, other, plain], skipped={"nobody": "not here"}, machine={"processors": 2})
