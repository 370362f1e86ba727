import math

import numpy as np
import pytest
import torch

from incrowd._random import SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, LedgerMismatch
from incrowd.federated.counter import Counter
from incrowd.federated.silo import Silo
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.calibrate import CONSTANT_EPSILON, CONSTANT_NOISE, SQUARE_ROOT, Pace
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.silo_plan import RELATION
from tests.federated.silos import BUDGET, MODEL, RECORDS, ROUNDS, Curious, account, plan, records, silo, zeros


@pytest.mark.parametrize(
    ("pace", "shape"),
    [(CONSTANT_NOISE, None), (CONSTANT_EPSILON, lambda share: share), (SQUARE_ROOT, math.sqrt)],
    ids=["constant-noise", "constant-epsilon", "square-root"],
)
def test_a_run_meets_its_budget_in_the_last_round_and_follows_its_pace(pace: Pace, shape: object) -> None:
    its = silo(plan(noise=pace))
    answers = [its.answer(number, zeros()) for number in range(ROUNDS)]
    epsilons = [answer.epsilon for answer in answers]
    assert 0.999 * BUDGET.epsilon < epsilons[-1] <= BUDGET.epsilon
    assert epsilons == sorted(epsilons)
    if callable(shape):
        targets = [BUDGET.epsilon * shape(number / ROUNDS) for number in range(1, ROUNDS + 1)]
        assert epsilons == pytest.approx(targets, rel=1e-3)
    runs = [run for answer in answers for run in its.plan.runs(answer.noise_multiplier or 0.0)]
    assert epsilons[-1] == price(compose(runs), delta=BUDGET.delta, relation=RELATION).epsilon


def test_after_the_last_planned_round_it_has_left() -> None:
    its = silo()
    for number in range(ROUNDS):
        assert its.answer(number, zeros()).absence is None
    charged, before = len(its.account.ledger.entries()), its.epsilon
    late = its.answer(ROUNDS, zeros())
    assert (late.update, late.absence, late.epsilon) == (None, "budget spent", before)
    assert len(its.account.ledger.entries()) == charged


def test_with_a_given_multiplier_it_leaves_before_the_round_that_would_break_the_budget() -> None:
    curious = Curious(account().ledger)
    its = silo(plan(noise=2.0, rounds=20), account(curious.ledger), engine=curious)
    answers = [its.answer(number, zeros()) for number in range(20)]
    stays = [answer.absence is None for answer in answers]
    last = stays.count(True)
    assert 0 < last < 20
    assert stays == [True] * last + [False] * (20 - last)
    assert its.epsilon <= BUDGET.epsilon
    one_more = price(compose([(plan().event(2.0), last + 1)]), delta=BUDGET.delta, relation=RELATION)
    assert one_more.epsilon > BUDGET.epsilon
    assert len(curious.seen) == last  # nothing was trained for a round that was refused


def test_the_round_is_charged_before_the_engine_sees_it() -> None:
    curious = Curious(account().ledger)
    its = silo(its_account=account(curious.ledger), engine=curious)
    answer = its.answer(0, zeros())
    ((training, charged),) = curious.seen
    assert charged == answer.epsilon > 0
    assert training.noise_multiplier == answer.noise_multiplier
    assert answer.update is not None
    np.testing.assert_allclose(answer.update, np.mean(curious.sums, axis=0), rtol=1e-6)


def test_an_engine_that_takes_a_step_too_many_sends_nothing() -> None:
    curious = Curious(account().ledger, calls=3)
    its = silo(its_account=account(curious.ledger), engine=curious)
    with pytest.raises(BudgetExceeded, match="all noise that was paid for"):
        its.answer(0, zeros())


def test_missed_rounds_leave_more_budget_for_those_that_are_left() -> None:
    regular, absent = silo(), silo()
    last = [regular.answer(number, zeros()) for number in range(ROUNDS)][-1]
    rare = [absent.answer(number, zeros()) for number in (0, ROUNDS - 1)][-1]
    assert rare.noise_multiplier is not None
    assert last.noise_multiplier is not None
    assert rare.noise_multiplier < last.noise_multiplier
    assert 0.999 * BUDGET.epsilon < rare.epsilon <= BUDGET.epsilon


def test_other_spending_and_reservations_on_the_ledger_count() -> None:
    free, busy = silo(), silo()
    busy.account.ledger.charge(plan().event(8.0))
    busy.account.ledger.reserve([(plan().event(8.0), 2)], label="someone else's")
    usual, careful = free.answer(0, zeros()), busy.answer(0, zeros())
    assert careful.noise_multiplier is not None
    assert usual.noise_multiplier is not None
    assert careful.noise_multiplier > usual.noise_multiplier
    for number in range(1, ROUNDS):
        busy.answer(number, zeros())
    assert 0.999 * BUDGET.epsilon < busy.account.ledger.promised().epsilon <= BUDGET.epsilon


def test_a_crash_after_the_charge_loses_the_round_in_earnest_and_repeats_it_in_a_simulation() -> None:
    for randomness, repeats in ((SystemRandomness(), False), (silo().account.randomness, True)):
        its = silo(its_account=account(randomness=randomness))
        sent = its.answer(0, zeros())
        spent = its.epsilon
        again = silo(its_account=its.account).answer(0, zeros())  # as after a restart, before anything was kept
        assert its.epsilon == spent
        if repeats:
            assert sent.update is not None
            np.testing.assert_array_equal(again.update, sent.update)
        else:
            assert (again.update, again.absence, again.epsilon) == (None, "round lost", spent)
        assert its.answer(1, zeros()).absence is None


def test_what_is_sent_is_float64_and_has_learnt_something() -> None:
    its = silo(
        plan(budget=Budget(epsilon=400.0, delta=1e-5), epochs=5),
        roomy := account(Ledger.in_memory(budget=Budget(epsilon=400.0, delta=1e-5), relation=RELATION)),
    )
    answer = its.answer(0, zeros())
    assert answer.update is not None
    assert answer.update.dtype == np.float64
    held, right = Counter(model=MODEL, records=records(roomy.place)).count(answer.update)
    assert held == RECORDS
    assert right > 0.8 * RECORDS


def test_counts_are_noised_and_only_sent_where_the_plan_says_so() -> None:
    assert silo().answer(0, zeros()).records is None
    its = silo(plan(count_std=15.0))
    answer = its.answer(0, zeros())
    exact = Counter(model=MODEL, records=records()).count(zeros())
    assert answer.records is not None
    assert answer.right is not None
    assert 0 < abs(answer.records - exact[0]) < 15 * 5
    assert 0 < abs(answer.right - exact[1]) < 15 * 5
    alone = price(plan().event(answer.noise_multiplier or 0), delta=BUDGET.delta, relation=RELATION)
    assert answer.epsilon > alone.epsilon  # the counts are paid for
    with pytest.raises(ConfigError, match="counter = None: count_std asks for counts"):
        Silo(its.plan, its.account, engine=its.engine)


@pytest.mark.parametrize("threads", [1, 3])
def test_torch_has_the_silo_s_threads_in_training_and_its_own_afterwards(threads: int) -> None:
    before, its_account = torch.get_num_threads(), account()
    curious = Curious(its_account.ledger)
    Silo(plan(), its_account, engine=curious, threads=threads).answer(0, zeros())
    assert curious.threads == threads
    assert torch.get_num_threads() == before
    with pytest.raises(ConfigError, match="threads = 0"):
        Silo(plan(), its_account, engine=curious, threads=0)


def test_counting_goes_through_all_records() -> None:
    held = records(count=23)
    weights = np.random.default_rng(0).normal(size=MODEL.size)
    module = MODEL.with_weights(weights)
    right = sum(int(module(held.features[k : k + 1]).argmax()) == int(held.labels[k]) for k in range(23))
    assert Counter(model=MODEL, records=held).count(weights) == (23, right)


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger.in_memory(budget=Budget(epsilon=5.0, delta=1e-5), relation=RELATION),
        Ledger.in_memory(budget=BUDGET, relation=Relation.REPLACE_ONE),
    ],
)
def test_a_ledger_of_other_terms_is_refused(ledger: Ledger) -> None:
    with pytest.raises(LedgerMismatch, match="the ledger of north"):
        silo(its_account=account(ledger))


@pytest.mark.parametrize(("declared", "allowed"), [(39, False), (40, True), (44, True), (45, False), (400, False)])
def test_fewer_or_more_records_than_declared_are_refused_without_a_number(declared: int, allowed: bool) -> None:
    its_plan = plan(records=declared, batch_size=10)
    if allowed:
        assert silo(its_plan).answer(0, zeros()).absence is None
        return
    with pytest.raises(ConfigError, match=f"records = {declared}: the records of north are fewer or more") as refused:
        silo(its_plan)
    assert str(RECORDS) not in str(refused.value).replace(str(declared), "")
