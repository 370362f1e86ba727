import json
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from incrowd._random import SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
)
from incrowd.privacy.mechanism.correlated import inverse
from incrowd.privacy.plan.forms import CLIPS, RoundForm, fingerprint, from_json, to_json
from incrowd.privacy.plan.plan import Plan, PlanConfig, PrivacyWarning, Sampling
from incrowd.privacy.plan.sampling import Cyclic, Everyone, FixedSize, Poisson, Schedule, Step, constant, growing
from incrowd.privacy.release import Carry, PrivateRun
from incrowd.privacy.statement import CENTRAL_TRUST, FORGOTTEN, LOCAL_TRUST, RECORDS_ASSUMED, SILO_TRUST
from incrowd.types import ThirdPartyClip, register
from tests.privacy.receipts import spent_on

BUDGET = Budget(epsilon=8.0, delta=1e-5)


def a_config(schedule: Schedule, *, sampling: Sampling = Poisson, clip: Clip | MedianClip | None = None) -> PlanConfig:
    return PlanConfig(members=1000, schedule=schedule, sampling=sampling, clip=clip or NormalisedClip())


SCHEDULES: dict[str, tuple[Schedule, Sampling]] = {
    "poisson": (constant(rounds=54, cohort=220), Poisson),
    "fixed": (constant(rounds=54, cohort=220), FixedSize),
    "everyone": (constant(rounds=54, cohort=1000), Everyone),
    "growing": (growing(rounds=54, first_cohort=50, last_cohort=220, steps=3), Poisson),
    "uneven": (Schedule((Step(rounds=1, cohort=100), Step(rounds=2, cohort=400, noise_multiplier=1.5))), Poisson),
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


def test_each_round_s_event_is_that_of_its_own_sampler_and_noise(plan: Plan) -> None:
    seen = [plan.round(number) for number in range(plan.rounds)]
    assert [said.event for said in seen] == [said.sampler.event(said.noise_multiplier) for said in seen]
    assert [event for event, count in plan.runs for _ in range(count)] == [said.event for said in seen]
    assert {said.sampler.relation for said in seen} == {plan.relation}


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


# Turns, with noise that is correlated


TURNS = Budget(epsilon=2.0, delta=1e-5)


def a_plan(budget: Budget = TURNS, **changes: Any) -> Plan:
    return PlanConfig.in_turns(**{"clients": 60, "rounds": 12, "groups": 6} | changes).calibrate(budget)


def a_run(plan: Plan, *, size: int, ledger: Ledger | None = None) -> PrivateRun:
    ledger = Ledger.in_memory(budget=TURNS, relation=plan.relation) if ledger is None else ledger
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(4), size=size)


def released_means(run: PrivateRun) -> np.ndarray:
    carry, means = run.start(), []
    for number in range(run.plan.rounds):
        asked = run.round(number, carry=carry)
        means.append(asked.release().mean)
        carry = asked.after
    return np.array(means)


def test_the_whole_run_is_one_event_and_costs_the_budget() -> None:
    plan = a_plan()
    assert 2.0 * (1 - 1e-3) < plan.price.epsilon <= 2.0
    assert plan.round(0).event == GaussianDpEvent(plan.noise_multiplier)
    ledger = Ledger.in_memory(budget=TURNS, relation=plan.relation)
    run = a_run(plan, size=2, ledger=ledger)
    spent = []
    carry = run.start()
    for number in range(12):
        asked = run.round(number, carry=carry)
        asked.release()
        carry = asked.after
        spent.append(ledger.spent().epsilon)
    assert spent == [spent[0]] * 12
    assert spent[0] == pytest.approx(plan.price.epsilon)


def test_running_sums_are_better_than_with_independent_noise() -> None:
    """The same clients, rounds and budget; in each round only a sixth of the clients takes part, nothing is sampled."""
    size, rounds, groups = 4000, 24, 6
    plan = a_plan(rounds=rounds, groups=groups)
    error = math.sqrt(np.mean(np.cumsum(released_means(a_run(plan, size=size)) * 10, axis=0) ** 2))
    participations = rounds // groups
    independent = PlanConfig(members=60, schedule=constant(rounds=participations, cohort=60), sampling=Everyone)
    sigma = independent.calibrate(TURNS).noise_multiplier  # what covers a client's four participations
    alone = sigma * math.sqrt((rounds + 1) / 2)  # the typical error of running sums of independent noise
    assert plan.correlated is not None
    effect = np.cumsum(inverse(plan.correlated.column))  # of a round's fresh noise on later sums
    squares = np.arange(rounds, 0, -1) @ effect**2 / rounds
    stated = plan.noise_multiplier * plan.correlated.sensitivity * math.sqrt(squares)
    assert error == pytest.approx(stated, rel=0.1)
    assert alone / error > 1.4


def test_a_run_without_its_memory_is_refused() -> None:
    run = a_run(a_plan(), size=2)
    first = run.round(0)
    first.release()
    for stale in (run.start(), Carry(clip=NormalisedClip())):
        with pytest.raises(ConfigError, match="hand every round the carry of the release before it"):
            run.round(1, carry=stale).release()
    assert first.after.noise is not None
    assert first.after.noise.round == 1


def test_the_statement_says_that_nothing_is_sampled() -> None:
    statement = a_plan().statement(spent_on(a_plan()), own=12)
    assert statement.sampler == "none: 60 clients take turns in 6 groups over 12 rounds"
    assert any(caveat.startswith("SIMULATION") for caveat in statement.caveats)
    assert statement.epsilon <= 2.0


def test_impossible_plans_are_refused() -> None:
    for clip in (MedianClip(), QuantileClip(clip_norm=1.0, bit_noise=9.0)):
        with pytest.raises(ConfigError, match="correlated noise belongs to one bound"):
            a_plan(clip=clip)
    for changes in ({"rounds": 0}, {"clients": 0}, {"groups": 0}):
        with pytest.raises(ConfigError, match=next(iter(changes))):
            a_plan(TURNS, **changes)
    for outside in (-1, 12):
        with pytest.raises(ConfigError, match="give a round from 0 to 11"):
            a_plan().round(outside)
    with pytest.raises(ConfigError, match="groups have one size"):
        PlanConfig(members=60, schedule=growing(rounds=2, first_cohort=10, last_cohort=20), sampling=Cyclic)
    for cohort in (7, 59, 0.5, 61, 1e-300):
        with pytest.raises(ConfigError, match="clients take turns in whole groups: give 60 divided by"):
            PlanConfig(members=60, schedule=constant(rounds=4, cohort=cohort), sampling=Cyclic)
    with pytest.warns(PrivacyWarning, match="at least 1/60"):
        a_plan(budget=Budget(epsilon=2.0, delta=0.05))


def test_after_the_last_round_nothing_is_remembered() -> None:
    run = a_run(a_plan(rounds=2, groups=2), size=2)
    first = run.round(0)
    first.release()
    last = run.round(1, carry=first.after)
    last.release()
    assert first.after.noise is not None
    assert last.after.noise is None


# Plans as data


ROOMY = Budget(epsilon=1e4, delta=1e-5)
STEPS = Schedule((Step(rounds=2, cohort=4, noise_multiplier=1.7), Step(rounds=1, cohort=6, noise_multiplier=1 / 3)))
ALIKE = Schedule((Step(rounds=2, cohort=20, noise_multiplier=1.7),))
register("clips", "to nothing", lambda rows, _: 0 * rows)
EVERY_CLIP: list[Clip | MedianClip] = [
    ElementwiseClip(limit=0.1, size=7),
    FixedClip(clip_norm=0.1),
    MedianClip(floor=1e-9),
    NormalisedClip(),
    PerLayerClip(clip_norms=(0.1, 0.2), parts=(3, 4)),
    QuantileClip(clip_norm=1.0, bit_noise=9.0, quantile=0.3),
    ThirdPartyClip(name="to nothing", clip_norm=2.0),
]
PLANS: dict[str, Callable[[], Any]] = {
    "poisson": lambda: PlanConfig(members=20, schedule=STEPS, sampling=Poisson).plan(ROOMY),
    "fixed": lambda: PlanConfig(members=20, schedule=STEPS, sampling=FixedSize, accountants=("RDP",)).plan(ROOMY),
    "everyone": lambda: PlanConfig(members=20, schedule=ALIKE, sampling=Everyone).plan(ROOMY),
    "local": lambda: PlanConfig(members=20, schedule=ALIKE, sampling=Everyone, noise_by="party").plan(ROOMY),
    "correlated": lambda: PlanConfig.in_turns(clients=20, rounds=6, groups=3).calibrate(
        Budget(epsilon=2.0, delta=1e-5)
    ),
    "records": lambda: PlanConfig.of_records(
        records=50, rounds=3, batch_size=10, clip_norm=2.0, noise_multiplier=2.5
    ).plan(ROOMY),
    "shared": lambda: PlanConfig(members=20, schedule=ALIKE, sampling=Everyone, noise_by="parties", colluders=2).plan(
        ROOMY
    ),
    "round": lambda: RoundForm(plan="0" * 64, round=3, clip=FixedClip(clip_norm=1.5)),
}


@cache
def plan_of(name: str) -> Any:
    return PLANS[name]()


def test_every_clip_has_a_form() -> None:
    assert {type(clip).__name__ for clip in EVERY_CLIP} == set(CLIPS)


@pytest.mark.parametrize("name", PLANS)
def test_what_is_written_is_read_back_equal(name: str) -> None:
    form = to_json(plan_of(name))
    read = from_json(json.loads(json.dumps(form, allow_nan=False)))
    assert read == plan_of(name)
    assert fingerprint(to_json(read)) == fingerprint(form)


def test_clips_travel_with_their_rounds() -> None:
    for clip in EVERY_CLIP:
        told = RoundForm(plan="0" * 64, round=1, clip=clip)
        assert from_json(json.loads(json.dumps(to_json(told)))) == told


def test_no_two_plans_have_one_fingerprint() -> None:
    assert len({fingerprint(to_json(plan_of(name))) for name in PLANS}) == len(PLANS)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"format": "incrowd plan 1"}, "format"),
        ({"format": None}, "format"),
        ({"sampling": "local"}, "sampling"),
        ({"noise_by": "nobody"}, "noise_by"),
        ({"clip": {"kind": "None"}}, "clip"),
        ({"clip": {}}, "form"),
        ({"more": 1}, "form"),
        ({"schedule": [{"rounds": 1}]}, "form"),
        ({"schedule": 3}, "form"),
        ({"budget": {"epsilon": 0.001, "delta": 1e-5}}, "epsilon"),
        ({"members": 2}, "cohort"),
        ({"report_std": 3.0}, "report_std"),
        ({"correlated": "optimal"}, "correlated"),
        ({"sampling": "cyclic"}, "cohort"),
    ],
)
def test_what_makes_no_plan_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_json(to_json(plan_of("poisson")) | changes)
    assert caught.value.field == field
