import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest
from scipy import integrate, stats

from incrowd._random import Floats, SeededRandomness
from incrowd.data import load_digits
from incrowd.drawdiscard.glm import LOGISTIC, MULTINOMIAL, Glm, one_hot
from incrowd.drawdiscard.pool import RECOMPUTED_EVERY, Pool, Snapshot, stable_variance
from incrowd.drawdiscard.settled import chance_outside
from incrowd.drawdiscard.spam import HonestUpdates, SpamTest, spam_threshold
from incrowd.drawdiscard.spam_study import (
    ATTACKS,
    Arrived,
    Problem,
    Study,
    Trained,
    against,
    drift,
    flipped,
    negated,
    random,
    scaled,
    shifted,
)
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism

LAPLACE = HonestUpdates(noise="laplace", noise_scale=1.0)


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Honest updates, with noise alone."""

    instances: int
    weights: int
    noise: Literal["laplace", "gaussian"] = "laplace"
    in_flight: int = 0
    seed: int = 1

    def honest(self) -> HonestUpdates:
        return HonestUpdates(noise=self.noise, noise_scale=0.25)

    def threshold(self, rate: float) -> float:
        return spam_threshold(
            instances=self.instances,
            weights=self.weights,
            rate=rate,
            honest=self.honest(),
            in_flight=self.in_flight,
        )

    @property
    def settling(self) -> int:
        """Three times the updates within which a pool forgets what it was."""
        behind = stable_variance(self.instances, 1.0, in_flight=self.in_flight)
        return round(3 * behind * (self.instances + self.in_flight))

    def rejected(self, threshold: float, updates: int) -> tuple[float, float]:
        """The share that is turned away once the pool is settled, and its standard error (from blocks)."""
        randomness = SeededRandomness(seed=self.seed)
        noise, size = randomness.stream("noise"), self.weights
        variance = 0.25**2 * (1.0 if self.noise == "gaussian" else 2.0)
        pool = Pool.initial(np.zeros(size), instances=self.instances, update_variance=variance, randomness=randomness)
        test = SpamTest(pool, threshold=threshold, honest=self.honest(), in_flight=self.in_flight)
        waiting, found = deque[Floats](), []
        for number in range(updates + self.settling):
            values = noise.normals(size) if self.noise == "gaussian" else noise.laplaces(size)
            waiting.append(pool.draw() + 0.25 * values)
            if number < self.in_flight:
                continue
            arrived = waiting.popleft()
            accepted = test.accepts(arrived)
            if accepted:
                pool.discard(arrived)
            found.append(not accepted)
        blocks = np.array(found[-updates:], float).reshape(40, -1).mean(axis=1)
        return float(blocks.mean()), float(blocks.std(ddof=1) / math.sqrt(40))


def check_rate(traffic: Traffic, *, rate: float, updates: int) -> None:
    """Within 20 % of the rate, and the test could tell: 2/3 and 3/2 of the threshold are far off."""
    threshold = traffic.threshold(rate)
    share, error = traffic.rejected(threshold, updates)
    assert abs(share - rate) < 0.2 * rate + 2 * error
    assert traffic.rejected(threshold * 2 / 3, updates // 4)[0] > 1.5 * rate
    assert traffic.rejected(threshold * 3 / 2, updates // 4)[0] < rate / 1.5


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(instances=10, weights=33),
        Traffic(instances=2, weights=20, noise="gaussian"),
        Traffic(instances=10, weights=10, in_flight=20),
    ],
)
def test_as_many_honest_updates_are_turned_away_as_wanted(traffic: Traffic) -> None:
    check_rate(traffic, rate=0.05, updates=8_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traffic", "rate"),
    [
        (Traffic(instances=20, weights=387), 0.01),
        (Traffic(instances=20, weights=387), 0.003),
        (Traffic(instances=20, weights=387, noise="gaussian"), 0.01),
        (Traffic(instances=20, weights=387, in_flight=20), 0.01),
        (Traffic(instances=20, weights=387, in_flight=100), 0.01),
        (Traffic(instances=30, weights=33), 0.01),
    ],
)
def test_so_it_is_for_the_paper_s_models(traffic: Traffic, rate: float) -> None:
    check_rate(traffic, rate=rate, updates=60_000)


def test_more_weights_and_smaller_rates_need_a_larger_t() -> None:
    def t(*, weights: int = 8, rate: float = 0.05, in_flight: int = 0, drift: float = 0.0) -> float:
        honest = replace(LAPLACE, drift=drift)
        return spam_threshold(instances=3, weights=weights, rate=rate, honest=honest, in_flight=in_flight)

    assert t() < min(t(weights=50_000), t(rate=0.005), t(in_flight=9), t(drift=1.0))


def test_with_gradients_up_to_the_drift_no_more_are_turned_away() -> None:
    honest = replace(LAPLACE, drift=1.0)
    randomness, rate = SeededRandomness(seed=4), 0.05
    pool = Pool.initial(np.zeros(8), instances=5, update_variance=honest.variance, randomness=randomness)
    threshold = spam_threshold(instances=5, weights=8, rate=rate, honest=honest)
    test, noise, rejected = SpamTest(pool, threshold=threshold, honest=honest), randomness.stream("noise"), 0
    for _ in range(4000):
        arrived = pool.draw() + noise.laplaces(8) + 1.0
        if test.accepts(arrived):
            pool.discard(arrived)
        else:
            rejected += 1
    assert 0 < rejected / 4000 < rate


def test_the_scale_of_the_noise_does_not_matter_to_t() -> None:
    small = HonestUpdates(noise="laplace", noise_scale=1e-6, drift=1e-7)
    large = HonestUpdates(noise="laplace", noise_scale=10.0, drift=1.0)
    ts = [spam_threshold(instances=5, weights=4, rate=0.05, honest=honest) for honest in (small, large)]
    assert ts[0] == ts[1]


def test_a_fixed_t_of_3_turns_nearly_everyone_away() -> None:
    assert Traffic(instances=20, weights=7850).rejected(3.0, 400)[0] > 0.95


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_the_chance_to_end_up_outside_is_integrated_right(noise: str) -> None:
    distribution = stats.laplace if noise == "laplace" else stats.norm
    for reach, width in [(0.0, 1.0), (0.5, 2.0), (3.0, 2.0), (2.0, 2.0), (1.0, 0.0)]:
        inside, _ = integrate.quad(distribution.pdf, -width - reach, width - reach, points=[0.0], limit=200)
        chance = float(chance_outside(noise, np.array(reach), np.array(width)))
        assert chance == pytest.approx(1 - inside, abs=1e-7)


def test_the_test_is_a_band_around_the_mean() -> None:
    pool = Pool([[0.0, 10.0], [2.0, 14.0]], randomness=SeededRandomness(seed=1))
    mean, width = np.array([1.0, 12.0]), 2.0 * np.sqrt(np.array([2.0, 8.0]) + 2.0)
    test = SpamTest(pool, threshold=2.0, honest=LAPLACE)
    for inside in (mean, mean + 0.999 * width, mean - 0.999 * width, mean + np.array([0.999, -0.999]) * width):
        assert test.accepts(inside)
    for outside in (mean + np.array([1.001, 0]) * width, mean - np.array([0, 1.001]) * width):
        assert not test.accepts(outside)
    for bad in (math.nan, math.inf, -math.inf):
        assert not test.accepts(np.array([mean[0], bad]))


def test_a_pool_whose_instances_agree_still_lets_honest_updates_in() -> None:
    test = SpamTest(Pool([[1.0], [1.0]], randomness=SeededRandomness(seed=1)), threshold=5.0, honest=LAPLACE)
    assert test.accepts(np.array([1.0 + 7.0]))
    assert not test.accepts(np.array([1.0 + 7.1]))


def test_the_spread_is_remembered_for_those_who_drew_before() -> None:
    def band(in_flight: int, since: int) -> float:
        """The half-width after so many updates since the instances of a wide pool came to agree."""
        pool = Pool([[-100.0], [100.0]], randomness=SeededRandomness(seed=1))
        test = SpamTest(pool, threshold=1.0, honest=LAPLACE, in_flight=in_flight)
        pool.replace(0, [0.0])
        pool.replace(1, [0.0])
        for _ in range(since):
            test.accepts(np.zeros(1))
        return max(width for width in range(200) if test.accepts(np.array([float(width)])))

    assert band(in_flight=10, since=3) > band(in_flight=0, since=3)
    assert band(in_flight=10, since=3) > band(in_flight=10, since=30)


@pytest.mark.parametrize("between", [3, RECOMPUTED_EVERY + 7])
def test_a_server_that_restarts_goes_on_bit_for_bit(between: int) -> None:
    randomness = SeededRandomness(seed=3)
    noise = randomness.stream("noise")

    def run(test: SpamTest, updates: int) -> list[bool]:
        answers = []
        for _ in range(updates):
            arrived = test.pool.draw() + noise.laplaces(6)
            answers.append(test.accepts(arrived))
            if answers[-1]:
                test.pool.discard(arrived)
        return answers

    pool = Pool.initial(np.zeros(6), instances=8, update_variance=2.0, randomness=randomness)
    whole = SpamTest(pool, threshold=3.0, honest=LAPLACE)
    run(whole, between)
    saved = Snapshot.from_bytes(whole.snapshot().to_bytes())
    resumed = SpamTest(Pool.restore(saved, randomness=randomness), threshold=3.0, honest=LAPLACE, snapshot=saved)
    noise = randomness.stream("later")
    expected = run(whole, 500)
    noise = randomness.stream("later")
    assert run(resumed, 500) == expected
    assert len(set(expected)) == 2
    assert resumed.snapshot().to_bytes() == whole.snapshot().to_bytes()
    assert pool.snapshot().remembered is None


def test_a_memory_of_other_weights_is_refused() -> None:
    pool = Pool(np.zeros((2, 3)), randomness=SeededRandomness(seed=1))
    other = SpamTest(Pool(np.zeros((2, 4)), randomness=SeededRandomness(seed=1)), threshold=3.0, honest=LAPLACE)
    with pytest.raises(DataError, match="does not fit"):
        SpamTest(pool, threshold=3.0, honest=LAPLACE, snapshot=other.snapshot())


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: spam_threshold(instances=1, weights=3, rate=0.1, honest=LAPLACE), "instances"),
        (lambda: spam_threshold(instances=2, weights=0, rate=0.1, honest=LAPLACE), "weights"),
        (lambda: spam_threshold(instances=2, weights=3, rate=0.0, honest=LAPLACE), "rate"),
        (lambda: spam_threshold(instances=2, weights=3, rate=0.1, honest=LAPLACE, in_flight=-1), "in_flight"),
        (lambda: HonestUpdates(noise="laplace", noise_scale=0.0), "noise_scale"),
        (lambda: HonestUpdates(noise="laplace", noise_scale=1.0, drift=-1.0), "drift"),
        (lambda: HonestUpdates.of(Mechanism(size=1, clip=1.0, epsilon=1.0, noise="none"), gamma=1.0), "noise"),
        (
            lambda: SpamTest(Pool([[0.0], [1.0]], randomness=SeededRandomness(seed=1)), threshold=0.0, honest=LAPLACE),
            "threshold",
        ),
        (lambda: replace(STUDY, attackers=0.0), "attackers"),
        (lambda: replace(STUDY, updates=0), "updates"),
    ],
)
def test_impossible_tests_are_refused(make: Callable[[], Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.field == field


def test_honest_updates_follow_the_mechanism() -> None:
    mechanism = Mechanism(size=7, clip=0.5, epsilon=2.0, privacy="feature")
    assert HonestUpdates.of(mechanism, gamma=0.1, gradient=0.2) == HonestUpdates(
        noise="laplace", noise_scale=0.1 * 0.5, drift=0.1 * 0.2
    )


@pytest.mark.parametrize(("gradient", "turned_away"), [(None, False), (0.0, True)])
def test_at_a_large_epsilon_honest_devices_pass_unless_their_steps_are_forgotten(
    gradient: float | None, turned_away: bool
) -> None:
    mechanism = Mechanism(size=4, clip=1.0, epsilon=1e4, privacy="feature")
    honest = HonestUpdates.of(mechanism, gamma=0.1, gradient=gradient)
    randomness = SeededRandomness(seed=5)
    pool = Pool.initial(np.zeros(4), instances=5, update_variance=honest.variance, randomness=randomness)
    threshold = spam_threshold(instances=5, weights=4, rate=0.01, honest=honest)
    test, noise = SpamTest(pool, threshold=threshold, honest=honest), randomness.stream("noise")
    rejected = 0
    for _ in range(200):
        arrived = pool.draw() - 0.1 * np.array([1.0, -1.0, 1.0, -1.0]) + honest.noise_scale * noise.laplaces(4)
        accepted = test.accepts(arrived)
        rejected += not accepted
        if accepted:
            pool.discard(arrived)
    assert rejected == 200 if turned_away else rejected <= 10


def digits() -> Problem:
    train, test = load_digits().train, load_digits().test
    assert test is not None
    largest = float(np.max(train.features))
    mechanism = Mechanism(size=650, clip=0.1, epsilon=math.log(32), privacy="feature")
    return Problem(
        model=Glm(features=64, link=MULTINOMIAL, outputs=10),
        mechanism=mechanism,
        gamma=0.05,
        instances=6,
        features=np.asarray(train.features, np.float64).reshape(150, 10, 64) / largest,
        responses=np.asarray(one_hot(np.asarray(train.labels), 10), np.float64).reshape(150, 10, 10),
        test_features=np.asarray(test.features, np.float64).reshape(-1, 64) / largest,
        test_responses=np.asarray(one_hot(np.asarray(test.labels), 10), np.float64),
    )


STUDY: Study = Study(problem=digits(), attackers=0.1, updates=1000, rate=0.02)


def outcomes() -> dict[tuple[str, bool], Trained]:
    attacks = (scaled(300), shifted(100), flipped(300), negated(), random(1))
    return {(outcome.attack, outcome.tested): outcome for outcome in STUDY.run(attacks)}


def test_crude_attackers_are_turned_away_and_do_no_damage() -> None:
    found = outcomes()
    assert min(found["none", tested].accuracy for tested in (False, True)) > 0.75
    for attack in ("step x 300", "shift 100 sigma", "step x -300", "signs flipped", "random 1"):
        without, tested = found[attack, False], found[attack, True]
        assert without.attackers_rejected == without.honest_rejected == 0
        assert tested.attackers_rejected > 0.95, attack
        assert tested.honest_rejected < 0.1, attack
        assert tested.accuracy > 0.7, attack
    for attack in ("step x -300", "signs flipped", "random 1"):
        assert found[attack, False].accuracy < 0.4, attack


def test_what_hides_in_the_noise_passes() -> None:
    """The limit of any such test: an attacker that stays within the noise looks honest."""
    for attack in (drift(0.3), flipped(1), against(1)):
        outcome = STUDY.train(attack, tested=True)
        assert outcome.attackers_rejected < 0.1


def test_a_study_repeats_itself() -> None:
    short = replace(STUDY, updates=60)
    assert short.train(random(1), tested=True) == short.train(random(1), tested=True)
    assert short.train(None, tested=False).attackers_rejected == 0


def test_a_step_against_ones_own_undoes_most() -> None:
    sent = Arrived(np.array([1.0, 2.0, 3.0]), np.array([0.5, -0.1, 0.0]), np.array([0.2, 0.2, 0.2]))
    stream = SeededRandomness(seed=1).stream("forgery")
    np.testing.assert_allclose(against(2.0).forge(sent, 3.0, stream), [1.0 - 6 + 0.2, 2.0 + 6 + 0.2, 3.2])


def test_every_kind_of_attacker_has_a_name_of_its_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) == 9


def test_gaussian_noise_and_single_outputs_can_be_studied() -> None:
    problem = digits()
    features, odd = problem.features, problem.responses.argmax(axis=2)[:, :, None] % 2
    gaussian = Mechanism(size=65, clip=0.5, epsilon=3.0, delta=1e-6, noise="gaussian", privacy="feature")
    single = replace(
        problem,
        model=Glm(features=64, link=LOGISTIC),
        mechanism=gaussian,
        features=features,
        responses=odd.astype(np.float64),
        test_responses=(problem.test_responses.argmax(axis=1)[:, None] % 2).astype(np.float64),
    )
    outcome = Study(problem=single, attackers=0.1, updates=800, rate=0.05).train(None, tested=True)
    assert outcome.accuracy > 0.6
    assert outcome.honest_rejected < 0.2
