import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dp_accounting import DpEvent

from incrowd._random import Randomness, SeededRandomness, Stream, SystemRandomness
from incrowd.errors import BudgetExceeded, ConfigError, DataError, LedgerMismatch
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, FixedClip, MedianClip, PerLayerClip, QuantileClip
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.paid import RoundNoise
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Schedule, Step
from incrowd.privacy.release import PrivateRun
from tests.algorithms.silos import plan as records
from tests.reference.stacks import Stack, StackCohort

BUDGET = Budget(epsilon=100.0, delta=1e-6)


def a_plan(*, clip: Clip | MedianClip | None = None, noise: float = 1.0, rounds: int = 3, clients: int = 20) -> Plan:
    step = Step(rounds=rounds, cohort=float(clients), noise_multiplier=noise)
    return PlanConfig(
        members=clients,
        schedule=Schedule((step,)),
        sampling=Everyone,
        clip=FixedClip(clip_norm=2.0) if clip is None else clip,
    ).plan(BUDGET)


def a_run(plan: Plan, *, size: int, randomness: Randomness | None = None, ledger: Ledger | None = None) -> PrivateRun:
    ledger = Ledger.in_memory(budget=BUDGET, relation=plan.relation) if ledger is None else ledger
    randomness = SeededRandomness(3) if randomness is None else randomness
    return PrivateRun(plan, ledger=ledger, randomness=randomness, size=size)


@pytest.mark.parametrize("randomness", [SeededRandomness(1), SystemRandomness()], ids=["seeded", "system"])
def test_a_release_is_the_clipped_sum_and_noise_over_the_public_denominator(randomness: Randomness) -> None:
    size = 4000
    run = a_run(a_plan(noise=1.5), size=size, randomness=randomness)
    contributions = np.random.Generator(np.random.PCG64(0)).normal(size=(7, size))
    open_round = run.round(0)
    open_round.add(contributions, clients=range(7))
    released = open_round.release()
    clipped = 2.0 * contributions / np.linalg.norm(contributions, axis=1, keepdims=True)
    noise = released.mean * 20 - clipped.sum(axis=0)
    for sigma, fits in ((3.0, True), (2.0, False), (4.5, False)):
        assert bool(abs(noise.std() / sigma - 1) < 5 / math.sqrt(2 * size)) is fits
    assert abs(noise.mean()) < 5 * 3.0 / math.sqrt(size)
    assert released.noise_std == 3.0
    assert (released.observed is not None) is randomness.simulated


def test_the_event_is_charged_before_the_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 15, on the path that every release takes."""
    order: list[str] = []
    charge, stream = Ledger.charge, SeededRandomness.stream

    def charging(self: Ledger, event: DpEvent, **named: Any) -> Receipt:
        receipt = charge(self, event, **named)
        order.append("charged")
        return receipt

    def drawing(self: SeededRandomness, purpose: str, *indices: int) -> Stream:
        order.append(purpose)
        return stream(self, purpose, *indices)

    monkeypatch.setattr(Ledger, "charge", charging)
    monkeypatch.setattr(SeededRandomness, "stream", drawing)
    a_run(a_plan(), size=1).round(0).release()
    assert order == ["charged", "noise"]


def test_a_ledger_of_another_relation_is_refused() -> None:
    with pytest.raises(LedgerMismatch, match="REPLACE_SPECIAL, the ledger's is REPLACE_ONE"):
        a_run(a_plan(), size=1, ledger=Ledger.in_memory(budget=BUDGET, relation=Relation.REPLACE_ONE))


def test_rounds_go_in_order_and_only_once() -> None:
    run = a_run(a_plan(rounds=2), size=1, randomness=SystemRandomness())
    with pytest.raises(ConfigError, match="the next round that the plan can pay for is 0"):
        run.round(1).release()
    first = run.round(0)
    first.release()
    assert run.next_round == 1
    with pytest.raises(ConfigError, match="it has been released"):
        first.release()
    with pytest.raises(ConfigError, match="it has been released"):
        first.add(np.zeros(1), clients=[0])
    with pytest.raises(ConfigError, match="fresh noise would cost again"):
        run.round(0).release()
    run.round(1).release()
    with pytest.raises(ConfigError, match="give a round from 0 to 1"):
        run.round(2)
    with pytest.raises(BudgetExceeded, match="all 2 rounds of the plan are charged"):
        run.round(0).release()


@pytest.mark.parametrize(
    "clip",
    [
        FixedClip(clip_norm=2.0),
        PerLayerClip(clip_norms=(1.0, 2.0), parts=(2, 2)),
        ElementwiseClip(limit=0.5, size=4),
        QuantileClip(clip_norm=1.0, bit_noise=3.0),
        MedianClip(),
    ],
    ids=lambda clip: type(clip).__name__,
)
def test_an_engine_s_chunks_give_what_single_contributions_give(clip: Clip | MedianClip) -> None:
    rows = np.random.Generator(np.random.PCG64(2)).normal(size=(9, 4)) * np.geomspace(0.1, 10, 9)[:, None]
    rows[4, 1] = math.nan
    one_by_one, chunked = (a_run(a_plan(clip=clip), size=4).round(0) for _ in range(2))
    for client, row in enumerate(rows):
        one_by_one.add(row, clients=[client])
    chunked.add_cohort(StackCohort([Stack(rows[:2]), Stack(rows[2:7], first=2), Stack(rows[7:], first=7)]))
    expected, got = one_by_one.release(), chunked.release()
    # A sum where the arrays live is rounded towards zero to 2^-18 of the bound, one contribution at a time.
    assert got.mean == pytest.approx(expected.mean, abs=9 * 2.0**-18 * expected.clip_norm / 20)
    assert got == expected
    assert expected.observed is not None
    assert expected.observed.contributions == 9
    assert expected.observed.dropped == 1
    assert expected.observed.fraction_clipped == 1 - expected.observed.unclipped / 9


def test_a_contribution_of_another_size_is_refused() -> None:
    with pytest.raises(DataError, match="does not fit a run over 3"):
        a_run(a_plan(), size=3).round(0).add(np.zeros(4), clients=[0])


class TestLocalNoise:
    def a_local_run(self, *, size: int, clients: int = 20, noise: float = 40.0) -> PrivateRun:
        step = Step(rounds=2, cohort=clients, noise_multiplier=noise)
        config = PlanConfig(
            members=clients,
            schedule=Schedule((step,)),
            sampling=Everyone,
            noise_by="party",
            clip=FixedClip(clip_norm=2.0),
        )
        return a_run(config.plan(BUDGET), size=size)

    @pytest.mark.parametrize("contributions", [1, 9])
    def test_every_contribution_brings_its_own_noise(self, contributions: int) -> None:
        size = 5000
        open_round = self.a_local_run(size=size).round(0)
        open_round.add(np.full((contributions, size), 1e-3), clients=range(contributions))
        released = open_round.release()
        sigma = 80.0 * math.sqrt(contributions)
        assert released.noise_std == pytest.approx(80.0 * math.sqrt(20))  # of as many as should answer: a public number
        for scale, fits in ((1.0, True), (2 / 3, False), (3 / 2, False)):
            assert bool(abs(released.mean.std() * 20 / (scale * sigma) - 1) < 5 / math.sqrt(2 * size)) is fits

    def test_a_client_pays_for_what_it_sends_and_gains_nothing_from_others(self) -> None:
        """Twice the noise multiplier of central privacy, for one value against another is two bounds apart."""
        plan = self.a_local_run(size=1).plan
        assert plan.relation is Relation.REPLACE_ONE
        central = a_plan(noise=20.0, rounds=2)
        assert plan.price.epsilon == pytest.approx(central.price.epsilon)
        assert "nobody is trusted" in self.a_local_run(size=1).statement().text()


class TestAdaptiveClips:
    @pytest.mark.slow
    def test_the_fraction_that_moves_the_bound_is_noised(self) -> None:
        clip = QuantileClip(clip_norm=1.0, bit_noise=4.0, quantile=0.5, learning_rate=1.0)

        def fraction(seed: int) -> float:
            open_round = a_run(a_plan(clip=clip), size=1, randomness=SeededRandomness(seed)).round(0)
            open_round.add(np.full((14, 1), 0.5), clients=range(14))
            open_round.add(np.full((6, 1), 5.0), clients=range(14, 20))
            after = open_round.release().clip
            assert isinstance(after, QuantileClip)
            return 0.5 - math.log(after.clip_norm)

        seen = np.array([fraction(seed) for seed in range(400)])
        inside = seen[(seen > 0) & (seen < 1)]  # the fraction is limited to what a fraction can be
        assert abs(np.median(seen) - 14 / 20) < 5 * 1.26 * (4.0 / 20) / math.sqrt(400)
        assert inside.size > 300
        below = np.mean(seen <= 14 / 20 - 4.0 / 20)  # one standard deviation of the bits' noise: 15.9 %
        assert abs(below - 0.1587) < 5 * math.sqrt(0.1587 * 0.8413 / 400)

    @pytest.mark.parametrize(("value", "by"), [(0.5, 0.5), (5.0, -0.5), (math.nan, 0.0)])
    def test_one_client_moves_the_sum_of_bits_by_half_of_one_as_their_noise_supposes(
        self, value: float, by: float
    ) -> None:
        """A bit of 0 or 1 would move it by 1, under noise for 1/2."""
        clip = QuantileClip(clip_norm=1.0, bit_noise=2.0, quantile=0.5, learning_rate=1.0)

        def bits(values: list[float]) -> float:
            open_round = a_run(a_plan(clip=clip), size=1, randomness=SeededRandomness(3)).round(0)
            open_round.add(np.array(values)[:, None], clients=range(len(values)))
            after = open_round.release().clip
            assert isinstance(after, QuantileClip)
            return -20 * math.log(after.clip_norm)

        others = [0.5] * 6 + [5.0] * 5
        assert bits([*others, value]) - bits(others) == pytest.approx(by, abs=1e-4)

    def test_the_bound_is_carried_from_round_to_round(self) -> None:
        run = a_run(a_plan(clip=QuantileClip(clip_norm=1.0, bit_noise=3.0)), size=1)
        first = run.round(0)
        with pytest.raises(ConfigError, match="release it first"):
            _ = first.after
        clip = first.release().clip
        second = run.round(1, carry=first.after).release()
        assert isinstance(clip, QuantileClip)
        assert second.clip_norm == clip.clip_norm
        with pytest.raises(ConfigError, match="give the carry of the round before it"):
            run.round(2)

    def test_noise_belongs_to_the_bound_that_clipped_in_its_round(self) -> None:
        """Rule 6: a well-known framework adds the noise of the next round's bound."""
        size, clip = 20000, QuantileClip(clip_norm=5.0, bit_noise=50.0, learning_rate=2.0)
        run = a_run(a_plan(clip=clip), size=size)
        first = run.round(0)
        releases = [first.release(), run.round(1, carry=first.after).release()]
        assert releases[0].clip_norm == 5.0
        assert not 4.0 < releases[1].clip_norm < 6.0, "the bound has moved"
        for released in releases:
            std = released.clip_norm * clip.update_multiplier(1.0)
            assert released.noise_std == std
            assert released.mean.std() * 20 == pytest.approx(std, rel=5 / math.sqrt(2 * size))


def test_the_cohort_is_drawn_as_planned() -> None:
    step = Step(rounds=2, cohort=4, noise_multiplier=30.0)
    plan = PlanConfig(members=20, schedule=Schedule((step,)), sampling=FixedSize).plan(BUDGET)
    run = a_run(plan, size=1)
    assert [len(run.cohort(number)) for number in range(2)] == [4, 4]
    assert list(run.cohort(0)) == list(run.cohort(0)) != list(run.cohort(1))
    assert run.round(0).release().round == 0
    run.check_clients(clients=20, declared=False)
    with pytest.raises(ConfigError, match=r"clients = 20: .* plan for 10"):
        run.check_clients(clients=10, declared=False)


FINE, EXTREME = (GaussianNoise(noise_multiplier=noise, clip_norm=1.0) for noise in (1.0, 1e12))


@pytest.mark.parametrize("changes", [{"noise": EXTREME}, {"noise": EXTREME, "local": True}, {"bits": EXTREME}])
def test_noise_that_fits_no_grid_is_seen_before_it_is_paid_for(changes: dict[str, Any]) -> None:
    noise = RoundNoise(round=0, clip=FixedClip(clip_norm=1.0), noise=FINE, clients=100)
    noise.check(1000)
    with pytest.raises(ConfigError, match="noise scale"):
        replace(noise, **changes).check(1000)
    with pytest.raises(ConfigError, match="noise scale"):
        records(noise=1e12).training(1000)
