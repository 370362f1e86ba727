"""Code of users: who adds what does not belong, asks twice after a failure, or hands over what is not the plan's.

What is handed from round to round is the plan's: who hands something else, or lets state start over, gets nothing.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from incrowd._random import SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, LedgerUnwritable
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, FixedClip, MedianClip, QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import FixedSize
from incrowd.privacy.release import Carry, PrivateRound, PrivateRun
from incrowd.privacy.statement import MEDIAN
from tests.attacks.released import CLIENTS, ledger_for, ones, plan_of, run_of, total
from tests.reference.stacks import Stack, StackCohort, StackSum

pytestmark = pytest.mark.watched


IN_TURNS = PlanConfig.in_turns(clients=CLIENTS, rounds=3, groups=2).calibrate(Budget(epsilon=5.0, delta=1e-6))


def twice(asked: PrivateRound) -> None:
    asked.add(ones(1), clients=[3])
    asked.add(ones(1), clients=[3])


def in_a_cohort_and_alone(asked: PrivateRound) -> None:
    asked.add_cohort(StackCohort([Stack(ones(8))]))
    asked.add(ones(1), clients=[0])


class TestWhoContributes:
    """One client is to move the sum by one bound at most, however it is handed in."""

    WAYS: dict[str, Callable[[PrivateRound], object]] = {  # noqa: RUF012 - never changed
        "twice": twice,
        "eight times at once": lambda asked: asked.add(ones(8), clients=[3] * 8),
        "in a cohort": lambda asked: asked.add_cohort(StackCohort([Stack(ones(1), first=3), Stack(ones(1), first=3)])),
        "in a cohort and alone": in_a_cohort_and_alone,
        "a thousand of eight": lambda asked: asked.add(ones(1000), clients=list(range(8)) * 125),
        "another's": lambda asked: asked.add(ones(1), clients=[8]),
        "too few numbers": lambda asked: asked.add(ones(2), clients=[1]),
    }

    @pytest.mark.parametrize("noise_by", ["server", "party"])
    @pytest.mark.parametrize("clip", [FixedClip(clip_norm=1.0), ElementwiseClip(limit=1.0, size=1)], ids=["L2", "each"])
    @pytest.mark.parametrize("way", WAYS)
    def test_a_client_counts_once(self, way: str, clip: Clip, noise_by: str) -> None:
        with pytest.raises((DataError, ConfigError)):
            self.WAYS[way](run_of(plan_of(clip=clip, noise_by=noise_by)).round(0))

    def test_what_was_refused_is_not_in_the_sum(self) -> None:
        asked = run_of(plan_of()).round(0)
        asked.add(ones(2), clients=[0, 1])
        for bad in ([1], [1, 2], [2, 2]):
            with pytest.raises(DataError, match="that this round did not ask, or that has contributed already"):
                asked.add(ones(len(bad)), clients=bad)
        assert total(asked) == pytest.approx(2.0, abs=0.01)

    def test_only_the_drawn_cohort_contributes(self) -> None:
        run = run_of(plan_of(sampling=FixedSize, cohort=3))
        drawn = set(run.cohort(0).tolist())
        outsider = next(client for client in range(CLIENTS) if client not in drawn)
        with pytest.raises(DataError, match="did not ask"):
            run.round(0).add(ones(1), clients=[outsider])
        asked = run.round(0)
        asked.add(ones(3), clients=sorted(drawn))
        assert total(asked) == pytest.approx(3.0, abs=0.01)

    def test_control_eight_clients_move_the_sum_by_eight_bounds(self) -> None:
        asked = run_of(plan_of()).round(0)
        asked.add(ones(8), clients=range(8))
        assert total(asked) == pytest.approx(8.0, abs=0.01)

    def test_local_noise_is_charged_once_and_there_is_none_for_more_contributions_than_clients(self) -> None:
        run = run_of(plan_of(noise_by="party"), randomness=SystemRandomness())
        asked = run.round(0)
        for client in range(2):
            asked.add(ones(1), clients=[client])
        asked.release()
        assert run.ledger.charges() == (1, 0)
        clip = FixedClip(clip_norm=1.0)
        noise, receipt = run.plan.party_noise(1, clip), run.charge(1, clip)
        assert noise is not None
        for client in range(CLIENTS):
            noise.add(np.zeros(1), receipt=receipt, at=("noise", 1, client), contributions_bound=1)
        with pytest.raises(BudgetExceeded):
            noise.add(np.zeros(1), receipt=receipt, at=("noise", 1, CLIENTS), contributions_bound=1)


class TestAfterAFailure:
    """A charge that fails leaves the round as it was; the second try is the first one's equal."""

    def a_failing_run(self, clip: Clip | MedianClip) -> tuple[PrivateRun, Ledger]:
        class Failing(Ledger):
            failures = 2

            def charge(self, *args: object, **kwargs: object) -> Receipt:  # passes all on
                if self.failures:
                    self.failures -= 1
                    raise LedgerUnwritable("the disk is full: free some space")
                return super().charge(*args, **kwargs)  # type: ignore[arg-type]  # as above

        plan = plan_of(clip=clip)
        ledger = Failing.in_memory(budget=plan.budget, relation=plan.relation)
        return run_of(plan, ledger=ledger), ledger

    @pytest.mark.parametrize(
        "clip", [MedianClip(), QuantileClip(clip_norm=2.0, bit_noise=50.0), FixedClip(clip_norm=2.0)]
    )
    def test_a_release_again_is_what_it_would_have_been(self, clip: Clip | MedianClip) -> None:
        rows = np.geomspace(0.1, 50.0, CLIENTS)[:, None]
        smooth = run_of(plan_of(clip=clip)).round(0)
        smooth.add(rows, clients=range(CLIENTS))
        run, ledger = self.a_failing_run(clip)
        rough = run.round(0)
        rough.add(rows, clients=range(CLIENTS))
        for _ in range(2):
            with pytest.raises(LedgerUnwritable):
                rough.release()
            assert ledger.charges() == (0, 0)
        with pytest.raises(ConfigError, match="its release has begun"):
            rough.add(ones(1), clients=[0])
        first, second = smooth.release(), rough.release()
        assert np.array_equal(first.total.steps, second.total.steps)
        assert (first.clip_norm, first.noise_std) == (second.clip_norm, second.noise_std)

    def test_the_noise_is_that_of_the_bound_that_clipped(self) -> None:
        """What was found: settled again, a median fell to its floor, and the noise with it."""
        run, _ = self.a_failing_run(MedianClip())
        asked = run.round(0)
        asked.add(np.full((CLIENTS, 1), 5.0), clients=range(CLIENTS))
        for _ in range(2):
            with pytest.raises(LedgerUnwritable):
                asked.release()
        assert asked.release().clip_norm == 5.0

    def test_control_a_median_of_what_is_left_would_be_its_floor(self) -> None:
        assert MedianClip().fit(np.empty(0)).clip_norm == 1e-12

    def test_after_the_noise_is_drawn_the_round_is_closed_whatever_happens(self) -> None:
        run = run_of(IN_TURNS, randomness=SystemRandomness())
        asked = run.round(0, carry=Carry(clip=IN_TURNS.config.clip))
        with pytest.raises(ConfigError, match="hand every round the carry"):
            asked.release()
        assert run.ledger.charges() == (1, 0)
        with pytest.raises(ConfigError, match="it has been released"):
            asked.release()


class TestWhatIsCarried:
    def test_neither_does_the_memory_of_correlated_noise(self) -> None:
        run = run_of(IN_TURNS)
        run.round(0).release()
        with pytest.raises(ConfigError, match="give the carry of the round before it"):
            run.round(1)

    def test_control_a_bound_that_starts_over_forgets_what_it_paid_for(self) -> None:
        run = run_of(plan_of(clip=QuantileClip(clip_norm=1.0, bit_noise=50.0, learning_rate=2.0)))
        first = run.round(0)
        first.add(np.full((CLIENTS, 1), 100.0), clients=range(CLIENTS))
        first.release()
        assert isinstance(first.after.clip, QuantileClip)
        assert first.after.clip.clip_norm != run.start().clip.clip_norm  # type: ignore[union-attr]  # a quantile too


def of(cohort: StackSum, kind: str) -> StackSum:
    """What a cohort is that tells something else of itself."""
    if kind == "padded":
        return StackSum(np.vstack([cohort.norms] * 2), cohort.total)
    return StackSum(cohort.norms, cohort.total * 2 if kind == "longer" else cohort.total + 1e-9)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("careless", "not whole steps"),
        ("longer", "is not 4 contributions of at most 1"),
        ("padded", "4 clients were asked, and 8 contributions came"),
    ],
)
def test_a_trainer_whose_sum_cannot_be_that_of_its_contributions_is_refused(kind: str, why: str) -> None:
    class Odd(StackCohort):
        def summed(self, **how: Any) -> StackSum:
            return of(super().summed(**how), kind)

    with pytest.raises(DataError, match=why):
        run_of(plan_of()).round(0).add_cohort(Odd([Stack(ones(4))]))
    run_of(plan_of()).round(0).add_cohort(StackCohort([Stack(ones(4))]))  # the control


BUDGET = Budget(epsilon=1.0, delta=1e-6)
ROWS = np.arange(1.0, 25.0).reshape(CLIENTS, 3)
ONE = FixedClip(clip_norm=1.0)


def a_plan(*, cohort: float = CLIENTS, rounds: int = 1, **parts: Any) -> Plan:
    """One that spends a budget of 1."""
    return plan_of(rounds=rounds, cohort=cohort, **{"clip": ONE} | parts).config.calibrate(BUDGET)


def earnest(plan: Plan, **how: Any) -> PrivateRun:
    return run_of(plan, randomness=SystemRandomness(), size=3, **how)


class Trusting(PrivateRun):
    """The broken twin: it takes whatever clip it is handed, and rounds of whatever plan."""

    def check_carry(self, carry: Carry) -> None:
        pass

    def check_plan(self) -> None:
        pass


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

    def in_two_turns(self) -> Plan:
        return PlanConfig.in_turns(clients=5000, rounds=2, groups=2, clip=ONE).calibrate(BUDGET)

    def test_nothing_is_released_without_noise(self) -> None:
        with pytest.raises(ConfigError, match="carry = MedianClip"):
            self.attack_local(earnest(a_plan(noise_by="party")))

    def test_control_it_would_be(self) -> None:
        assert self.attack_local(earnest(a_plan(noise_by="party"), kind=Trusting)) < 1e-6

    def test_correlated_noise_belongs_to_the_bound_that_clips(self) -> None:
        with pytest.raises(ConfigError, match="carry = FixedClip"):
            self.attack_correlated(earnest(self.in_two_turns()))

    def test_control_a_client_would_move_the_sum_by_a_thousand_bounds(self) -> None:
        assert self.attack_correlated(earnest(self.in_two_turns(), kind=Trusting)) > 900

    def test_a_median_that_is_not_planned_is_refused_and_one_that_is_is_stated(self) -> None:
        with pytest.raises(ConfigError, match="the plan's is FixedClip"):
            earnest(a_plan()).round(0, carry=Carry(clip=MedianClip()))
        run = earnest(a_plan(clip=MedianClip()))
        run.round(0, carry=Carry(clip=MedianClip())).release()
        assert MEDIAN in run.statement().caveats

    def test_of_a_quantile_the_bound_moves_and_nothing_else(self) -> None:
        quantile = QuantileClip(clip_norm=1.0, bit_noise=50.0)
        run = earnest(a_plan(clip=quantile))
        run.round(0, carry=Carry(clip=replace(quantile, clip_norm=3.0)))
        for other in (replace(quantile, bit_noise=500.0), replace(quantile, quantile=0.9), ONE):
            with pytest.raises(ConfigError, match="the plan's is QuantileClip"):
                run.round(0, carry=Carry(clip=other))


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
            ledger = ledger_for(plan) if ledger is None else ledger
            run = earnest(plan, ledger=ledger, kind=kind)
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
        ledger = ledger_for(plan)
        for number in range(2):
            earnest(a_plan(rounds=2), ledger=ledger).round(number).release()
        assert ledger.charges() == (2, 0)
