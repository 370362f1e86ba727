import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import ConfigError
from incrowd.privacy.plan.sampling import Schedule, Step, constant, growing, listed, preceded


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
    schedule = listed(cohorts=[1, 2], noise=[3, 4]).scaled(0.5)
    assert [(s.cohort, s.noise_multiplier) for s in schedule.steps] == [(1, 1.5), (2, 2)]


def test_impossible_schedules_are_refused() -> None:
    for make, field in (
        (lambda: Schedule(()), "steps"),
        (lambda: constant(rounds=0, cohort=1), "rounds"),
        (lambda: constant(rounds=1, cohort=math.nan), "cohort"),
        (lambda: Step(rounds=1, cohort=1, noise_multiplier=0), "noise_multiplier"),
        (lambda: listed(cohorts=[1, 2], noise=[1]), "noise"),
        (lambda: listed(cohorts=[]), "steps"),
        (lambda: growing(rounds=3, first_cohort=0, last_cohort=2), "first_cohort"),
        (lambda: growing(rounds=3, first_cohort=1, last_cohort=2, steps=0), "steps"),
    ):
        with pytest.raises(ConfigError) as caught:
            make()
        assert caught.value.field == field


@pytest.mark.parametrize("share", [0.01, 0.25, 0.9])
@pytest.mark.parametrize(
    "schedule",
    [constant(rounds=7, cohort=20), growing(rounds=9, first_cohort=5, last_cohort=50)],
)
def test_a_round_before_all_others_has_its_share_of_what_is_said(schedule: Schedule, share: float) -> None:
    found = preceded(schedule, share=share)
    said = [1 / found.at(number).noise_multiplier ** 2 for number in range(found.rounds)]
    assert found.rounds == schedule.rounds + 1
    assert found.at(0).cohort == schedule.at(0).cohort
    assert said[0] / sum(said) == pytest.approx(share)
    assert [found.at(number + 1) for number in range(schedule.rounds)] == [
        replace(schedule.at(number), rounds=found.at(number + 1).rounds) for number in range(schedule.rounds)
    ]


@pytest.mark.parametrize("share", [0, 1, -0.5, float("nan")])
def test_a_share_of_what_is_said_is_between_none_and_all(share: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        preceded(constant(rounds=2, cohort=3), share=share)
