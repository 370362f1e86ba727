"""A reader of what is released: its low bits tell nothing, and nothing in it is longer than its bound.

A sum that stays a float keeps the private value's low bits whatever whole steps are added to it, so what is left after
dividing by the step tells which of two values a client holds. A clip of one's own was taken at its word.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import (
    Clip,
    ElementwiseClip,
    FixedClip,
    MedianClip,
    NormalisedClip,
    PerLayerClip,
    QuantileClip,
    clip_rows,
)
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.paid import RoundNoise
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson, Schedule, Step
from incrowd.privacy.release import PrivateRun, Release
from tests.algorithms.silos import MODEL, paying
from tests.algorithms.silos import plan as silo_plan
from tests.attacks.released import plan_of, run_of
from tests.privacy.receipts import paid, roomy
from tests.reference.stacks import Stack, StackCohort

pytestmark = pytest.mark.watched


BUDGET = Budget(epsilon=1e5, delta=1e-6)
CLIENTS, SIZE = 6, 8
VALUES = 0.3, 0.3000001
SOURCES = st.sampled_from([SeededRandomness(3), SystemRandomness()])

CLIPS: list[Clip | MedianClip] = [
    FixedClip(clip_norm=0.7),
    NormalisedClip(clip_norm=3.0),
    PerLayerClip(clip_norms=(0.3, 1.1), parts=(3, 5)),
    ElementwiseClip(limit=0.2, size=SIZE),
    QuantileClip(clip_norm=0.9, bit_noise=8.0),
    MedianClip(),
]


@cache
def plans() -> list[Plan]:
    """One of every kind: sampler, place of the noise, clip."""
    found: list[Plan] = [
        PlanConfig.in_turns(clients=CLIENTS, rounds=2, groups=1).calibrate(Budget(epsilon=9.0, delta=1e-6))
    ]
    for sampling, cohort in ((Everyone, CLIENTS), (Poisson, 3), (FixedSize, 3)):
        for clip in CLIPS:
            step = Step(rounds=2, cohort=cohort, noise_multiplier=1.3)
            config = PlanConfig(members=CLIENTS, schedule=Schedule((step,)), sampling=sampling, clip=clip)
            found.append(config.plan(BUDGET))
    for clip in CLIPS[:4]:
        step = Step(rounds=2, cohort=CLIENTS, noise_multiplier=1.3)
        config = PlanConfig(members=CLIENTS, schedule=Schedule((step,)), sampling=Everyone, noise_by="party", clip=clip)
        found.append(config.plan(BUDGET))
    return found


def released(plan: Plan, rows: Floats, randomness: Randomness) -> Release:
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    asked = PrivateRun(plan, ledger=ledger, randomness=randomness, size=rows.shape[1]).round(0)
    cohort = set(PrivateRun.cohort(asked._run, 0).tolist())
    for client, row in enumerate(rows):
        if client in cohort:
            asked.add(row, clients=[client])
    return asked.release()


def left_over(numbers: Floats, step: float) -> Floats:
    """What is left of released numbers after dividing them into whole steps: 0 for each, or a secret's low bits."""
    return np.array([math.remainder(number, step) for number in numbers])


def local_plan() -> Plan:
    step = Step(rounds=1, cohort=CLIENTS, noise_multiplier=1.3)
    clip = FixedClip(clip_norm=0.7)
    config = PlanConfig(members=CLIENTS, schedule=Schedule((step,)), sampling=Everyone, noise_by="party", clip=clip)
    return config.plan(BUDGET)


def holding(value: float) -> Floats:
    rows = np.full((CLIENTS, SIZE), 0.1)
    rows[0] = value / math.sqrt(SIZE)
    return rows


def told_apart(release: Callable[[Floats], tuple[Floats, float]], *, trials: int = 40) -> float:
    """How often an attacker who knows both values and all other clients says which one was held."""
    right = 0
    for trial in range(trials):
        held = trial % 2
        numbers, step = release(holding(VALUES[held]))
        bits = left_over(numbers, step)
        candidates = [np.abs(bits - left_over(holding(value).sum(axis=0), step)).max() for value in VALUES]
        right += held == int(np.argmin(candidates))
    return right / trials


def test_the_low_bits_of_locally_noised_sums_do_not_tell_what_a_client_holds() -> None:
    def release(rows: Floats) -> tuple[Floats, float]:
        found = released(local_plan(), rows, SystemRandomness())
        return found.mean * CLIENTS, found.total.step

    assert told_apart(release) == 0.5  # whatever is held, the same bits: always the same guess


@pytest.mark.slow
def test_control_a_sum_that_stays_a_float_tells_them_apart() -> None:
    """The twin adds whole steps of noise to a float."""
    noise = GaussianNoise(noise_multiplier=1.3, clip_norm=0.7)

    def release(rows: Floats) -> tuple[Floats, float]:
        total, step = rows.sum(axis=0), noise.step(SIZE, contributions_bound=1)
        for _ in range(CLIENTS):
            receipt = paid(noise, randomness=SystemRandomness())
            total += noise.add(np.zeros(SIZE), receipt=receipt, at=("noise",), contributions_bound=1).values
        return total, step

    assert told_apart(release) == 1.0


@pytest.mark.slow
@settings(max_examples=150)
@given(st.deferred(lambda: st.sampled_from(plans())), SOURCES, st.integers(0, 2**32))
def test_every_release_of_every_plan_is_whole_steps(plan: Plan, source: Randomness, seed: int) -> None:
    rows = np.random.Generator(np.random.PCG64(seed)).normal(size=(CLIENTS, SIZE))
    found = released(plan, rows, source)
    assert found.total.steps.dtype == np.int64
    assert math.frexp(found.total.step)[0] == 0.5  # a power of two, from public numbers: dividing by it is exact
    assert not left_over(found.mean * found.cohort, found.total.step / 2**8).any()


@pytest.mark.slow
@given(st.sampled_from(CLIPS[:4]), st.integers(0, 2**32), st.integers(1, 3))
def test_the_step_does_not_depend_on_the_data(clip: Clip, seed: int, answers: int) -> None:
    rows = np.random.Generator(np.random.PCG64(seed)).normal(size=(CLIENTS, SIZE))
    step = Step(rounds=1, cohort=CLIENTS, noise_multiplier=1.3)
    plan = PlanConfig(members=CLIENTS, schedule=Schedule((step,)), sampling=Everyone, clip=clip).plan(BUDGET)
    full, few = released(plan, rows, SeededRandomness(0)), released(plan, 1e-3 * rows[:answers], SeededRandomness(0))
    assert full.total.step == few.total.step


def test_what_leaves_a_silo_s_steps_and_a_device_is_whole_steps() -> None:
    run = paying(silo_plan())
    exact = np.full(MODEL.size, 1e-3 / 3)
    step = run.training.noise.step(MODEL.size, contributions_bound=run.training.most_records)
    assert not left_over(run.round(0).noise(exact), step).any()
    for kind in ("laplace", "gaussian"):
        delta = 1e-6 if kind == "gaussian" else None
        of = Mechanism(size=SIZE, clip=0.5, epsilon=1.0, noise=kind, delta=delta)
        numbers = Contribution(of, np.full(SIZE, 0.1234567)).release(
            charge=lambda each: roomy(RELATION).charge(each.event("model"), pays_for=each.pays_for)
        )
        assert not left_over(numbers.values, 2.0**-40).any()
        assert numbers.steps.dtype == np.int64


@pytest.mark.parametrize(
    "parts",
    [{}, {"noise_by": "party"}, {"noise": 2.0, "clip": QuantileClip(clip_norm=1.0, bit_noise=1e12)}],
    ids=["central", "local", "bits"],
)
def test_noise_that_fits_no_grid_is_refused_before_it_is_paid_for(parts: dict[str, Any]) -> None:
    run = run_of(plan_of(**{"noise": 1e12} | parts))
    with pytest.raises(ConfigError, match="noise scale"):
        run.round(0).release()
    assert run.ledger.charges() == (0, 0)


def test_noise_of_so_many_clients_that_their_sum_would_wrap_is_refused_before_it_is_paid_for() -> None:
    """Whole numbers of 64 bits wrap in silence: what came out would be neither the sum nor anything like it."""
    noise = GaussianNoise(noise_multiplier=1e6, clip_norm=1.0)
    local = RoundNoise(round=0, clip=FixedClip(clip_norm=1.0), noise=noise, clients=1000, local=True)
    local.check(1000)
    with pytest.raises(ConfigError, match="does not fit 64 bits"):
        replace(local, clients=2**25).check(1000)


@given(st.integers(1, 2**26), st.floats(1e-12, 1e12))
def test_contributions_are_added_up_exactly_in_any_order(contributions: int, bound: float) -> None:
    step = grid.contribution_step(bound, contributions_bound=contributions)
    assert math.frexp(step)[0] == 0.5
    assert contributions * bound / step < 2.0**53
    assert step <= bound * 2.0**-26


BOUND, NUMBERS = 0.5, 6
OF_ALL_LENGTHS = np.array(
    [[1.0] * NUMBERS, [0.01] * NUMBERS, [1e160] * NUMBERS, [-3.0, *[0.0] * (NUMBERS - 1)], [0.0] * NUMBERS]
)


@dataclass(frozen=True, kw_only=True)
class Own(FixedClip):
    """A clip that does so many times what it states."""

    times: float

    def factors(self, norms: Floats) -> Floats:
        return super().factors(norms) * self.times

    def clip(self, rows: Floats) -> Floats:
        with np.errstate(over="ignore", invalid="ignore"):
            return super().clip(rows) * self.times


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
@pytest.mark.parametrize("times", [1.0, 2.0, -3.0, 1e300, np.inf, np.nan])
def test_what_enters_by_a_clip_of_one_s_own_is_never_longer_than_the_bound(times: float) -> None:
    """It may scale up, give NaN, or bound another norm: noise for its bound would hide contributions of any length."""
    clip = Own(clip_norm=BOUND, times=times)
    for row in OF_ALL_LENGTHS:
        clipped = clip_rows(clip, row).rows[0]
        assert np.linalg.norm(clipped) <= BOUND
        one, several = (ClippedSum(NUMBERS, clip, contributions_bound=2) for _ in range(2))
        one.add(row[None])
        several.add_summed(clip, StackCohort([Stack(row[None])]))
        for whole in (one.close(), several.close()):
            assert np.linalg.norm(whole.steps * whole.step) <= BOUND


def test_control_a_clip_that_bounds_is_left_alone() -> None:
    ours, own = FixedClip(clip_norm=BOUND), Own(clip_norm=BOUND, times=1.0)
    np.testing.assert_allclose(clip_rows(own, OF_ALL_LENGTHS).rows, clip_rows(ours, OF_ALL_LENGTHS).rows, rtol=1e-6)
    assert np.linalg.norm(clip_rows(ours, OF_ALL_LENGTHS).rows[0]) > 0.99 * BOUND
