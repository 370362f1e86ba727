"""What is handed from round to round, and who is drawn, is the plan's; a caller who hands something else gets nothing.

The statements of a ledger say what its charges were, whoever asks for them.
"""

from dataclasses import replace

import numpy as np
import pytest

from incrowd._random import SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip, QuantileClip
from incrowd.privacy.plan.plan import NoiseBy, Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, Step
from incrowd.privacy.release import Carry, PrivateRun
from incrowd.privacy.statement import CENTRAL_TRUST, MEDIAN, OTHER_TRUST

pytestmark = pytest.mark.watched

BUDGET = Budget(epsilon=1.0, delta=1e-6)
CLIENTS = 8
ROWS = np.arange(1.0, 25.0).reshape(CLIENTS, 3)
ONE = FixedClip(clip_norm=1.0)


def a_plan(
    *,
    noise_by: NoiseBy = "server",
    sampling: Sampling = Everyone,
    cohort: float = CLIENTS,
    rounds: int = 1,
    clip: Clip | MedianClip = ONE,
) -> Plan:
    schedule = Schedule((Step(rounds=rounds, cohort=cohort),))
    config = PlanConfig(members=CLIENTS, schedule=schedule, sampling=sampling, noise_by=noise_by, clip=clip)
    return config.calibrate(BUDGET)


def a_ledger(plan: Plan, *, epsilon: float = 1.0) -> Ledger:
    budget = Budget(epsilon=epsilon, delta=BUDGET.delta)
    return Ledger.in_memory(budget=budget, relation=plan.relation, data_identity="patients")


def a_run(
    plan: Plan,
    *,
    ledger: Ledger | None = None,
    label: str = "run",
    kind: type[PrivateRun] = PrivateRun,
) -> PrivateRun:
    ledger = a_ledger(plan) if ledger is None else ledger
    return kind(plan, ledger=ledger, randomness=SystemRandomness(), size=3, label=label)


class Trusting(PrivateRun):
    """The broken twin: it takes whatever clip it is handed, and rounds of whatever plan, and draws when it is asked."""

    def check_carry(self, carry: Carry) -> None:
        pass

    def check_plan(self) -> None:
        pass

    def cohort(self, number: int):  # type: ignore[no-untyped-def]  # as its parent
        return self.plan.round(number).sampler.sample(self.randomness.stream("sampling", number), round=number)


class TestAnothersClip:
    """What was found: a median in a local round's carry, and its contributions came out without any noise."""

    def attack_local(self, run: PrivateRun) -> float:
        """How far what is released of a local round is from the bare sum of what was clipped, in its noises."""
        asked = run.round(0, carry=Carry(clip=MedianClip()))
        asked.add(ROWS, clients=range(CLIENTS))
        found = asked.release()
        factors = np.minimum(1.0, found.clip_norm / np.linalg.norm(ROWS, axis=1))
        return float(np.abs(found.total.values - (ROWS * factors[:, None]).sum(0)).max() / found.noise_std)

    def attack_correlated(self, run: PrivateRun) -> float:
        """How far one client moves what is released, in bounds of the plan."""
        asked = run.round(0, carry=replace(run.start(), clip=FixedClip(clip_norm=1000.0)))
        asked.add(np.full((1, 3), 1e6), clients=[0])
        return float(np.linalg.norm(asked.release().total.values))

    def correlated(self) -> Plan:
        return PlanConfig.in_turns(clients=5000, rounds=2, groups=2, clip=ONE).calibrate(BUDGET)

    def test_nothing_is_released_without_noise(self) -> None:
        with pytest.raises(ConfigError, match="carry = MedianClip"):
            self.attack_local(a_run(a_plan(noise_by="party")))

    def test_control_it_would_be(self) -> None:
        assert self.attack_local(a_run(a_plan(noise_by="party"), kind=Trusting)) < 1e-6

    def test_correlated_noise_belongs_to_the_bound_that_clips(self) -> None:
        with pytest.raises(ConfigError, match="carry = FixedClip"):
            self.attack_correlated(a_run(self.correlated()))

    def test_control_a_client_would_move_the_sum_by_a_thousand_bounds(self) -> None:
        assert self.attack_correlated(a_run(self.correlated(), kind=Trusting)) > 900

    def test_a_median_that_is_not_planned_is_refused_and_one_that_is_is_stated(self) -> None:
        with pytest.raises(ConfigError, match="the plan's is FixedClip"):
            a_run(a_plan()).round(0, carry=Carry(clip=MedianClip()))
        run = a_run(a_plan(clip=MedianClip()))
        run.round(0, carry=Carry(clip=MedianClip())).release()
        assert MEDIAN in run.statement().caveats

    def test_of_a_quantile_the_bound_moves_and_nothing_else(self) -> None:
        quantile = QuantileClip(clip_norm=1.0, bit_noise=50.0)
        run = a_run(a_plan(clip=quantile))
        run.round(0, carry=Carry(clip=replace(quantile, clip_norm=3.0)))
        for other in (replace(quantile, bit_noise=500.0), replace(quantile, quantile=0.9), ONE):
            with pytest.raises(ConfigError, match="the plan's is QuantileClip"):
                run.round(0, carry=Carry(clip=other))


class TestDrawnUntilItSuits:
    """What was found: asked for another round in between, a cohort in earnest was drawn anew."""

    def attack(self, run: PrivateRun) -> int:
        """How many different first cohorts there are to choose from."""
        cohorts = set()
        for _ in range(30):
            cohorts.add(tuple(run.cohort(0).tolist()))
            run.cohort(1)
        return len(cohorts)

    def a_plan(self) -> Plan:
        return a_plan(sampling=Poisson, cohort=4, rounds=3)

    def test_a_cohort_is_drawn_once(self) -> None:
        assert self.attack(a_run(self.a_plan())) == 1

    def test_control_who_is_wanted_could_be_drawn(self) -> None:
        assert self.attack(a_run(self.a_plan(), kind=Trusting)) > 5

    def test_a_round_that_is_over_is_forgotten(self) -> None:
        run = a_run(self.a_plan())
        first = run.cohort(0)
        run.round(0).release()
        assert np.array_equal(run.cohort(0), first)
        run.round(1).release()
        assert list(run._cohorts) == []


class TestAnothersPlan:
    """Plans that differ in who takes part, or in their clip, can have the same events."""

    def attack(self, kind: type[PrivateRun]) -> float:
        """Have the same client in every round, and each round of a plan that thinks it is there but seldom.

        The square of what the rounds tell of it, in what was paid for.
        """
        rounds, told = 12, 0.0
        ledger, first = None, None
        for number in range(rounds):
            plan = PlanConfig.in_turns(clients=rounds, rounds=rounds, groups=max(number, 1), clip=ONE).calibrate(BUDGET)
            ledger = a_ledger(plan) if ledger is None else ledger
            run = a_run(plan, ledger=ledger, kind=kind)
            assert 0 in run.cohort(number)
            noise = run.start().noise
            assert noise is not None
            out = run.round(number, carry=Carry(clip=ONE, noise=replace(noise, round=number))).release()
            told += out.noise_std**-2
            first = plan.noise_multiplier if first is None else first
        assert first is not None
        return told * first**2

    def test_rounds_of_another_plan_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="rounds of another plan are charged under it"):
            self.attack(PrivateRun)

    def test_control_they_would_tell_several_times_what_was_paid_for(self) -> None:
        assert self.attack(Trusting) > 2

    def test_the_same_plan_goes_on(self) -> None:
        plan = a_plan(rounds=2)
        ledger = a_ledger(plan)
        for number in range(2):
            a_run(a_plan(rounds=2), ledger=ledger).round(number).release()
        assert ledger.charges() == (2, 0)


class TestAskedByAnother:
    """Who asks for a statement makes no difference to it: the charges say what they were."""

    def test_so_is_a_median(self) -> None:
        median, fixed = a_plan(clip=MedianClip()), a_plan()
        ledger = a_ledger(median, epsilon=5.0)
        a_run(median, ledger=ledger, label="a").round(0).release()
        statement = a_run(fixed, ledger=ledger, label="b").statement()
        assert statement.caveats.count(MEDIAN) == 1
        assert a_run(median, ledger=ledger, label="a").statement().caveats.count(MEDIAN) == 1

    def test_so_is_a_server_that_is_trusted_by_some(self) -> None:
        local = a_plan(noise_by="party")
        central = a_plan(sampling=FixedSize, cohort=4)
        ledger = a_ledger(local, epsilon=50.0)
        a_run(central, ledger=ledger, label="central").round(0).release()
        statement = a_run(local, ledger=ledger, label="local").statement()
        assert OTHER_TRUST.format(trust=CENTRAL_TRUST) in statement.caveats

    def test_control_a_ledger_of_one_kind_has_nothing_to_add(self) -> None:
        for plan in (a_plan(), a_plan(noise_by="party")):
            run = a_run(plan)
            run.round(0).release()
            assert len(run.statement().caveats) == 1  # it was kept in memory
