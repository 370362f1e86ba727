"""Sums that come from elsewhere enter a round as if its own contributions had."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipped_sum import ClippedSum, Observed, Part
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import NoiseBy, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, Step
from incrowd.privacy.release import PrivateRun

SIZE, CLIENTS = 4, 3
BUDGET = Budget(epsilon=1e6, delta=1e-3)
ROWS = np.array([[0.5, 0, 0, 0], [0, 3, 4, 0], [np.nan, 0, 0, 0]])


@dataclass
class Far:
    """Clients whose sum is made elsewhere, by the same code."""

    clients: Sequence[int]
    change: Part | None = None
    asked: int = 0

    def collected(self, clip: Clip) -> Part:
        self.asked += 1
        if self.change is not None:
            return self.change
        total = ClippedSum(SIZE, clip, contributions_bound=CLIENTS)
        total.add(ROWS[list(self.clients)])
        return Part(observed=total.observed, total=total.close())


def run_of(*, clip: Clip | MedianClip | None = None, noise_by: NoiseBy = "server") -> PrivateRun:
    step = Step(rounds=2, cohort=CLIENTS, noise_multiplier=1.0)
    clip = clip or FixedClip(clip_norm=1.0)
    config = PlanConfig(members=CLIENTS, schedule=Schedule((step,)), sampling=Everyone, clip=clip, noise_by=noise_by)
    plan = config.plan(BUDGET)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(1), size=SIZE)


def part(steps: Sequence[int], *, step: float = 2.0**-30, observed: tuple[int, int, int] = (3, 0, 3)) -> Part:
    contributions, dropped, unclipped = observed
    seen = Observed(contributions=contributions, dropped=dropped, unclipped=unclipped)
    return Part(total=Whole(steps=np.array(steps, np.int64), step=step), observed=seen)


@pytest.mark.parametrize("there", [[0, 1, 2], [1]])
def test_a_sum_from_elsewhere_is_released_like_one_from_here(there: list[int]) -> None:
    here, far = run_of().round(0), run_of().round(0)
    here.add(ROWS, clients=range(CLIENTS))
    rest = [client for client in range(CLIENTS) if client not in there]
    far.add(ROWS[rest].reshape(-1, SIZE), clients=rest)
    far.add_cohort(Far(there))
    expected, found = here.release(), far.release()
    assert found.total.steps.tolist() == expected.total.steps.tolist()
    assert found.observed == expected.observed


def test_where_clients_noise_for_themselves_the_round_is_charged_before_they_are_asked() -> None:
    run = run_of(noise_by="party")
    charged = []

    class Asking(Far):
        def collected(self, clip: Clip) -> Part:
            charged.append(run.next_round)
            return part([2**35, 0, 0, 0], observed=(1, 0, 1))  # longer than three contributions without noise

    opened = run.round(0)
    opened.add_cohort(Asking([0]))
    opened.add_cohort(Asking([1, 2]))
    assert charged == [1, 1]
    assert opened.release().total.values.tolist() == [2 * 2.0**5, 0, 0, 0]


@pytest.mark.parametrize(
    "odd",
    [
        part([0, 0, 0]),
        part([2**40, 0, 0, 0]),
        part([0, 0, 0, 0], observed=(4, 0, 0)),
        part([0, 0, 0, 0], observed=(3, 2, 2)),
        part([0, 0, 0, 0], observed=(3, -2, 1)),
    ],
)
def test_what_can_be_no_sum_of_these_clients_is_refused(odd: Part) -> None:
    run = run_of()
    with pytest.raises(DataError):
        run.round(0).add_cohort(Far([0, 1, 2], change=odd))
    assert run.next_round == 0


def test_nobody_asked_is_noise_alone() -> None:
    nothing, empty = run_of().round(0), run_of().round(0)
    empty.add_cohort(Far([], change=part([0] * SIZE, observed=(0, 0, 0))))
    assert empty.release().total.steps.tolist() == nothing.release().total.steps.tolist()


def test_who_contributed_already_whose_norms_are_needed_or_who_is_late_is_not_asked() -> None:
    begun, median, over = run_of().round(0), run_of(clip=MedianClip()).round(0), run_of().round(0)
    begun.add_cohort(Far([0, 1]))
    over.release()
    for opened, words in ((begun, "contributed already"), (median, "norms of a cohort"), (over, "released")):
        far = Far([1, 2])
        with pytest.raises((ConfigError, DataError), match=words):
            opened.add_cohort(far)
        assert far.asked == 0
