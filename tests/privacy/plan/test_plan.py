import warnings
from dataclasses import replace
from functools import cache

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd._random import SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning, Sampling
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, Step, constant, growing, listed
from incrowd.privacy.statement import CENTRAL_TRUST, FORGOTTEN, LOCAL_TRUST, RECORDS_ASSUMED, SILO_TRUST
from tests.privacy.receipts import spent_on

BUDGET = Budget(epsilon=8.0, delta=1e-5)


def a_config(schedule: Schedule, *, sampling: Sampling = Poisson, clip: Clip | MedianClip | None = None) -> PlanConfig:
    return PlanConfig(members=1000, schedule=schedule, sampling=sampling, clip=clip or NormalisedClip())


SCHEDULES: dict[str, tuple[Schedule, Sampling]] = {
    "poisson": (constant(rounds=54, cohort=220), Poisson),
    "fixed": (constant(rounds=54, cohort=220), FixedSize),
    "everyone": (constant(rounds=54, cohort=1000), Everyone),
    "growing": (growing(rounds=54, first_cohort=50, last_cohort=220, steps=3), Poisson),
    "listed": (listed(cohorts=[100, 400, 100], noise=[1, 1.5, 1]), Poisson),
}


@cache
def calibrated(name: str) -> Plan:
    schedule, sampling = SCHEDULES[name]
    accountants = ("RDP",) if sampling is FixedSize else ("GDP", "PLD")  # the others take long and change nothing here
    return replace(a_config(schedule, sampling=sampling), accountants=accountants).calibrate(BUDGET)


@pytest.fixture(scope="module", params=SCHEDULES)
def plan(request: pytest.FixtureRequest) -> Plan:
    return calibrated(request.param)


def test_a_calibrated_plan_spends_the_budget_and_no_more(plan: Plan) -> None:
    assert 8.0 * (1 - 1e-3) < plan.price.epsilon <= 8.0
    less = plan.config.scaled(1 / 1.005)
    cost = price(plan.event, delta=1e-5, relation=plan.relation, accountants=plan.config.accountants)
    assert cost.epsilon == plan.price.epsilon
    with pytest.raises(ConfigError, match=r"epsilon = 8\.0: these rounds cost 8"):
        less.plan(BUDGET)


@pytest.mark.parametrize("name", SCHEDULES)
def test_calibration_keeps_the_schedule_s_proportions(name: str) -> None:
    schedule, _ = SCHEDULES[name]
    found = calibrated(name).config.schedule
    factors = [
        new.noise_multiplier / old.noise_multiplier for new, old in zip(found.steps, schedule.steps, strict=True)
    ]
    assert factors == pytest.approx([factors[0]] * len(factors))


def test_each_round_s_event_is_that_of_its_own_sampler_and_noise(plan: Plan) -> None:
    seen = [plan.round(number) for number in range(plan.rounds)]
    assert [said.event for said in seen] == [said.sampler.event(said.noise_multiplier) for said in seen]
    assert [event for event, count in plan.runs for _ in range(count)] == [said.event for said in seen]
    assert {said.sampler.relation for said in seen} == {plan.relation}


def test_impossible_configs_are_refused() -> None:
    for schedule, sampling, message in (
        (constant(rounds=1, cohort=1001), Poisson, "cohort = 1001: give at most the number of clients"),
        (constant(rounds=1, cohort=2.5), FixedSize, "cohort = 2.5: a fixed-size cohort is a whole number"),
        (constant(rounds=1, cohort=999), Everyone, "cohort = 999: everyone means 1000 clients"),
    ):
        with pytest.raises(ConfigError, match=message):
            a_config(schedule, sampling=sampling)


def test_a_plan_may_cost_its_budget_and_nothing_more() -> None:
    config = PlanConfig(members=10, schedule=constant(rounds=3, cohort=10), sampling=Everyone)
    cost = config.plan(Budget(epsilon=100.0, delta=1e-6)).price.epsilon
    assert config.plan(Budget(epsilon=cost, delta=1e-6)).price.epsilon == cost
    with pytest.raises(ConfigError, match="these rounds cost"):
        config.plan(Budget(epsilon=cost * (1 - 1e-12), delta=1e-6))


def test_a_quantile_clip_without_room_for_its_bits_is_refused_before_anything_is_spent() -> None:
    step = Step(rounds=1, cohort=220, noise_multiplier=4.0)
    clip = QuantileClip(clip_norm=1.0, bit_noise=2.0)
    with pytest.raises(ConfigError, match="bit_noise"):
        a_config(Schedule((step,)), clip=clip).plan(BUDGET)


def test_a_delta_of_one_in_the_number_of_clients_is_warned_about() -> None:
    """Rule 14."""
    config = a_config(Schedule((Step(rounds=1, cohort=220, noise_multiplier=4.0),)))
    with pytest.warns(PrivacyWarning, match="at least 1/1000"):
        plan = config.plan(Budget(epsilon=8.0, delta=1e-3))
    assert "at least 1/1000" in " ".join(plan.statement(spent_on(plan), own=1).caveats)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.plan(Budget(epsilon=8.0, delta=0.99e-3))


class TestStatement:
    def a_plan(self, clip: Clip | MedianClip | None = None) -> Plan:
        steps = (Step(rounds=2, cohort=100, noise_multiplier=3.0), Step(rounds=1, cohort=220, noise_multiplier=4.0))
        return a_config(Schedule(steps), clip=clip).plan(BUDGET)

    def test_says_what_was_executed(self) -> None:
        statement = self.a_plan().statement(spent_on(self.a_plan(), randomness=SystemRandomness()), own=3)
        assert statement.relation is Relation.ADD_OR_REMOVE_ONE
        assert statement.sampler == "Poisson, 100 to 220 of 1000 clients a round, 3 rounds"
        assert statement.epsilon == self.a_plan().price.epsilon
        assert statement.accountant == "PLD"
        assert statement.caveats == (FORGOTTEN,)

    def test_says_who_is_trusted(self) -> None:
        central = a_config(constant(rounds=1, cohort=1000).scaled(4.0), sampling=Everyone)
        for config, trust in ((central, CENTRAL_TRUST), (replace(central, noise_by="party"), LOCAL_TRUST)):
            plan = config.plan(BUDGET)
            assert plan.statement(spent_on(plan), own=1).trust == trust

    def test_marks_a_simulation_and_a_median(self) -> None:
        """Rules 6 and 7."""
        plan = self.a_plan(MedianClip())
        caveats = plan.statement(spent_on(plan), own=3).caveats
        assert any(caveat.startswith("SIMULATION") for caveat in caveats)
        assert "the median is not private, and its leakage is not in epsilon" in caveats


class TestRecords:
    BUDGET = Budget(epsilon=3.0, delta=1e-5)

    def config(self, **changes: object) -> PlanConfig:
        given = {"records": 500, "rounds": 4, "clip_norm": 1.5, "batch_size": 50, "epochs": 2.0} | changes
        return PlanConfig.of_records(**given)  # type: ignore[arg-type]  # by name

    def test_a_round_costs_its_steps(self) -> None:
        config, everyone = self.config(noise_multiplier=2.0), self.config(noise_multiplier=9.0, batch_size=None)
        step = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
        assert config.plan(self.BUDGET).round(3).event == compose([(step, 20)])
        assert everyone.plan(self.BUDGET).round(3).event == compose([(GaussianDpEvent(9.0), 2)])
        assert config.relation is Relation.ADD_OR_REMOVE_ONE

    def test_the_least_noise_that_the_budget_allows_pays_for_all_rounds(self) -> None:
        assert 0.999 * 3.0 < self.config().calibrate(self.BUDGET).price.epsilon <= 3.0

    def test_the_engine_is_told_what_the_plan_prices(self) -> None:
        training = self.config(noise_multiplier=2.0).plan(self.BUDGET).training(10)
        assert (training.sampling_prob, training.expected_batch, training.most_records) == (0.1, 50, 500)
        assert (training.steps, training.clip_norm, training.noise_multiplier) == (20, 1.5, 2.0)

    def test_the_statement_is_about_records(self) -> None:
        careless = Budget(epsilon=3.0, delta=0.01)
        with pytest.warns(PrivacyWarning):
            plan = self.config().calibrate(careless)
        said = plan.statement(Ledger.in_memory(budget=careless, relation=plan.relation), own=0)
        assert (said.unit, said.trust, said.assumed) == ("record", SILO_TRUST, RECORDS_ASSUMED)
        assert said.sampler == "Poisson, 50 of 500 records a step, 20 steps a round, at most 4 rounds"
        assert any("data of one random record of 500" in caveat for caveat in said.caveats)
        whole = self.config(batch_size=None).calibrate(self.BUDGET)
        ledger = Ledger.in_memory(budget=self.BUDGET, relation=whole.relation)
        assert "all of 500 records a step" in whole.statement(ledger, own=0).sampler
