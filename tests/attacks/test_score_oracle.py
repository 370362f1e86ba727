"""A malicious server: an evaluation as an oracle. It scores a model of its own making, whose score tells what it wants.

A model that is right exactly where one client's label is 1 makes that client's share of right answers the label itself;
all other clients contribute what the server knows. What the server learns is bounded by the epsilon that it paid: no
more, whatever it scores, and the more it asks the more it pays.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from incrowd._random import Floats, SeededRandomness
from incrowd.errors import BudgetExceeded
from incrowd.learning import CROSS_ENTROPY, ClientTensors, linear
from incrowd.learning.scoring import Scorer, Scoring
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, FixedSize, apart, constant
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import guess

pytestmark = pytest.mark.usefixtures("one_thread")

CLIENTS, VICTIM, EXAMPLES = 9, 4, 6
MODEL = linear(CLIENTS, 2, bias=False)
SCORING = Scoring()
CLIP = FixedClip(clip_norm=SCORING.bound)
BUDGET = Budget(epsilon=4.0, delta=1e-3)
TRIALS = 400


def clients(label: int) -> ClientTensors:
    """Each client has a feature of its own; of the victim, all examples have this label."""
    owners = np.repeat(np.arange(CLIENTS), EXAMPLES)
    labels = np.where(owners == VICTIM, label, 0)
    return ClientTensors(
        features=torch.from_numpy(np.eye(CLIENTS, dtype=np.float32)[owners]),
        labels=torch.from_numpy(labels),
        offsets=np.arange(CLIENTS + 1) * EXAMPLES,
        indices=np.arange(len(owners)),
    )


def crafted() -> Floats:
    """Says 1 of the victim's examples, and 0 of all others."""
    weights = np.zeros((2, CLIENTS))
    weights[0], weights[1, VICTIM] = 0.5, 1.0
    return weights.ravel()


def contributions(label: int) -> Floats:
    return Scorer(model=MODEL, data=clients(label), scoring=SCORING, loss=CROSS_ENTROPY).rows(crafted(), range(CLIENTS))


def plan(sampling: Sampling) -> Plan:
    schedule = constant(rounds=1, cohort=float(CLIENTS))
    return PlanConfig(members=CLIENTS, schedule=schedule, sampling=sampling, clip=CLIP).calibrate(BUDGET)


def released(its: Plan, rows: Floats, seed: int) -> Floats:
    """What the server sees of these contributions; no row of a client that left its place empty."""
    ledger = Ledger.in_memory(budget=its.budget, relation=its.relation)
    private = PrivateRun(its, ledger=ledger, randomness=SeededRandomness(seed), size=SCORING.size)
    opened = private.round(0)
    opened.add(rows, clients=range(CLIENTS))
    return opened.release().mean


def won(its: Plan, one: Floats, other: Floats) -> float:
    """How often the better of two likelihoods is right, of what is known but for the bit."""
    known = [CLIP.clip(rows) for rows in (one, other)]  # a clip is public
    towards, middle = (known[1] - known[0]).mean(axis=0), (known[1] + known[0]).mean(axis=0) / 2
    right = 0
    for seed in range(TRIALS):
        truth = seed % 2
        seen = released(its, (one, other)[truth], seed)
        right += int((seen - middle) @ towards > 0) == truth
    return right / TRIALS


MARGIN = 5 * math.sqrt(0.25 / TRIALS)


def best(its: Plan) -> float:
    """How often anybody can be right who has to tell the two ends of what the plan hides from each other."""
    reach = 2 / apart(its.round(0).sampler.relation)
    found = float(stats.norm.cdf(1 / (reach * its.noise_multiplier)))
    assert found < guess(BUDGET.epsilon, BUDGET.delta)
    return found


@pytest.fixture(name="labels", scope="module")
def fixture_labels() -> tuple[Floats, Floats]:
    return contributions(0), contributions(1)


def test_without_noise_the_score_is_the_label(labels: tuple[Floats, Floats]) -> None:
    """The control: the model does what it is crafted for, and nothing but noise stands in the way."""
    zero, one = labels
    others = np.arange(CLIENTS) != VICTIM
    assert np.array_equal(zero[others], one[others])
    assert (zero[VICTIM, 0], one[VICTIM, 0]) == (-0.5, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["the label", "the label, by contributions beyond the bound", "whether it took part"])
def test_nothing_of_one_client_is_told_better_than_epsilon_says(asked: str, labels: tuple[Floats, Floats]) -> None:
    zero, one = labels
    if asked == "whether it took part":
        its, zero = plan(Everyone), one.copy()
        zero[VICTIM] = 0.0
    else:
        its = plan(FixedSize)  # priced for a client that has one value or another
        zero, one = (zero, one) if asked == "the label" else (4 * zero, 4 * one)
    assert 0.5 + MARGIN < won(its, zero, one) < best(its) + MARGIN  # it is an attack, and it is bounded


@pytest.mark.slow
def test_noise_that_is_too_small_is_seen(labels: tuple[Floats, Floats]) -> None:
    """The control: with a fourth of the noise that was paid for the attack wins more than the promise allows."""
    its = plan(FixedSize)
    weak = its.config.scaled(0.25).plan(Budget(epsilon=100.0, delta=BUDGET.delta))
    assert won(weak, *labels) > best(its) + MARGIN


def test_asking_again_and_again_costs_again_and_again() -> None:
    its = plan(FixedSize)
    ledger = Ledger.in_memory(budget=Budget(epsilon=12.0, delta=BUDGET.delta), relation=its.relation)

    def ask(number: int) -> None:
        randomness, label = SeededRandomness(number), f"evaluation {number}"
        PrivateRun(its, ledger=ledger, randomness=randomness, size=SCORING.size, label=label).round(0).release()

    with pytest.raises(BudgetExceeded):  # noqa: PT012 - which of them is refused is what is asked
        for number in range(100):
            ask(number)
    asked = ledger.charges()[0]
    assert 3 <= asked <= 7  # Gaussian noise: epsilon grows about with the root of the number of questions
    assert ledger.spent().epsilon <= 12.0
