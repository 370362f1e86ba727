"""Who adds what does not belong, asks twice after a failure, or lets state start over, gets nothing for it."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, LedgerUnwritable
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, FixedClip, MedianClip, QuantileClip
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Sampler, Schedule, Step
from incrowd.privacy.release import Carry, PrivateRound, PrivateRun
from tests.reference.stacks import Stack, StackCohort

pytestmark = pytest.mark.watched

BUDGET = Budget(epsilon=1e9, delta=1e-6)
CLIENTS = 8
LITTLE = 1e-3  # noise, so that sums can be seen through it


def a_plan(
    clip: Clip | MedianClip | None = None,
    *,
    rounds: int = 3,
    sampling: type[Everyone] | type[FixedSize] = Everyone,
    cohort: int = CLIENTS,
    noise_by: str = "server",
) -> Plan:
    step = Step(rounds=rounds, cohort=cohort, noise_multiplier=LITTLE)
    clip = FixedClip(clip_norm=1.0) if clip is None else clip
    return PlanConfig(
        members=CLIENTS,
        schedule=Schedule((step,)),
        sampling=sampling,
        clip=clip,
        noise_by=noise_by,  # type: ignore[arg-type]  # one of two texts
    ).plan(BUDGET)


def a_run(plan: Plan, *, ledger: Ledger | None = None, randomness: Randomness | None = None) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation) if ledger is None else ledger
    return PrivateRun(plan, ledger=ledger, randomness=randomness or SeededRandomness(1), size=1)


def ones(count: int) -> Floats:
    return np.ones((count, 1))


def total(asked: PrivateRound) -> float:
    return float(asked.release().total.values[0])


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
            self.WAYS[way](a_run(a_plan(clip, noise_by=noise_by)).round(0))

    def test_what_was_refused_is_not_in_the_sum(self) -> None:
        asked = a_run(a_plan()).round(0)
        asked.add(ones(2), clients=[0, 1])
        for bad in ([1], [1, 2], [2, 2]):
            with pytest.raises(DataError, match="that this round did not ask, or that has contributed already"):
                asked.add(ones(len(bad)), clients=bad)
        assert total(asked) == pytest.approx(2.0, abs=0.01)

    def test_only_the_drawn_cohort_contributes(self) -> None:
        run = a_run(a_plan(sampling=FixedSize, cohort=3))
        drawn = set(run.cohort(0).tolist())
        outsider = next(client for client in range(CLIENTS) if client not in drawn)
        with pytest.raises(DataError, match="did not ask"):
            run.round(0).add(ones(1), clients=[outsider])
        asked = run.round(0)
        asked.add(ones(3), clients=sorted(drawn))
        assert total(asked) == pytest.approx(3.0, abs=0.01)

    def test_a_cohort_is_drawn_once_in_earnest_too(self) -> None:
        plan = a_plan(sampling=FixedSize, cohort=3)
        ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        run = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=1)
        first = run.cohort(0)
        assert all(np.array_equal(run.cohort(0), first) for _ in range(20))
        first[:] = 0  # who is handed it cannot change it
        assert len(set(run.cohort(0).tolist())) == 3

    def test_control_eight_clients_move_the_sum_by_eight_bounds(self) -> None:
        asked = a_run(a_plan()).round(0)
        asked.add(ones(8), clients=range(8))
        assert total(asked) == pytest.approx(8.0, abs=0.01)

    def test_local_noise_is_charged_once_and_there_is_none_for_more_contributions_than_clients(self) -> None:
        run = a_run(a_plan(noise_by="party"), randomness=SystemRandomness())
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

        plan = a_plan(clip)
        ledger = Failing.in_memory(budget=BUDGET, relation=plan.relation)
        return a_run(plan, ledger=ledger), ledger

    @pytest.mark.parametrize(
        "clip", [MedianClip(), QuantileClip(clip_norm=2.0, bit_noise=50.0), FixedClip(clip_norm=2.0)]
    )
    def test_a_release_again_is_what_it_would_have_been(self, clip: Clip | MedianClip) -> None:
        rows = np.geomspace(0.1, 50.0, CLIENTS)[:, None]
        smooth = a_run(a_plan(clip)).round(0)
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
        plan = PlanConfig.in_turns(clients=CLIENTS, rounds=3, groups=2).calibrate(Budget(epsilon=5.0, delta=1e-6))
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        run = PrivateRun(plan, ledger=ledger, randomness=SystemRandomness(), size=1)
        asked = run.round(0, carry=Carry(clip=plan.config.clip))
        with pytest.raises(ConfigError, match="hand every round the carry"):
            asked.release()
        assert ledger.charges() == (1, 0)
        with pytest.raises(ConfigError, match="it has been released"):
            asked.release()


class TestWhatIsCarried:
    def test_neither_does_the_memory_of_correlated_noise(self) -> None:
        plan = PlanConfig.in_turns(clients=CLIENTS, rounds=3, groups=2).calibrate(Budget(epsilon=5.0, delta=1e-6))
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        run = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(1), size=1)
        run.round(0).release()
        with pytest.raises(ConfigError, match="give the carry of the round before it"):
            run.round(1)

    def test_control_a_bound_that_starts_over_forgets_what_it_paid_for(self) -> None:
        run = a_run(a_plan(QuantileClip(clip_norm=1.0, bit_noise=50.0, learning_rate=2.0)))
        first = run.round(0)
        first.add(np.full((CLIENTS, 1), 100.0), clients=range(CLIENTS))
        first.release()
        assert isinstance(first.after.clip, QuantileClip)
        assert first.after.clip.clip_norm != run.start().clip.clip_norm  # type: ignore[union-attr]  # a quantile too


def test_a_sum_that_is_not_whole_steps_is_refused() -> None:
    class Careless(StackCohort):
        def summed(self, **how: object):  # type: ignore[no-untyped-def]  # as its parent
            found = super().summed(**how)  # type: ignore[arg-type]  # passed on
            return type(found)(found.norms, found.total + 1e-9)

    with pytest.raises(DataError, match="not whole steps"):
        a_run(a_plan()).round(0).add_cohort(Careless([Stack(0.1 * math.pi * ones(4))]))


def test_a_trainer_whose_sum_is_longer_than_its_contributions_can_be_is_refused() -> None:
    class Longer(StackCohort):
        def summed(self, **how: object):  # type: ignore[no-untyped-def]  # as its parent
            found = super().summed(**how)  # type: ignore[arg-type]  # passed on
            return type(found)(found.norms, found.total * 2)

    with pytest.raises(DataError, match="is not 4 contributions of at most 1"):
        a_run(a_plan()).round(0).add_cohort(Longer([Stack(ones(4))]))


def test_a_cohort_that_tells_of_more_contributions_than_it_was_asked_for_is_refused() -> None:
    class Padded(StackCohort):
        def summed(self, **how: object):  # type: ignore[no-untyped-def]  # as its parent
            found = super().summed(**how)  # type: ignore[arg-type]  # passed on
            return type(found)(np.vstack([found.norms] * 2), found.total)

    with pytest.raises(DataError, match="4 clients were asked, and 8 contributions came"):
        a_run(a_plan()).round(0).add_cohort(Padded([Stack(ones(4))]))


def test_samplers_are_what_plans_take() -> None:
    """A text became Poisson with a trusted server."""
    sampler: type[Sampler] = FixedSize
    assert a_plan(sampling=FixedSize, cohort=3).relation is Relation.REPLACE_ONE
    assert sampler is FixedSize
    with pytest.raises(ConfigError, match="sampling = 'local': give one of"):
        PlanConfig(members=CLIENTS, schedule=Schedule((Step(rounds=1, cohort=2),)), sampling="local")  # type: ignore[arg-type]  # on purpose
