import math

import numpy as np
import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard.spam import ResidualTest
from incrowd.drawdiscard.specification import PLAUSIBLE
from incrowd.privacy.mechanism.device import Mechanism
from tests.drawdiscard.residuals import answers

MECHANISM = Mechanism(size=120, clip=0.1, epsilon=math.log(32), privacy="feature")
GAMMA = 0.03


def rejected(test: ResidualTest, parents: np.ndarray, given_: np.ndarray, gamma: float = GAMMA) -> float:
    """The share of answers that are turned away."""
    return 1 - float(np.mean([test.accepts(mine, its, gamma) for mine, its in zip(given_, parents, strict=True)]))


@pytest.mark.parametrize("gamma", [0.03, 0.5, 1e-3])
def test_honest_answers_are_turned_away_about_as_rarely_as_wanted_at_every_rate(gamma: float) -> None:
    wanted, count = 0.05, 6_000
    parents, sent = answers(MECHANISM, count=count, gamma=gamma)
    found = rejected(ResidualTest(MECHANISM, turned_away=wanted), parents, sent, gamma)
    error = math.sqrt(wanted / count)
    assert 0.4 * wanted - 4 * error < found < wanted + 4 * error
    assert rejected(ResidualTest(MECHANISM, turned_away=wanted), parents, sent, 2 * gamma) == 1.0  # the control


def test_answers_with_the_longest_steps_are_honest() -> None:
    parents, sent = answers(MECHANISM, count=2_000, gamma=GAMMA, gradient=MECHANISM.clip)
    assert rejected(ResidualTest(MECHANISM, turned_away=0.05), parents, sent) < 0.05
    parents, sent = answers(MECHANISM, count=200, gamma=GAMMA, gradient=2 * MECHANISM.clip)
    assert rejected(ResidualTest(MECHANISM, turned_away=0.05), parents, sent) > 0.9


def test_what_is_not_made_of_its_parent_is_turned_away() -> None:
    parents, sent = answers(MECHANISM, count=50, gamma=GAMMA, weights=0.1)
    test = ResidualTest(MECHANISM)
    assert rejected(test, parents, parents) == 1.0  # a replay has no noise
    assert rejected(test, np.roll(parents, 1, axis=0), sent) == 1.0
    shifted = (parents + 3 * GAMMA * MECHANISM.noise_scale).astype(np.float32)
    assert rejected(test, parents, shifted) == 1.0  # longer than a step and noise together
    one = sent.copy()
    one[:, 7] += 1.0
    assert rejected(test, parents, one) == 1.0


def test_one_weight_alone_may_not_be_far_off_however_little_it_is_of_the_whole() -> None:
    mechanism = Mechanism(size=387, clip=0.1, epsilon=2.0)
    parents, sent = answers(mechanism, count=100, gamma=GAMMA, weights=1e-3)
    for scales, away in ((14.0, 1.0), (6.0, 0.0)):
        sent[:, 7] = parents[:, 7] - scales * GAMMA * mechanism.noise_scale
        test = ResidualTest(mechanism, learns=False)
        assert rejected(test, parents, sent) == pytest.approx(away, abs=0.05)


def test_rounding_at_the_edge_of_what_is_let_through_does_not_show() -> None:
    mechanism, gamma = Mechanism(size=20_000, clip=0.1, epsilon=1.0, privacy="feature"), PLAUSIBLE * 2**-19 / 0.2
    stream = SeededRandomness(6).stream("rounding")
    shifts = []
    for weight in (PLAUSIBLE - 1, 1000 * PLAUSIBLE):
        noise = gamma * mechanism.noise_scale * stream.laplaces(mechanism.size)
        parent = np.full(mechanism.size, weight, np.float32)
        seen = parent - (parent - noise).astype(np.float32)
        shifts.append((np.abs(seen).mean() - np.abs(noise).mean()) / (gamma * mechanism.noise_scale))
    standard_deviation = 1 / math.sqrt(mechanism.size)
    assert abs(shifts[0]) < standard_deviation / 20
    assert abs(shifts[1]) > standard_deviation  # the control: where weights are far larger, it would
