"""Code of users: pieces that do not belong together, and what is handed over, kept, copied by a fork or taken twice.

A clip that does not bound, a plan that draws less noise than it states, an event that is not that of the noise, a
cohort that is drawn until somebody is in it: each was accepted.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent, GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import NoOpDpEvent

from incrowd import _files
from incrowd._random import Floats, SystemRandomness
from incrowd.drawdiscard.device import pay
from incrowd.errors import ConfigError, DataError
from incrowd.privacy import paid, release
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import PureDpEvent, compose
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.ledger import ledger as ledgers
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.registry import state_folder
from incrowd.privacy.ledger.tally import check_paid
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, MedianClip, NormalisedClip
from incrowd.privacy.mechanism.device import RELATION, Mechanism
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole
from incrowd.privacy.paid import RecordRun
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, constant
from incrowd.privacy.release import Carry, PrivateRound, PrivateRun
from tests.attacks.released import plan_of, run_of
from tests.privacy.ledgers import start, status_of
from tests.privacy.receipts import roomy

pytestmark = pytest.mark.watched


BUDGET = Budget(epsilon=1.0, delta=1e-5)
EARNEST: dict[str, Any] = {"randomness": SystemRandomness(), "size": 100}
CLIENTS, COHORT, TARGET = 40, 4, 7


def planned(**changes: Any) -> Plan:
    config = PlanConfig(members=CLIENTS, schedule=constant(rounds=2, cohort=CLIENTS), sampling=Everyone)
    return replace(config, **changes).calibrate(BUDGET)


def earnest(plan: Plan, ledger: Ledger | None = None) -> PrivateRun:
    return run_of(plan, ledger=ledger or Ledger.in_memory(budget=BUDGET, relation=plan.relation), **EARNEST)


@dataclass(frozen=True)
class Loose:
    """A clip of one's own that forgets to clip; by a factor of norms, as a batched engine asks for."""

    clip_norm: float = 1.0
    private: bool = True
    parts: None = None

    def clip(self, rows: Floats) -> Floats:
        return rows

    def factors(self, norms: Floats) -> Floats:
        return np.ones_like(norms)


class TestAClipThatDoesNotBound:
    def test_it_is_no_part_of_a_plan(self) -> None:
        with pytest.raises(ConfigError, match=r"plan = 'Loose': give .* our clips"):
            earnest(planned(clip=Loose()))

    def test_one_that_equals_everything_is_not_handed_on(self) -> None:
        class Alike(Loose):
            def __eq__(self, other: object) -> bool:
                return True

            __hash__ = Loose.__hash__

        with pytest.raises(ConfigError, match="carry = "):
            earnest(planned()).round(0, carry=Carry(clip=Alike()))


class Claimed(GaussianNoise):
    """It states the cost of a thousand times the noise that it draws."""

    def event(self) -> GaussianDpEvent:
        return GaussianDpEvent(self.noise_multiplier * 1000)


class Quiet(Plan):
    """It states the noise of its parent, and draws a thousandth of it."""

    def noise(self, number: int, clip: Clip) -> GaussianNoise:
        return Claimed(noise_multiplier=self.noise_multiplier / 1000, clip_norm=clip.clip_norm)


class MyConfig(PlanConfig):
    pass


class MySchedule(Schedule):
    pass


class MyBudget(Budget):
    pass


class MyClip(FixedClip):
    pass


class MyMechanism(Mechanism):
    pass


SILO = PlanConfig.of_records(records=100, rounds=1, clip_norm=1.0, batch_size=10.0)


class TestAPlanThatDrawsLess:
    def quiet(self) -> Quiet:
        plan = planned()
        return Quiet(config=plan.config, budget=plan.budget)

    def released(self, plan: Plan) -> float:
        asked = earnest(plan).round(0)
        found = asked.release()
        return float(found.total.values.std() / plan.noise_multiplier)

    def test_it_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="plan = 'Quiet': give a Plan"):
            self.released(self.quiet())

    def test_control_it_would_release_a_thousandth_of_the_noise(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert 0.7 < self.released(planned()) < 1.3
        monkeypatch.setattr(paid, "check_ours", lambda _: None)
        assert self.released(self.quiet()) < 2e-3

    def test_so_are_other_plans_and_mechanisms(self) -> None:
        base = planned().config
        mine = MyConfig(members=CLIENTS, schedule=base.schedule, sampling=Everyone)
        scheduled = replace(planned().config, schedule=MySchedule(planned().config.schedule.steps))
        for plan in (
            mine.calibrate(BUDGET),
            planned(clip=MyClip(clip_norm=1.0)),
            scheduled.plan(BUDGET),
            replace(planned(), budget=MyBudget(epsilon=1.0, delta=1e-5)),
        ):
            with pytest.raises(ConfigError, match="plan = 'My"):
                earnest(plan)
        silo = SILO.calibrate(BUDGET)
        with pytest.raises(ConfigError, match="plan = 'Quiet'"):
            RecordRun(Quiet(config=silo.config, budget=BUDGET), ledger=roomy(), randomness=SystemRandomness())
        limit = DailyLimit(ledger=roomy(RELATION), epsilon=1.0, per="model")
        with pytest.raises(ConfigError, match="mechanism = 'MyMechanism'"):
            pay(MyMechanism(size=2, clip=1.0, epsilon=1.0), limit=limit)

    def test_a_round_draws_its_batches_once(self) -> None:
        run = RecordRun(SILO.calibrate(BUDGET), ledger=roomy(), randomness=SystemRandomness())
        its = run.round(0)
        assert its.batches is its.batches


NOISE = GaussianNoise(noise_multiplier=2.0, clip_norm=1.0)
OTHER = GaussianNoise(noise_multiplier=3.0, clip_norm=1.0)
DEVICE = Mechanism(size=20, clip=0.5, epsilon=2.0, privacy="model")
DIRECTION = replace(DEVICE, bound="norm", noise="direction")
CORRELATED = PlanConfig.in_turns(clients=CLIENTS, rounds=4, groups=2).calibrate(BUDGET).noise(0, NormalisedClip())
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE

PAIRS: dict[str, tuple[DpEvent, list[tuple[Any, int]], Relation]] = {
    "gaussian": (NOISE.event(), [(NOISE, 1)], ADD),
    "several": (compose([(NOISE.event(), 5), (OTHER.event(), 2)]), [(NOISE, 5), (OTHER, 2)], ADD),
    "sampled": (PoissonSampledDpEvent(0.1, NOISE.event()), [(NOISE, 1)], ADD),
    "replaced": (GaussianDpEvent(1.0), [(NOISE, 1)], REPLACE),
    "device": (DEVICE.event("model"), [*DEVICE.pays_for], REPLACE),
    "direction": (DIRECTION.event("model"), [*DIRECTION.pays_for], REPLACE),
    "whole run": (CORRELATED.event(), [(CORRELATED, 4)], Relation.REPLACE_SPECIAL),
}


class TestAnEventThatIsNotOfItsNoise:
    @pytest.mark.parametrize("name", PAIRS)
    def test_control_the_event_of_the_noise_pays_for_it(self, name: str) -> None:
        event, draws, relation = PAIRS[name]
        assert roomy(relation).charge(event, pays_for=draws).entry.kind == "charge"

    @pytest.mark.parametrize("name", PAIRS)
    @pytest.mark.parametrize(
        "cheaper", [NoOpDpEvent(), GaussianDpEvent(1e3), LaplaceDpEvent(1e3), PureDpEvent(1e-3)], ids=repr
    )
    def test_a_cheaper_one_is_refused_and_nothing_is_written(self, name: str, cheaper: DpEvent) -> None:
        _, draws, relation = PAIRS[name]
        ledger = roomy(relation)
        with pytest.raises(ConfigError, match="it costs less than the noise that it is to pay for"):
            ledger.charge(cheaper, pays_for=draws)
        assert ledger.charges() == (0, 0)

    def test_a_draw_more_and_a_bound_less_are_refused(self) -> None:
        for event, draws, relation in (
            (NOISE.event(), [(NOISE, 2)], ADD),
            (NOISE.event(), [(NOISE, 1)], REPLACE),
            (NOISE.event(), [(NOISE, 1), (OTHER, 1)], ADD),
        ):
            with pytest.raises(ConfigError, match="it costs less"):
                roomy(relation).charge(event, pays_for=draws)

    def test_people_who_draw_for_themselves_pay_once_each(self) -> None:
        check_paid(NOISE.event(), [(NOISE, 10)], relation=ADD, people=10)
        with pytest.raises(ConfigError, match="it costs less"):
            check_paid(NOISE.event(), [(NOISE, 11)], relation=ADD, people=10)

    def test_a_round_of_a_whole_run_is_paid_for_by_what_is_reserved(self) -> None:
        ledger = roomy(Relation.REPLACE_SPECIAL)
        for label, event, fits in (("run", CORRELATED.event(), True), ("cheap", GaussianDpEvent(1e3), False)):
            its = ledger.reserve([(event, 1), (NoOpDpEvent(), 3)], label=label).label
            ledger.charge(event, reservation=its)
            if fits:
                ledger.charge(NoOpDpEvent(), reservation=its, pays_for=[(CORRELATED, 1)])
            else:
                with pytest.raises(ConfigError, match="it costs less"):
                    ledger.charge(NoOpDpEvent(), reservation=its, pays_for=[(CORRELATED, 1)])

    def test_a_noise_that_does_not_say_what_it_costs_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="pays_for = 'object'"):
            roomy().charge(NOISE.event(), pays_for=[(object(), 1)])

    def test_one_number_of_many_is_charged_where_the_ledger_says_so(self) -> None:
        each = replace(DEVICE, privacy="feature", noise="gaussian", delta=1e-6)
        with pytest.raises(ConfigError, match="it costs less"):
            roomy(REPLACE).charge(each.event("feature"), pays_for=each.pays_for)
        ledger = roomy(REPLACE)
        ledger.charge(each.event("feature"), pays_for=each.pays_for, note={"per": "feature"})
        assert ledger.charges() == (1, 0)


class TestACohortThatIsDrawnAgain:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "ledger.sqlite"

    def plan(self, *, fixed: bool = False) -> Plan:
        return planned(sampling=FixedSize if fixed else Poisson, schedule=constant(rounds=3, cohort=COHORT))

    def tries(self, path: Path, plan: Plan) -> list[tuple[int, ...]]:
        """The first cohort of a run, as programs draw it that begin under the same label one after the other.

        In between they ask for another round, too: then it was drawn anew.
        """
        found = []
        for _ in range(30):
            with Ledger.open(path, budget=BUDGET, relation=plan.relation, data_identity="patients") as ledger:
                its = earnest(plan, ledger)
                for _ in range(2):
                    found.append(tuple(its.cohort(0).tolist()))
                    its.cohort(1)
        return found

    @pytest.mark.parametrize("fixed", [False, True])
    def test_it_is_the_same_until_the_round_is_charged(self, fixed: bool, path: Path) -> None:
        plan = self.plan(fixed=fixed)
        assert len(set(self.tries(path, plan))) == 1

    def test_control_the_target_would_be_in_it_for_sure_at_the_price_of_a_chance(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(release, "cohort_key", lambda *_: SystemRandomness().stream("key").bits(4).tobytes())
        plan = self.plan()
        assert any(TARGET in cohort for cohort in self.tries(path, plan))
        said = plan.round(0)
        sure = price(GaussianDpEvent(said.noise_multiplier), delta=BUDGET.delta, relation=ADD).epsilon
        assert sure > 3 * price(said.event, delta=BUDGET.delta, relation=ADD).epsilon

    def test_rounds_differ_and_a_key_is_gone_with_its_charge(self, path: Path) -> None:
        plan = self.plan()
        with Ledger.open(path, budget=BUDGET, relation=plan.relation, data_identity="patients") as ledger:
            its = earnest(plan, ledger)
            drawn = {tuple(its.cohort(number).tolist()) for number in range(3)}
            assert len(drawn) > 1
            kept = state_folder() / "cohorts" / ledger.id
            assert kept.stat().st_mode & 0o777 == 0o600
            its.round(0).release()
            assert "0]" not in kept.read_text().split('"')[1]
            for number in (1, 2):
                its.round(number).release()
            assert not kept.exists()

    def test_a_ledger_in_memory_remembers_as_long_as_it_lives(self) -> None:
        plan = self.plan()
        ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        drawn = earnest(plan, ledger).cohort(0)
        assert np.array_equal(earnest(plan, ledger).cohort(0), drawn)
        drawn[:] = 0  # who is handed it cannot change it
        assert not np.array_equal(earnest(plan, ledger).cohort(0), drawn)
        earnest(plan, ledger).round(0).release()
        with ledgers._cohorts(ledger) as keys:
            assert keys == {}

    def test_a_simulation_repeats_itself_and_keeps_nothing(self) -> None:
        plan = self.plan()
        ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
        run_of(plan, ledger=ledger).cohort(0)
        with ledgers._cohorts(ledger) as keys:
            assert keys == {}


KEPT = Budget(epsilon=4.0, delta=1e-5)


def opened(config: PlanConfig, *, system: bool = False) -> PrivateRound:
    return run_of(config.calibrate(KEPT), randomness=SystemRandomness() if system else None, size=2).round(0)


def of_clients(clip: Any, **changes: Any) -> PlanConfig:
    return PlanConfig(members=30, schedule=constant(rounds=2, cohort=30), sampling=Everyone, clip=clip, **changes)


def of_records() -> tuple[PrivateRound, Plan]:
    schedule, clip = constant(rounds=2, cohort=40.0), FixedClip(clip_norm=1.0)
    found = opened(PlanConfig(members=40, schedule=schedule, unit="record", noise_by="server", clip=clip))
    return found, found._run.plan


# Receipts
def test_a_fork_copies_no_paid_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One charge would pay for the noise of every child."""
    local = opened(of_clients(FixedClip(clip_norm=1.0), noise_by="party"), system=True)
    local.add(np.ones((1, 2)), clients=[0])

    def draws(refused: bool, client: int = 1) -> None:
        try:
            local.add(np.ones((1, 2)), clients=[client])
        except ConfigError:
            assert refused
            return
        assert not refused

    assert status_of(start(lambda: draws(refused=True))) == 0
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("incrowd.privacy.ledger.tally.os.getpid", lambda: -1)
        draws(refused=True, client=2)
    draws(refused=False)  # the control: in its own process it is paid for


# What is handed over
def test_a_sum_that_a_silo_handed_over_stays_its_own() -> None:
    """What it kept was the sum of all silos, before noise."""
    found, plan = of_records()
    kept = plan.training(2).whole(np.array([1.0, 0.0]))
    found.add_records(kept, silo=0, records=20)
    found.add_records(plan.training(2).whole(np.array([0.0, 7.0])), silo=1, records=20)
    assert np.allclose(kept.values, [1.0, 0.0])


def test_a_sum_that_is_changed_after_it_was_checked_enters_as_it_was() -> None:
    found, plan = of_records()
    part = plan.training(2).whole(np.array([1.0, 0.0]))
    found.add_records(part, silo=0, records=20)
    part.steps[:] = int(1e6 / part.step)
    assert np.abs(found.release().total.values).max() < 1e3


@pytest.mark.parametrize("kind", [np.float64, np.uint64])
def test_steps_that_are_no_whole_numbers_of_64_bits_are_refused_before_the_charge(kind: type[Any]) -> None:
    found, plan = of_records()
    part = plan.training(2).whole(np.array([1.0, 0.0]))
    with pytest.raises(DataError, match="int64"):
        found.add_records(Whole(steps=part.steps.astype(kind), step=part.step), silo=0, records=20)
    found.add_records(part, silo=0, records=20)  # the control


@pytest.mark.parametrize("clip", [MedianClip(), FixedClip(clip_norm=1.0)])
def test_a_buffer_that_is_used_again_counts_for_nobody_twice(clip: Any) -> None:
    found, buffer = opened(of_clients(clip)), np.zeros((1, 2))
    for client in range(30):
        buffer[:] = [[0.0, 1.0]] if client < 29 else [[1.0, 0.0]]
        found.add(buffer, clients=[client])
    total = found.release().total.values
    assert abs(total[1] - 29) < 12 > abs(total[0] - 1)


# Two loops in one process
def test_a_folder_is_locked_for_the_process_that_holds_it_too(tmp_path: Path) -> None:
    """Closing the second file would let go of the first one's lock."""
    lock = tmp_path / "lock"

    def enter(refused: bool) -> None:
        try:
            with _files.alone(lock, what="trains"):
                assert not refused
        except ConfigError:
            assert refused

    with _files.alone(lock, what="trains"):
        enter(refused=True)
        assert status_of(start(lambda: enter(refused=True))) == 0
    enter(refused=False)  # the control


# Cohorts that do not please
def test_a_reservation_that_is_given_back_pays_for_the_cohorts_that_it_drew(tmp_path: Path) -> None:
    """Who drew again under another label until a client was in would pay for a sample and take that client surely."""
    plan = plan_of(members=100, rounds=3, cohort=1, noise=2.0, budget=KEPT, sampling=Poisson, accountants=("RDP",))
    roomy = Budget(epsilon=40.0, delta=1e-5)
    with Ledger.open(tmp_path / "ledger", budget=roomy, relation=plan.relation, data_identity="x") as ledger:
        runs = [run_of(plan, ledger=ledger, label=f"try {number}", **EARNEST) for number in range(2)]
        runs[0].cohort(1)
        ledger.release_reservation("try 0")
        assert ledger.charges()[0] == 2  # rounds 0 and 1: both could be known by now
        runs[1].round(0).release()
        ledger.release_reservation("try 1")  # the control: nothing is drawn and not charged
        assert ledger.charges()[0] == 3
        assert ledger.reservation("try 1").released
