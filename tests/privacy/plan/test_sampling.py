import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent
from hypothesis import given
from hypothesis import strategies as st

from incrowd._random import Randomness, SeededRandomness, SystemRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.plan.sampling import (
    Cyclic,
    Everyone,
    FixedSize,
    Poisson,
    Sampler,
    Schedule,
    Step,
    constant,
    growing,
    preceded,
)

SOURCES = pytest.mark.parametrize("source", [SystemRandomness(), SeededRandomness(5)], ids=["system", "seeded"])
ALL: list[Sampler] = [
    Poisson(clients=40, cohort=12.5),
    Poisson(clients=40, cohort=40),
    FixedSize(clients=40, cohort=7),
    FixedSize(clients=40, cohort=40),
    Everyone(clients=40, cohort=40),
    Cyclic(clients=40, cohort=40 / 6),
]


@pytest.mark.parametrize("sampler", ALL, ids=repr)
@SOURCES
def test_every_cohort_is_a_sorted_set_of_existing_clients(sampler: Sampler, source: Randomness) -> None:
    for number in range(20):
        cohort = sampler.sample(source.stream("sampling", number), round=number)
        assert np.all(np.diff(cohort) > 0)
        assert cohort.size == 0 or (cohort[0] >= 0 and cohort[-1] < sampler.clients)


def participation_counts(sampler: Sampler, source: Randomness, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    counts, sizes = np.zeros(sampler.clients), np.zeros(rounds)
    for number in range(rounds):
        cohort = sampler.sample(source.stream("sampling", number), round=number)
        counts[cohort] += 1
        sizes[number] = cohort.size
    return counts, sizes


def is_poisson(sampler: Sampler, source: Randomness, probability: float) -> bool:
    """Do participation and the cohort's size fit independent coins of this probability, within 5 standard errors?"""
    rounds = 4000
    counts, sizes = participation_counts(sampler, source, rounds)
    one = math.sqrt(probability * (1 - probability) * rounds)
    size_variance = sampler.clients * probability * (1 - probability)
    return bool(
        np.all(np.abs(counts - probability * rounds) < 5 * one)
        and abs(sizes.mean() - sampler.clients * probability) < 5 * math.sqrt(size_variance / rounds)
        and abs(sizes.var() / size_variance - 1) < 5 * math.sqrt(2 / rounds)
    )


@SOURCES
def test_poisson_draws_independent_coins_of_the_stated_probability(source: Randomness) -> None:
    sampler = Poisson(clients=30, cohort=6)
    assert is_poisson(sampler, source, 0.2)
    assert not is_poisson(sampler, source, 0.2 * 2 / 3)
    assert not is_poisson(sampler, source, 0.2 * 3 / 2)


@SOURCES
def test_a_cohort_of_fixed_size_is_told_apart_from_poisson(source: Randomness) -> None:
    sampler = FixedSize(clients=30, cohort=6)
    counts, sizes = participation_counts(sampler, source, 4000)
    assert np.all(sizes == 6)
    assert np.all(np.abs(counts - 800) < 5 * math.sqrt(0.2 * 0.8 * 4000))
    assert not is_poisson(sampler, source, 0.2)


@SOURCES
def test_every_set_of_fixed_size_is_equally_likely(source: Randomness) -> None:
    sampler = FixedSize(clients=5, cohort=2)
    draws = [tuple(sampler.sample(source.stream("sampling", t), round=t)) for t in range(5000)]
    _, counts = np.unique(draws, axis=0, return_counts=True)
    assert counts.size == math.comb(5, 2)
    assert ((counts - 500) ** 2 / 500).sum() < 33.7  # chi-square of 9 degrees of freedom, one in 10,000


def test_poisson_probability_is_rounded_down() -> None:
    class Edge:
        """Every client draws the first number that must not take part."""

        def bits(self, size: int) -> np.ndarray:
            return np.full(size, threshold, np.uint64)

        normals = laplaces = bits

    sampler = Poisson(clients=3, cohort=1)
    threshold = int(sampler.sampling_prob * 2**64)
    assert threshold / 2**64 <= sampler.sampling_prob
    assert sampler.sample(Edge(), round=0).size == 0
    threshold -= 1
    assert sampler.sample(Edge(), round=0).size == 3


def test_events_say_what_is_executed() -> None:
    assert Poisson(clients=10, cohort=2.5).event(1.5) == PoissonSampledDpEvent(0.25, GaussianDpEvent(1.5))
    assert Poisson(clients=10, cohort=10).event(1.5) == GaussianDpEvent(1.5)
    assert Everyone(clients=10) == Everyone(clients=10, cohort=10)
    assert Everyone(clients=10).event(1.5) == GaussianDpEvent(1.5)
    half = GaussianDpEvent(0.75)  # one replaced client moves the sum by 2C
    assert FixedSize(clients=10, cohort=4).event(1.5) == SampledWithoutReplacementDpEvent(10, 4, half)
    assert FixedSize(clients=10, cohort=10).event(1.5) == half


def test_cyclic_rounds_are_not_priced_one_by_one() -> None:
    with pytest.raises(ConfigError, match="sampling = 'Cyclic': use Everyone or Poisson"):
        Cyclic(clients=10, cohort=5).event(1.0)


@given(clients=st.integers(1, 60), data=st.data(), rounds=st.integers(1, 50))
def test_cyclic_participations_are_exactly_groups_apart(clients: int, data: st.DataObject, rounds: int) -> None:
    sampler = Cyclic(clients=clients, cohort=clients / data.draw(st.integers(1, clients)))
    rows = np.zeros((rounds, clients), bool)
    for number in range(rounds):
        rows[number, sampler.sample(SeededRandomness(0).stream("s"), round=number)] = True
    for client in range(clients):
        times = np.flatnonzero(rows[:, client])
        assert np.all(np.diff(times) == sampler.groups)
        assert len(times) <= -(-rounds // sampler.groups)
    assert rows.sum(axis=0).max() == -(-rounds // sampler.groups)
    sizes = rows[: sampler.groups].sum(axis=1)
    assert sizes.max() - sizes.min() <= 1
    assert sampler.expected_cohort == clients / sampler.groups


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Poisson(clients=0, cohort=1), "clients"),
        (lambda: Poisson(clients=10, cohort=0), "cohort"),
        (lambda: Poisson(clients=10, cohort=10.5), "cohort"),
        (lambda: Poisson(clients=10, cohort=math.nan), "cohort"),
        (lambda: FixedSize(clients=10, cohort=11), "cohort"),
        (lambda: FixedSize(clients=10, cohort=2.5), "cohort"),
        (lambda: FixedSize(clients=-1, cohort=1), "clients"),
        (lambda: Everyone(clients=0, cohort=0), "clients"),
        (lambda: Everyone(clients=10, cohort=9), "cohort"),
        (lambda: Cyclic(clients=3, cohort=3 / 4), "cohort"),
        (lambda: Cyclic(clients=3, cohort=2), "cohort"),
    ],
)
def test_impossible_samplers_are_refused(make: object, field: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


# Schedules


@given(rounds=st.integers(1, 200), first=st.integers(1, 500), last=st.integers(1, 500), steps=st.integers(1, 30))
def test_growing_keeps_noise_squared_over_cohort_constant(rounds: int, first: int, last: int, steps: int) -> None:
    schedule = growing(rounds=rounds, first_cohort=first, last_cohort=last, steps=steps)
    assert schedule.rounds == rounds
    assert schedule.at(rounds - 1).cohort == (last if min(rounds, steps) > 1 else first)
    assert schedule.at(0).cohort == first
    ratios = [step.noise_multiplier**2 / step.cohort for step in schedule.steps]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    cohorts = [schedule.at(number).cohort for number in range(rounds)]
    assert cohorts == sorted(cohorts, reverse=first > last)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=8))
def test_at_finds_the_step_of_every_round(rows: list[tuple[int, int, int]]) -> None:
    flat = [(m, z) for n, m, z in rows for _ in range(n)]
    schedule = Schedule(tuple(Step(rounds=n, cohort=m, noise_multiplier=z) for n, m, z in rows))
    assert schedule.rounds == len(flat)
    found = [(schedule.at(t).cohort, schedule.at(t).noise_multiplier) for t in range(len(flat))]
    assert found == flat
    for outside in (-1, len(flat)):
        with pytest.raises(ConfigError, match=f"give a round from 0 to {len(flat) - 1}"):
            schedule.at(outside)


def test_scaling_changes_noise_alone() -> None:
    steps = Step(rounds=1, cohort=1, noise_multiplier=3), Step(rounds=1, cohort=2, noise_multiplier=4)
    schedule = Schedule(steps).scaled(0.5)
    assert [(s.cohort, s.noise_multiplier) for s in schedule.steps] == [(1, 1.5), (2, 2)]


def test_impossible_schedules_are_refused() -> None:
    for make, field in (
        (lambda: Schedule(()), "steps"),
        (lambda: constant(rounds=0, cohort=1), "rounds"),
        (lambda: constant(rounds=1, cohort=math.nan), "cohort"),
        (lambda: Step(rounds=1, cohort=1, noise_multiplier=0), "noise_multiplier"),
        (lambda: growing(rounds=3, first_cohort=0, last_cohort=2), "first_cohort"),
        (lambda: growing(rounds=3, first_cohort=1, last_cohort=2, steps=0), "steps"),
        (lambda: preceded(constant(rounds=2, cohort=3), share=1.0), "share"),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.field == field


@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
@pytest.mark.parametrize("schedule", [constant(rounds=7, cohort=20), growing(rounds=9, first_cohort=5, last_cohort=50)])
def test_a_round_before_all_others_has_its_share_of_what_is_said(schedule: Schedule, share: float) -> None:
    found = preceded(schedule, share=share)
    said = [1 / found.at(number).noise_multiplier ** 2 for number in range(found.rounds)]
    assert found.rounds == schedule.rounds + 1
    assert found.at(0).cohort == schedule.at(0).cohort
    assert said[0] / sum(said) == pytest.approx(share)
    assert [found.at(number + 1) for number in range(schedule.rounds)] == [
        replace(schedule.at(number), rounds=found.at(number + 1).rounds) for number in range(schedule.rounds)
    ]
