import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent

from incrowd._random import Floats, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.mechanism.clipping import NormalisedClip
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant, growing
from incrowd.privacy.release import PrivateRun
from tests.algorithms.silos import BUDGET, MODEL, SEEDED, ledger, paying, plan

ROOMY = Budget(epsilon=1e4, delta=1e-5)


def total(size: int = MODEL.size) -> Floats:
    return np.zeros(size)


def test_the_event_is_on_the_ledger_as_soon_as_there_is_a_round() -> None:
    its = paying()
    its.round(2)
    assert its.rounds == {2}
    stated = price(its.plan.round(2).event, delta=BUDGET.delta, relation=its.plan.relation).epsilon
    assert its.ledger.spent().epsilon == stated


def test_noise_can_be_drawn_once_a_step_and_not_once_more() -> None:
    its = paying()
    paid = its.round(0)
    first, second = paid.noise(total()), paid.noise(total())
    assert not np.array_equal(first, second)
    with pytest.raises(BudgetExceeded, match=r"all noise that was paid for \(noise\) is drawn"):
        paid.noise(total())
    assert len(its.rounds) == 1


@pytest.mark.parametrize(("factor", "accepted"), [(1, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_that_of_the_multiplier_that_was_charged(factor: float, accepted: bool) -> None:
    large = plan(clip_norm=0.5, records=3000, rounds=1, noise=4.0 * factor, budget=ROOMY)
    values = paying(large).round(0).noise(total(20_000))
    error = float(np.std(values)) / (4.0 * 0.5) - 1
    assert (abs(error) < 4 / math.sqrt(2 * 20_000)) is accepted
    assert abs(values.mean()) < 4 * np.std(values) / math.sqrt(20_000)


def test_a_simulation_repeats_a_round_that_was_charged_with_the_very_same_noise() -> None:
    its = paying()
    first, again = its.round(1), its.round(1)
    assert len(its.rounds) == 1
    assert np.array_equal(first.noise(total()), again.noise(total()))
    np.testing.assert_array_equal(first.batches.bits(9), again.batches.bits(9))


def test_in_earnest_a_round_is_not_repeated() -> None:
    its = paying(randomness=SystemRandomness())
    its.round(1)
    with pytest.raises(ConfigError, match="fresh noise would cost again"):
        its.round(1)
    assert len(its.rounds) == 1


def test_rounds_purposes_and_silos_of_one_seed_never_share_noise_or_batches() -> None:
    rounds = [paying(place=place).round(number) for place in (0, 1) for number in (0, 1)]
    drawn = [each.noise(total()).tobytes() for each in rounds]
    bits = [each.batches.bits(4).tobytes() for each in rounds]
    assert len({*drawn, *bits}) == 8


def test_runs_with_other_labels_share_the_budget_and_not_the_rounds() -> None:
    small = plan(noise=50.0)
    its = paying(small)
    other = paying(small, its.ledger, label="another")
    its.round(0)
    other.round(1)
    its.ledger.charge(small.round(0).event)  # someone else's, without a note
    assert (set(its.rounds), set(other.rounds)) == ({0}, {1})


def test_what_a_plan_has_left_is_given_back_once_the_run_is_over() -> None:
    its = paying()
    its.round(0)
    its.give_back()
    assert its.ledger.promised().epsilon == its.ledger.spent().epsilon
    with pytest.raises(ConfigError, match="it was released"):
        its.round(1)
    paying().give_back()  # of a run that reserved nothing there is nothing


def test_a_report_that_an_earlier_version_charged_still_counts() -> None:
    its, report = paying(plan(noise=50.0)), GaussianDpEvent(9.0)
    its.ledger.reserve([(report, 1)], label="run: report")
    its.ledger.charge(report, key="run: report", reservation="run: report", note={"round": 4, "report": "run"})
    alone = its.ledger.spent().epsilon
    assert alone == pytest.approx(price(report, delta=BUDGET.delta, relation=its.plan.relation).epsilon)
    its.round(0)
    assert set(its.rounds) == {0}
    assert its.statement().epsilon == its.ledger.spent().epsilon > alone


class Strict:
    """An owner who counts how often they are asked, and allows so many rounds."""

    def __init__(self, allowed: int) -> None:
        self.allowed, self.asked = allowed, 0

    def admit(self, *_: object) -> None:
        self.asked += 1
        if self.asked > self.allowed:
            raise BudgetExceeded("not today")

    def note(self, *_: object) -> dict[str, str]:
        return {"day": "today"}


def test_who_owns_the_ledger_has_the_last_word_before_anything_is_charged() -> None:
    its = paying(owner=Strict(0))
    with pytest.raises(BudgetExceeded, match="not today"):
        its.round(0)
    assert its.rounds == frozenset()
    assert its.ledger.spent().epsilon == 0


def test_the_owner_is_asked_once_for_a_round_that_a_simulation_repeats() -> None:
    owner = Strict(1)
    its = paying(owner=owner)
    its.round(0)
    its.round(0)
    assert owner.asked == 1
    its.check_room()  # what is reserved has its room
    assert its.ledger.entries()[-1].content()["note"]["day"] == "today"


def test_plans_for_clients_and_for_records_are_not_taken_for_each_other() -> None:
    for_clients = PlanConfig(members=40, schedule=constant(rounds=2, cohort=10)).calibrate(BUDGET)
    with pytest.raises(ConfigError, match="a RecordRun does not pay for its rounds: give the plan to a PrivateRun"):
        RecordRun(for_clients, ledger=ledger(), randomness=SEEDED)
    with pytest.raises(ConfigError, match="a PrivateRun does not pay for its rounds: give the plan to a RecordRun"):
        PrivateRun(plan(), ledger=ledger(), randomness=SEEDED, size=3)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"noise_by": "server"}, "steps"),
        ({"clip": NormalisedClip()}, "clip"),
        ({"sampling": Everyone}, "sampling"),
        ({"schedule": growing(rounds=4, first_cohort=10, last_cohort=40)}, "schedule"),
        ({"unit": "person"}, "unit"),
        ({"unit": "client", "noise_by": "server"}, "steps"),
    ],
)
def test_a_plan_that_no_silo_can_follow_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        replace(plan().config, **changes)
