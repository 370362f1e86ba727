import numpy as np
import pytest

from incrowd._random import Floats
from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import PlanConfig
from incrowd.privacy.plan.sampling import constant
from incrowd.privacy.release import PrivateRun
from tests.algorithms.silos import BUDGET, MODEL, SEEDED, ledger, paying, plan


def total(size: int = MODEL.size) -> Floats:
    return np.zeros(size)


def test_noise_can_be_drawn_once_a_step_and_not_once_more() -> None:
    its = paying()
    paid = its.round(0)
    first, second = paid.noise(total()), paid.noise(total())
    assert not np.array_equal(first, second)
    with pytest.raises(BudgetExceeded, match=r"all noise that was paid for \(noise\) is drawn"):
        paid.noise(total())
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
