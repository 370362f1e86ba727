from dataclasses import replace

import numpy as np
import pytest

from incrowd import Local
from incrowd._random import SeededRandomness
from incrowd.data import Split
from incrowd.learning import ClientTensors
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.privacy.mechanism.grid import GaussianNoise
from incrowd.privacy.plan.sampling import FixedSize, Schedule, Step, constant
from incrowd.privacy.statement import MEDIAN
from papers.geyer.measure import ROWS, learn, partitioned, shaped
from papers.geyer.moments import LAMBDAS, log_moments
from papers.geyer.paper import CONSTANTS, FIXED, QUICK, PaperSetup, as_poisson, executed, within
from papers.shared import simulated_statement
from tests.privacy.receipts import noised
from tests.reference.one_client import contribution

LOCAL = Local(learning_rate=0.1, batches=4)


def budget(clients: int, epsilon: float = 8.0) -> Budget:
    return Budget(epsilon=epsilon, delta=ROWS[clients].delta)


def equal(cohort: float, noise_multiplier: float, rounds: int = 1) -> Schedule:
    return constant(rounds=rounds, cohort=cohort).scaled(noise_multiplier)


def one_by_one(schedule: Schedule, *, clients: int, budget: Budget) -> list[Step]:
    """Algorithm 1: before each round ask for the delta after it, and stop when it is too large."""
    cohorts = [step for step in schedule.steps[:-1] for _ in range(step.rounds)]
    rounds: list[Step] = []
    while True:
        step = cohorts[len(rounds)] if len(rounds) < len(cohorts) else schedule.steps[-1]
        rounds.append(replace(step, rounds=1))
        moments = log_moments(as_poisson(Schedule(tuple(rounds)), clients=clients))
        if (moments - LAMBDAS * budget.epsilon).min() > np.log(budget.delta):
            return rounds[:-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "schedule", "epsilon"),
    [
        (100, equal(50, 1.2), 8.0),
        (100, equal(100, 1.0), 8.0),
        (1000, Schedule((*equal(50, 0.9, 3).steps, *equal(200, 1.5).steps)), 4.0),
        (1000, Schedule((*equal(50, 0.9, 1000).steps, *equal(200, 1.5).steps)), 8.0),  # ends within its first step
        (100, Schedule((*equal(30, 1.5, 2).steps, *equal(100, 0.6).steps)), 4.0),  # not one of the last
    ],
)
def test_rounds_end_before_delta_passes_its_threshold(clients: int, schedule: Schedule, epsilon: float) -> None:
    found = within(schedule, clients=clients, budget=budget(clients, epsilon))
    assert found == Schedule(tuple(one_by_one(schedule, clients=clients, budget=budget(clients, epsilon))))


@pytest.mark.parametrize("clients", ROWS)
def test_the_paper_s_rounds_and_communications_are_possible_with_these_noises(clients: int) -> None:
    """Noise that was solved for elsewhere: an implementation of the moments accountant of its own."""
    row, noise = ROWS[clients], {100: 1.193, 1000: 1.436, 10_000: 1.092}[clients]
    cohort = row.communications / row.rounds
    enough, little = (
        within(equal(cohort, factor * noise), clients=clients, budget=budget(clients)).rounds
        for factor in (1.001, 0.99)
    )
    assert little < row.rounds <= enough < 1.01 * row.rounds


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "setup"), [*CONSTANTS.items(), *QUICK.items()])
def test_what_is_claimed_and_what_holds(clients: int, setup: PaperSetup) -> None:
    plan = setup.promise(clients, budget(clients))
    claim = setup.stated(plan, budget(clients))
    assert claim["epsilon"] == 8
    assert claim["accountant"] == "moments"
    assert 0 < float(str(claim["delta_reached"])) <= ROWS[clients].delta
    assert claim["warnings"] == [MEDIAN, FIXED]
    assert isinstance(plan.round(0).sampler, FixedSize)
    assert isinstance(plan.config.clip, MedianClip)
    assert plan.relation is Relation.REPLACE_ONE
    # Fixed sizes and a clip of 2 S under replacement cost far more; Poisson cohorts less, by a tighter accountant.
    assert float(str(claim["epsilon_if_poisson"])) < 8 < plan.price.epsilon
    assert MEDIAN in simulated_statement(plan).caveats


@pytest.mark.slow
def test_a_round_is_that_of_algorithm_1(split: Split) -> None:
    clients, cohort, sigma = 6, 3, 0.01
    setup = PaperSetup(local=LOCAL, schedule=equal(cohort, sigma), init_scale=1.5)
    plan = executed(setup.schedule, clients=clients, delta=1e-3)
    ((state, report),) = learn(setup, plan, split, seed=4)
    model, source = shaped(setup.model, split), SeededRandomness(seed=4)
    data = ClientTensors.of(partitioned(split, clients=clients, seed=4))
    first = 1.5 * model.initial(source)
    chosen = FixedSize(clients=clients, cohort=cohort).sample(source.stream("sampling", 0), round=0)
    updates = np.stack(
        [
            contribution(model, first, data, LOCAL, randomness=source, round=0, client=int(client)).numpy()
            for client in chosen
        ]
    ).astype(np.float64)
    norms = np.linalg.norm(updates, axis=1)
    assert report.clip_norm is not None
    assert report.clip_norm == pytest.approx(np.median(norms), rel=1e-6)
    median = report.clip_norm  # to the last bit: which coins of the exact noise are tossed again depends on its scale
    assert norms.max() > 1.01 * median  # so that the clip is seen
    clipped = (updates / np.maximum(1, norms / median)[:, None]).sum(axis=0)
    noise = GaussianNoise(noise_multiplier=sigma, clip_norm=median)
    hidden = noised(noise, clipped, "noise", 0, randomness=source, contributions_bound=clients)
    np.testing.assert_allclose(state.weights, first.numpy() + hidden / cohort, atol=2e-5)
    assert np.abs(hidden - clipped).max() / cohort > 1e-3
    assert np.abs(updates.sum(axis=0) - clipped).max() / cohort > 1e-3
