from typing import Any

import numpy as np
import pytest
import torch

from incrowd._random import SystemRandomness
from incrowd.algorithms.silos import Silo
from incrowd.errors import BudgetExceeded, ConfigError, LedgerMismatch
from incrowd.privacy.account.accounting import Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from tests.algorithms.silos import BUDGET, RECORDS, ROUNDS, SEEDED, Curious, paying, plan, silo, zeros


def test_a_run_meets_its_budget_in_the_last_round_and_has_left_after_it() -> None:
    its = silo()
    answers = [its.answer(number, zeros()) for number in range(ROUNDS)]
    epsilons = [answer.epsilon for answer in answers]
    assert epsilons == sorted(epsilons)
    assert 0.999 * BUDGET.epsilon < epsilons[-1] <= BUDGET.epsilon
    stated = its.run.plan
    assert epsilons[-1] == price(compose(stated.runs), delta=BUDGET.delta, relation=stated.relation).epsilon
    entries = len(its.run.ledger.entries())
    late = its.answer(ROUNDS, zeros())
    assert (late.update, late.absence, late.epsilon) == (None, "budget spent", epsilons[-1])
    assert len(its.run.ledger.entries()) == entries


def test_a_ledger_without_room_for_the_whole_plan_pays_for_no_round() -> None:
    busy = paying(plan())
    busy.ledger.charge(plan().round(0).event)
    curious = Curious(busy.ledger)
    answer = silo(busy, engine=curious).answer(0, zeros())
    assert (answer.absence, curious.seen, busy.reserved) == ("budget spent", [], False)
    with pytest.raises(BudgetExceeded):
        busy.check_room()


def test_the_round_is_charged_before_the_engine_sees_it() -> None:
    run = paying()
    curious = Curious(run.ledger)
    answer = silo(run, engine=curious).answer(0, zeros())
    ((training, charged),) = curious.seen
    assert charged == answer.epsilon > 0
    assert training.noise_multiplier == run.plan.noise_multiplier
    assert answer.update is not None
    np.testing.assert_allclose(answer.update, np.mean(curious.sums, axis=0), rtol=1e-6)


def test_a_crash_after_the_charge_loses_the_round_in_earnest_and_repeats_it_in_a_simulation() -> None:
    for randomness, repeats in ((SystemRandomness(), False), (SEEDED, True)):
        its = silo(paying(randomness=randomness))
        sent = its.answer(0, zeros())
        spent = its.epsilon
        later = silo(paying(its.run.plan, its.run.ledger, randomness=randomness))  # before anything was kept
        again = later.answer(0, zeros())
        assert its.epsilon == spent
        if repeats:
            assert sent.update is not None
            np.testing.assert_array_equal(again.update, sent.update)
        else:
            assert (again.update, again.absence, again.epsilon) == (None, "round lost", spent)
        assert its.answer(1, zeros()).absence is None


@pytest.mark.parametrize("threads", [1, 3])
def test_torch_has_the_silo_s_threads_in_training_and_its_own_afterwards(threads: int) -> None:
    before, run = torch.get_num_threads(), paying()
    curious: Any = Curious(run.ledger)
    Silo("north", run, engine=curious, threads=threads).answer(0, zeros())
    assert curious.threads == threads
    assert torch.get_num_threads() == before
    with pytest.raises(ConfigError, match="threads = 0"):
        Silo("north", run, engine=curious, threads=0)


def test_a_ledger_of_another_relation_is_refused() -> None:
    with pytest.raises(LedgerMismatch, match="open a ledger of the plan's relation"):
        paying(its_ledger=Ledger.in_memory(budget=BUDGET, relation=Relation.REPLACE_ONE))


@pytest.mark.parametrize(("declared", "allowed"), [(39, False), (40, True), (44, True), (45, False), (400, False)])
def test_fewer_or_more_records_than_declared_are_refused_without_a_number(declared: int, allowed: bool) -> None:
    run = paying(plan(records=declared, batch_size=10))
    if allowed:
        assert silo(run).answer(0, zeros()).absence is None
        return
    with pytest.raises(ConfigError, match=f"records = {declared}: the records of north are fewer or more") as no:
        silo(run)
    assert str(RECORDS) not in str(no.value).replace(str(declared), "")
