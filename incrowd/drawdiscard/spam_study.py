"""What the spam test is worth: attackers among devices, how many of them are turned away, and the damage they do.

A simulation, one update after the other; every random value is from a seed.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from incrowd import _validate
from incrowd._random import Floats, SeededRandomness, Stream
from incrowd.drawdiscard.glm import FlatModel
from incrowd.drawdiscard.pool import Picks, Pool
from incrowd.drawdiscard.spam import HonestUpdates, SpamTest, spam_threshold
from incrowd.privacy.mechanism.device import Mechanism


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What devices learn together: examples [devices, examples, features], responses alike, and others to test with."""

    model: FlatModel
    mechanism: Mechanism
    gamma: float
    instances: int
    features: Floats
    responses: Floats
    test_features: Floats
    test_responses: Floats

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise that one update adds to a weight."""
        return self.gamma * float(np.sqrt(self.mechanism.noise_variance))

    def noise(self, stream: Stream) -> Floats:
        """What an honest device adds, times gamma; fast and repeatable, so for simulation only."""
        size = self.model.size
        values = stream.normals(size) if self.mechanism.noise == "gaussian" else stream.laplaces(size)
        return values * (self.gamma * self.mechanism.noise_scale)

    def gradient(self, weights: Floats, device: int) -> Floats:
        """The bounded gradient of a device's examples."""
        gradient = self.model.gradient(weights, self.features[device], self.responses[device])
        bounded: Floats = self.mechanism.clipping.clip(np.asarray(gradient, np.float64)[None])[0]
        return bounded

    def accuracy(self, weights: Floats) -> float:
        """The share of test examples that are predicted right."""
        predicted = self.model.predict(weights, self.test_features)
        if self.model.outputs == 1:
            right = (predicted[:, 0] >= 0.5) == (self.test_responses[:, 0] >= 0.5)
        else:
            right = predicted.argmax(axis=1) == self.test_responses.argmax(axis=1)
        return float(right.mean())


@dataclass(frozen=True)
class Arrived:
    """What one device could send: its drawn instance, its step (minus gamma times its gradient) and its noise."""

    drawn: Floats
    step: Floats
    noise: Floats


Forge = Callable[[Arrived, float, Stream], Floats]
"""What an attacker sends instead, given also the standard deviation of honest noise."""


@dataclass(frozen=True)
class Attack:
    """An attacker: a name for people, and what it sends."""

    name: str
    forge: Forge


def scaled(factor: float) -> Attack:
    """Its own step, so many times as long."""
    return Attack(f"step x {factor:g}", lambda sent, _sigma, _stream: sent.drawn + factor * sent.step + sent.noise)


def flipped(factor: float) -> Attack:
    """Its own step backwards, so many times as long. With a factor of 1 it looks like anyone's."""
    return Attack(f"step x -{factor:g}", lambda sent, _sigma, _stream: sent.drawn - factor * sent.step + sent.noise)


def shifted(sigmas: float) -> Attack:
    """Every weight moved up by so many standard deviations of the noise."""
    return Attack(f"shift {sigmas:g} sigma", lambda sent, sigma, _stream: sent.drawn + sigmas * sigma + sent.noise)


def negated() -> Attack:
    """The instance with every sign flipped."""
    return Attack("signs flipped", lambda sent, _sigma, _stream: sent.noise - sent.drawn)


def random(size: float) -> Attack:
    """Normal weights of this size, whatever was drawn."""
    return Attack(f"random {size:g}", lambda sent, _sigma, stream: size * stream.normals(len(sent.drawn)))


def drift(sigmas: float) -> Attack:
    """A small step in one direction, the same for all attackers, hidden in honest noise: made to pass."""

    def forge(sent: Arrived, sigma: float, _stream: Stream) -> Floats:
        signs = 1.0 - 2.0 * (np.arange(len(sent.drawn)) % 2)
        return sent.drawn + sigmas * sigma * signs + sent.noise

    return Attack(f"drift {sigmas:g} sigma", forge)


def against(sigmas: float) -> Attack:
    """Every weight moved by so many standard deviations of the noise, in the direction that its own step does not take.

    Of all steps of this length on each weight the one that undoes most.
    """

    def forge(sent: Arrived, sigma: float, _stream: Stream) -> Floats:
        return sent.drawn - sigmas * sigma * np.sign(sent.step) + sent.noise

    return Attack(f"against by {sigmas:g} sigma", forge)


ATTACKS = (
    scaled(100),
    shifted(3),
    shifted(30),
    flipped(1),
    flipped(100),
    negated(),
    random(1),
    drift(0.3),
    against(3),
)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of one training; shares are of the second half of the updates, when the pool has settled."""

    attack: str
    tested: bool
    attackers_rejected: float
    honest_rejected: float
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Study:
    """So many updates, of which a share are attackers', against a test that turns `rate` of the honest ones away."""

    problem: Problem
    attackers: float
    updates: int
    rate: float
    gradient: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.fraction(attackers=self.attackers, rate=self.rate)
        _validate.count(updates=self.updates)

    def run(self, attacks: Iterable[Attack] = ATTACKS) -> list[Trained]:
        """Without attackers, then with each attack; with and without the test."""
        return [self.train(attack, tested=tested) for attack in (None, *attacks) for tested in (False, True)]

    def test(self, pool: Pool) -> SpamTest:
        """The test of this study, for a pool."""
        problem = self.problem
        honest = HonestUpdates.of(problem.mechanism, gamma=problem.gamma, gradient=self.gradient)
        threshold = spam_threshold(
            instances=problem.instances, weights=problem.model.size, rate=self.rate, honest=honest
        )
        return SpamTest(pool, threshold=threshold, honest=honest)

    def train(self, attack: Attack | None, *, tested: bool) -> Trained:
        """One training from the beginning; the same honest devices whatever the attack."""
        problem, randomness = self.problem, SeededRandomness(seed=self.seed)
        pool = Pool.initial(
            np.zeros(problem.model.size),
            instances=problem.instances,
            update_variance=problem.sigma**2,
            randomness=randomness,
        )
        test = self.test(pool) if tested else None
        devices, coins = Picks(randomness, "devices"), Picks(randomness, "attackers")
        noise, forgery = randomness.stream("noise"), randomness.stream("forgery")
        seen, rejected = np.zeros(2), np.zeros(2)
        for number in range(self.updates):
            drawn, device = pool.draw(), devices.among(len(problem.features))
            sent = Arrived(drawn, -problem.gamma * problem.gradient(drawn, device), problem.noise(noise))
            hostile = attack is not None and coins.among(2**32) < self.attackers * 2**32
            weights = sent.drawn + sent.step + sent.noise
            if attack is not None and hostile:
                weights = attack.forge(sent, problem.sigma, forgery)
            accepted = test is None or test.accepts(weights)
            if accepted:
                pool.discard(weights)
            if 2 * number >= self.updates:
                seen[int(hostile)] += 1
                rejected[int(hostile)] += not accepted
        shares = rejected / np.maximum(seen, 1)
        return Trained(
            attack="none" if attack is None else attack.name,
            tested=tested,
            attackers_rejected=float(shares[1]),
            honest_rejected=float(shares[0]),
            accuracy=problem.accuracy(pool.weights()),
        )
