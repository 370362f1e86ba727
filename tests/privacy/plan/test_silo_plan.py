import math
from dataclasses import replace

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd.errors import BudgetExceeded, ConfigError
from incrowd.privacy.account.accounting import price
from incrowd.privacy.account.calibrate import SQUARE_ROOT
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.silo_plan import RELATION
from tests.federated.silos import BUDGET, RECORDS, plan
from tests.privacy.receipts import SEEDED

SPENT = [(GaussianDpEvent(5.0), 1)]


@pytest.mark.parametrize(
    "field", ["batch_size", "epochs", "clip_norm", "most_noise", "noise", "count_std", "rounds", "records"]
)
@pytest.mark.parametrize("value", [0, -1, math.nan])
def test_numbers_that_cannot_be_are_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field} = "):
        plan(**{field: value})


def test_a_batch_of_more_than_all_records_is_refused() -> None:
    with pytest.raises(ConfigError, match=rf"batch_size = 41: .*the declared number of records, which is {RECORDS}"):
        plan(batch_size=RECORDS + 1)


@pytest.mark.parametrize(
    ("batch_size", "epochs", "steps"), [(10, 1, 4), (10, 2.5, 10), (40, 1, 1), (40, 0.1, 1), (30, 2, 3)]
)
def test_steps_follow_from_epochs_and_the_stated_number_of_records(batch_size: int, epochs: float, steps: int) -> None:
    training = plan(batch_size=batch_size, epochs=epochs, clip_norm=0.7, physical_batch=8).training(1.5)
    assert (training.steps, training.sampling_prob) == (steps, batch_size / RECORDS)
    assert (training.expected_batch, training.clip_norm, training.physical_batch) == (batch_size, 0.7, 8)
    assert (training.noise_multiplier, training.most_records) == (1.5, RECORDS)


def test_the_event_of_a_round_is_its_steps_and_its_counts() -> None:
    assert plan(batch_size=10).event(1.5) == compose([(PoissonSampledDpEvent(0.25, GaussianDpEvent(1.5)), 8)])
    assert plan().event(1.5) == compose([(GaussianDpEvent(1.5), 2)])
    counted = plan(count_std=20.0).runs(1.5)
    assert counted == [(GaussianDpEvent(1.5), 2), (GaussianDpEvent(20.0 / math.sqrt(2)), 1)]


def test_the_noise_is_solved_for_what_is_left_counts_included() -> None:
    for its in (plan(), plan(count_std=10.0), plan(noise=SQUARE_ROOT)):
        last = its.noise_multiplier(its.rounds - 1, spent=SPENT)
        total = price(compose([*SPENT, *its.runs(last)]), delta=BUDGET.delta, relation=RELATION)
        assert 0.999 * BUDGET.epsilon < total.epsilon <= BUDGET.epsilon
    assert plan(count_std=10.0).noise_multiplier(0, spent=()) > plan().noise_multiplier(0, spent=())


def test_a_given_multiplier_is_given_back_for_every_planned_round() -> None:
    its = plan(noise=2.5)
    assert [its.noise_multiplier(number, spent=SPENT) for number in range(its.rounds)] == [2.5] * its.rounds


@pytest.mark.parametrize("noise", [2.5, SQUARE_ROOT])
def test_rounds_that_are_not_planned_are_refused(noise: object) -> None:
    with pytest.raises(BudgetExceeded, match="all planned rounds are over"):
        plan(noise=noise).noise_multiplier(4, spent=())
    with pytest.raises(ConfigError, match="round = -1"):
        plan(noise=noise).noise_multiplier(-1, spent=())


def test_a_round_that_would_be_nothing_but_noise_does_not_take_place() -> None:
    usual = plan().noise_multiplier(0, spent=())
    assert plan(most_noise=usual * 1.01).noise_multiplier(0, spent=()) == usual
    with pytest.raises(BudgetExceeded, match="nobody would learn from that"):
        plan(most_noise=usual * 0.99).noise_multiplier(0, spent=())


def test_the_statement_is_about_records_and_says_what_a_silo_is_trusted_with() -> None:
    paid = price(plan().event(5.0), delta=BUDGET.delta, relation=RELATION)
    earnest, seeded = (Ledger.in_memory(budget=BUDGET, relation=RELATION) for _ in range(2))
    earnest.charge(plan().event(5.0))
    seeded.charge(plan().event(5.0), randomness=SEEDED)
    text = " ".join(plan(count_std=9.0).statement(earnest, own=1).text().split())
    for fact in (
        "add or remove one record",
        "all of 40 records a step, 2 steps a round, at most 4 rounds, and two counts a round",
        "each silo is trusted with its own records",
        "number of records that a silo states is public",
        f"({paid.epsilon:.4g}"[:4],
    ):
        assert fact in text
    assert "SIMULATION" not in text
    sampled = plan(batch_size=10, budget=replace(BUDGET, delta=0.5)).statement(seeded, own=1)
    assert "10 of 40 records a step" in sampled.sampler
    assert len(sampled.caveats) == 3
    assert "all data of one random record of 40" in sampled.caveats[2]


def test_as_many_records_are_expected_as_all_steps_take() -> None:
    stated = plan(batch_size=10, epochs=2.5)
    assert stated.contributions == stated.rounds * 10 * 10
