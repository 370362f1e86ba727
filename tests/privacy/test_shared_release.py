"""Rounds whose noise the parties share: one price, one list a round, and a release only if every listed part came."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import SelfComposedDpEvent

from incrowd._random import Floats, SeededRandomness
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.account.accounting import Budget, price
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipped_sum import Observed, Part
from incrowd.privacy.mechanism.clipping import FixedClip, MedianClip, NormalisedClip, QuantileClip
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Cyclic, Everyone, FixedSize, Poisson, Schedule, Step, constant, growing
from incrowd.privacy.release import PrivateRound, PrivateRun
from incrowd.privacy.statement import LIARS, OTHER_TRUST, SHARED_TRUST, SOME_TRUST, Statement, rounded_up
from tests.statistics import NORMAL_MOMENTS, rejects_wrong_scale

BUDGET = Budget(epsilon=1.0, delta=1e-5)
SIZE, PARTIES, RECORDS = 20_000, 5, 300
STEP = Step(rounds=1, cohort=PARTIES)


def of_clients(**changes: object) -> PlanConfig:
    its: dict[str, Any] = {
        "members": PARTIES,
        "schedule": constant(rounds=4, cohort=PARTIES),
        "sampling": Everyone,
        "noise_by": "parties",
        "clip": FixedClip(clip_norm=0.5),
    }
    return PlanConfig(**its | changes)


def of_records(**changes: object) -> PlanConfig:
    its: dict[str, Any] = {
        "members": RECORDS,
        "schedule": constant(rounds=4, cohort=75.0),
        "sampling": Poisson,
        "unit": "record",
        "noise_by": "parties",
        "parties": PARTIES,
        "clip": FixedClip(clip_norm=0.5),
    }
    return PlanConfig(**its | changes)


def of_silo(**changes: Any) -> PlanConfig:
    return replace(PlanConfig.of_records(records=40, rounds=4, clip_norm=1.0, epochs=2), **changes)


pytestmark = pytest.mark.filterwarnings("ignore::incrowd.privacy.plan.plan.PrivacyWarning")


@pytest.fixture(scope="module", params=[of_clients, of_records])
def plan(request: pytest.FixtureRequest) -> Plan:
    found: Plan = request.param(colluders=2).calibrate(BUDGET)
    return found


def opened(plan: Plan, *, size: int = SIZE) -> PrivateRun:
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    return PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(5), size=size)


def give(opened: PrivateRound, plan: Plan, values: Floats, *, party: int) -> None:
    if plan.unit == "client":
        opened.add(values, clients=[party])
    else:
        opened.add_records(plan.training().whole(values), silo=party, records=RECORDS // PARTIES)


def released(plan: Plan, *, listed: int = PARTIES, number: int = 0) -> tuple[Whole, float]:
    run = opened(plan)
    for earlier in range(number):
        run.charge(earlier, FixedClip(clip_norm=0.5), listed=listed)
    first = run.round(number)
    first.listing(listed)
    for party in range(listed):
        give(first, plan, np.full(SIZE, 0.4 / np.sqrt(SIZE)), party=party)
    found = first.release()
    return found.total, found.noise_std


def test_the_price_is_that_of_one_trusted_server(plan: Plan) -> None:
    config = plan.config
    kind = of_clients if plan.unit == "client" else of_records
    central = kind(noise_by="server", parties=None).calibrate(BUDGET)
    assert plan.price.epsilon == central.price.epsilon
    assert plan.noise_multiplier == central.noise_multiplier
    assert plan.relation is central.relation
    assert config.sharing == (PARTIES, 2)
    assert plan.round(1).event == central.round(1).event


@pytest.mark.parametrize("listed", [PARTIES, 3])
def test_a_release_has_the_noise_of_its_list(plan: Plan, listed: int) -> None:
    total, std = released(plan, listed=listed)
    central = plan.noise_multiplier * 0.5
    assert std == pytest.approx(central * np.sqrt(listed / (listed - 2)), rel=0.01)
    sample = (total.values - listed * 0.4 / np.sqrt(SIZE)) / std
    assert rejects_wrong_scale(NORMAL_MOMENTS, sample)


def test_a_list_comes_once_and_before_any_part(plan: Plan) -> None:
    run = opened(plan)
    first = run.round(0)
    with pytest.raises(ConfigError, match="may all collude"):
        give(first, plan, np.zeros(SIZE), party=0)
    with pytest.raises(ConfigError, match="may all collude"):
        first.release()
    with pytest.raises(ConfigError, match="may all collude"):
        first.listing(2)
    assert run.ledger.charges() == (0, 0)
    first.listing(4)
    with pytest.raises(ConfigError, match="has one list"):
        first.listing(5)
    central = opened(of_clients(noise_by="server").calibrate(BUDGET)).round(0)
    with pytest.raises(ConfigError, match="has one list"):
        central.listing(5)


def test_a_round_in_which_a_listed_party_is_silent_is_lost_and_paid(plan: Plan) -> None:
    run = opened(plan)
    first = run.round(0)
    first.listing(4)
    for party in range(3):
        give(first, plan, np.zeros(SIZE), party=party)
    with pytest.raises(DataError, match="the round is lost"):
        first.release()
    assert run.ledger.charges()[0] == 1
    assert run.next_round == 1


def test_the_receipt_pays_for_shares_of_the_list_alone(plan: Plan) -> None:
    run, clip = opened(plan), FixedClip(clip_norm=0.5)
    shared = plan.shared(0, clip)
    assert shared is not None
    receipt = run.charge(0, clip, listed=4)
    part = Whole(steps=np.zeros(SIZE, np.int64), step=2.0**-30)
    for wrong in (shared.share(3), shared.share(5), shared.noise):
        with pytest.raises(ConfigError, match="not what this receipt was paid for"):
            wrong.add(part, receipt=receipt, at=("noise", 0, 0), contributions_bound=1)
    for party in range(4):
        shared.share(4).add(part, receipt=receipt, at=("noise", 0, party), contributions_bound=1)
    with pytest.raises(Exception, match="all noise that was paid for"):
        shared.share(4).add(part, receipt=receipt, at=("noise", 0, 4), contributions_bound=1)


@dataclass
class There:
    """So many parties whose masked sum is made elsewhere."""

    came: int
    clients = np.arange(PARTIES)

    def collected(self, _: object) -> Part:
        seen = Observed(contributions=self.came, dropped=0, unclipped=0)
        return Part(total=Whole(steps=np.full(SIZE, 3), step=2.0**-4), observed=seen)

    def cohort(self, _: object, *, round: int) -> "There":
        return self


def test_a_sum_from_elsewhere_is_taken_with_its_shares_on_it() -> None:
    plan = of_clients().calibrate(BUDGET)
    whole, short = opened(plan).round(0), opened(plan).round(0)
    whole.ask(There(PARTIES))
    assert set(whole.release().total.steps.tolist()) == {3}
    short.ask(There(PARTIES - 1))
    with pytest.raises(DataError, match="the round is lost"):
        short.release()


@pytest.mark.parametrize(
    ("config", "changes", "field"),
    [
        (of_clients, {"sampling": Poisson}, "sampling"),
        (of_clients, {"sampling": FixedSize}, "sampling"),
        (of_clients, {"sampling": Cyclic}, "sampling"),
        (of_clients, {"clip": MedianClip()}, "clip"),
        (of_clients, {"clip": QuantileClip(clip_norm=0.5, bit_noise=2.0)}, "clip"),
        (of_clients, {"parties": 4}, "parties"),
        (of_clients, {"schedule": Schedule((STEP, replace(STEP, noise_multiplier=2.0)))}, "schedule"),
        (of_records, {"parties": None}, "parties"),
        (of_records, {"colluders": PARTIES}, "colluders"),
        (of_records, {"colluders": 0}, "colluders"),
        (of_records, {"noise_by": "server"}, "parties"),
        (of_records, {"noise_by": "server", "parties": None, "colluders": 1}, "colluders"),
        (of_records, {"steps": 2}, "steps"),
        (of_silo, {"noise_by": "server"}, "steps"),
        (of_silo, {"clip": NormalisedClip()}, "clip"),
        (of_silo, {"sampling": Everyone}, "sampling"),
        (of_silo, {"schedule": growing(rounds=4, first_cohort=10, last_cohort=40)}, "schedule"),
        (of_silo, {"unit": "person"}, "unit"),
        (of_silo, {"unit": "client", "noise_by": "server"}, "steps"),
        (of_clients, {"noise_by": "party", "clip": MedianClip()}, "clip"),
        (of_clients, {"noise_by": "party", "clip": QuantileClip(clip_norm=1.0, bit_noise=100.0)}, "clip"),
        (of_clients, {"noise_by": "party", "sampling": Poisson}, "sampling"),
        (of_clients, {"noise_by": "elsewhere"}, "noise_by"),
    ],
)
def test_what_has_no_proof_or_no_meaning_is_refused(config: Any, changes: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**changes)
    assert refused.value.field == field


def test_clients_who_may_be_missing_are_refused() -> None:
    run = opened(of_clients().calibrate(BUDGET))
    run.check_clients(clients=PARTIES, declared=False)
    with pytest.raises(ConfigError, match="exact number"):
        run.check_clients(clients=PARTIES, declared=True)


def test_the_statement_says_against_whom_and_what_more_colluders_know() -> None:
    plan = of_clients(members=20, schedule=constant(rounds=3, cohort=20), colluders=6).calibrate(BUDGET)
    run = opened(plan, size=10)
    run.charge(0, FixedClip(clip_norm=0.5), listed=20)
    found = run.statement()
    assert found.trust == SHARED_TRUST.format(parties=20, colluders=6)
    assert "X25519 together with ML-KEM-768" in found.text().replace("\n  ", " ")
    said = next(each for each in found.caveats if "collude with a server" in each)
    for colluding in (10, 13, 19):
        exposed = GaussianDpEvent(plan.noise_multiplier / math.sqrt(colluding + 1 - 6))  # with one honest party listed
        worst = price(SelfComposedDpEvent(exposed, 3), delta=1e-5, relation=plan.relation).epsilon
        assert f"{colluding}, {rounded_up(worst)}" in said
    assert LIARS in found.caveats
    assert Statement.from_json(found.to_json()) == found
    pair = opened(of_clients(members=2, schedule=constant(rounds=3, cohort=2)).calibrate(BUDGET)).statement()
    assert LIARS in pair.caveats
    assert not any("collude with a server" in each for each in pair.caveats)


def test_statements_of_local_noise_say_that_other_rounds_were_shared() -> None:
    plan = of_clients(colluders=2).calibrate(BUDGET)
    run = opened(plan)
    run.charge(0, FixedClip(clip_norm=0.5), listed=PARTIES)
    local = of_clients(noise_by="party", schedule=constant(rounds=1, cohort=PARTIES).scaled(50.0)).plan(BUDGET)
    weaker, caveat = (
        of_clients(colluders=1).calibrate(BUDGET),
        OTHER_TRUST.format(trust=SOME_TRUST.format(against="2 of 5")),
    )
    assert [caveat in each.statement(run.ledger, own=0).caveats for each in (local, weaker)] == [True, True]
    assert not any("2 of 5" in each for each in plan.statement(run.ledger, own=1).caveats)


def test_a_masked_sum_of_records_is_paid_before_it_is_asked_for() -> None:
    plan = of_records(colluders=2).calibrate(BUDGET)
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation)
    run = PrivateRun(plan, ledger=ledger, randomness=SeededRandomness(1), size=3)
    shared = plan.shared(0, FixedClip(clip_norm=0.5))
    assert shared is not None

    def collect() -> Whole:
        assert ledger.charges()[0] == 1
        return Whole(steps=np.array([1, -2, 3]), step=shared.step)

    opened = run.round(0)
    opened.add_shared(3, collect)
    assert opened.release().total.steps.tolist() == [1, -2, 3]
    for wrong in (Whole(steps=np.zeros(2, np.int64), step=shared.step), Whole(steps=np.zeros(3, np.int64), step=1.0)):
        with pytest.raises(DataError, match="does not fit the plan's grid"):
            run.round(1).add_shared(3, lambda wrong=wrong: wrong)  # type: ignore[misc]  # bound now
