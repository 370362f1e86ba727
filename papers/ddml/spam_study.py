"""What the spam test is worth: attackers among devices, how many of them are turned away, and the damage they do.

A simulation, one update after the other, on a pool and with a test as a server has them; all that is random is from a
seed. The band of Pihur et al. (2018) is here to compare with.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness import checks
from harness.arrays import Floats
from incrowd import SeededRandomness
from incrowd.drawdiscard import HISTORY, LARGEST, Glm, Instance, Picks, Pool, ResidualTest, stable_variance
from incrowd.privacy.mechanism import Mechanism
from papers.ddml.attacks import Attack, Turn

Accepts = Callable[[Instance, Instance, float], bool]


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What devices learn together: examples [devices, examples, features], responses alike, and others to test with.

    `good` are weights that work, for attackers to know.
    """

    model: Glm
    mechanism: Mechanism
    gamma: float
    instances: int
    features: Floats
    responses: Floats
    test_features: Floats
    test_responses: Floats
    good: Floats

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise that one update adds to a weight."""
        return self.gamma * math.sqrt(self.mechanism.noise_variance)

    def gradient(self, weights: Floats, device: int) -> Floats:
        """The bounded gradient of a device's examples."""
        gradient = self.model.gradient(weights, self.features[device], self.responses[device])
        return self.mechanism.clipped(np.asarray(gradient))

    def accuracy(self, weights: Floats) -> float:
        """The share of test examples that are predicted right."""
        predicted = self.model.predict(weights, self.test_features)
        if self.model.outputs == 1:
            right = (predicted[:, 0] >= 0.5) == (self.test_responses[:, 0] >= 0.5)
        else:
            right = predicted.argmax(axis=1) == self.test_responses.argmax(axis=1)
        return float(right.mean())

    @cached_property
    def harms(self) -> dict[str, Floats]:
        """Directions away from good weights, of mean square 1: all weights alike, or the important ones more."""
        good = self.good
        return {"signs": -np.sign(good), "sizes": -good / math.sqrt(float(np.mean(good**2)))}


class Band:
    """The paper's test, mean +- t sqrt(spread^2 + sigma^2) in every weight, the spread remembered for a while."""

    def __init__(self, pool: Pool, *, threshold: float, sigma: float) -> None:
        self._pool, self.threshold, self._sigma = pool, threshold, sigma
        self._remembered = np.var(pool.instances, axis=0, ddof=1, dtype=np.float64)
        self._asked = 0

    def distance(self, answer: Instance) -> float:
        """How many times the width of a band of t = 1 the farthest weight is from the mean."""
        held = self._pool.instances.astype(np.float64)
        mean, variance = held.mean(axis=0), held.var(axis=0, ddof=1)
        if self._asked % (self._pool.k**2 // 8) == 0:
            self._remembered = self._remembered + 0.25 * (variance - self._remembered)
        self._asked += 1
        return float((np.abs(answer - mean) / np.sqrt(np.maximum(variance, self._remembered) + self._sigma**2)).max())

    def accepts(self, answer: Instance, _parent: Instance, _gamma: float) -> bool:
        """Whether each weight lies within the band."""
        return self.distance(answer) <= self.threshold


def band_threshold(problem: Problem, *, rate: float, updates: int = 6_000) -> float:
    """The t that turns this share of noise alone away: measured on a pool of that noise, behind no test."""
    randomness, mechanism = SeededRandomness(seed=7), problem.mechanism
    pool = Pool.initial(
        np.zeros(mechanism.size), instances=problem.instances, update_variance=problem.sigma**2, randomness=randomness
    )
    band, noise = Band(pool, threshold=math.inf, sigma=problem.sigma), randomness.stream("noise")
    distances = []
    for _ in range(updates):
        answer = (pool.draw() + problem.gamma * mechanism.noise_scale * noise.laplaces(mechanism.size)).astype(
            np.float32
        )
        distances.append(band.distance(answer))
        pool.discard(answer)
    return float(np.quantile(distances[updates // 4 :], 1 - rate))


TESTS = ("none", "band", "fixed", "residual")
"""No test, the paper's band, the residual test without what it learns, and with it."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of one training; shares are of the second half of the updates."""

    attack: str
    strength: float
    harm: str
    test: str
    attackers_rejected: float
    honest_rejected: float
    accuracy: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """So many updates, of which a share are attackers', against a test that may turn `rate` of the honest ones away.

    `falls_by` lowers gamma as a specification may, in epochs of 1000 updates; so many devices are `in_flight`; the pool
    knows the last `history` replaced versions.
    """

    problem: Problem
    attackers: float
    updates: int
    rate: float = 0.01
    merge: float = 1.0
    falls_by: float = 0.0
    in_flight: int = 0
    history: int = HISTORY
    seed: int = 0

    def __post_init__(self) -> None:
        checks.fraction(attackers=self.attackers, rate=self.rate)
        checks.count(updates=self.updates)

    @cached_property
    def threshold(self) -> float:
        """That of the band."""
        return band_threshold(self.problem, rate=self.rate)

    def train(self, attack: Attack | None, *, test: str, strength: float = 1.0, harm: str = "signs") -> Trained:
        """One training from the beginning; the same honest devices whatever the attack."""
        return _Training(self, attack, test, strength, harm).run()


_Waiting = tuple[bool, int, Instance, float]
"""Whether a device is hostile, the version that its ticket names, its answer and its gamma."""


def _in_float32(weights: Floats) -> Instance:
    with np.errstate(over="ignore"):  # what no weight can be is turned away
        row: Instance = weights.astype(np.float32)
    return row


class _Training:
    """One training."""

    def __init__(self, study: Study, attack: Attack | None, test: str, strength: float, harm: str) -> None:
        self.study, self.attack, self.test, self.strength, self.harm = study, attack, test, strength, harm
        problem = self.problem = study.problem
        randomness = SeededRandomness(seed=study.seed)
        self.variance = stable_variance(problem.instances, problem.sigma**2, merge=study.merge)
        self.pool = Pool.initial(
            np.zeros(problem.model.size),
            instances=problem.instances,
            update_variance=problem.sigma**2,
            randomness=randomness,
            merge=study.merge,
            history=study.history,
        )
        self.devices, self.coins = Picks(randomness, "devices"), Picks(randomness, "attackers")
        self.noise, self.forgery = randomness.stream("noise"), randomness.stream("forgery")
        self.accepts = self._accepts(randomness)
        self.memory: dict[str, Any] = {}
        self.seen, self.rejected = np.zeros(2), np.zeros(2)

    def run(self) -> Trained:
        """All updates, one after the other."""
        waiting: deque[_Waiting] = deque()
        for number in range(self.study.updates):
            waiting.append(self._turn(number))
            if len(waiting) > self.study.in_flight:
                self._arrives(waiting.popleft(), counts=2 * number >= self.study.updates)
        shares = self.rejected / np.maximum(self.seen, 1)
        return Trained(
            attack="none" if self.attack is None else self.attack.name,
            strength=self.strength,
            harm=self.harm,
            test=self.test,
            attackers_rejected=float(shares[1]),
            honest_rejected=float(shares[0]),
            accuracy=self.problem.accuracy(self.pool.weights()),
        )

    def _turn(self, number: int) -> _Waiting:
        """One device draws and answers."""
        study, problem = self.study, self.problem
        gamma = problem.gamma * (1 + number // 1000) ** -study.falls_by
        version, row = self.pool.draw_version()
        drawn, device = row.astype(np.float64), self.devices.among(len(problem.features))
        coin = self.coins.among(2**32) / 2**32
        step = -gamma * problem.gradient(drawn, device)
        noise = self._noise() * (gamma * problem.mechanism.noise_scale)
        sent = version, drawn + step + noise
        hostile = self.attack is not None and self.attack.schedule(study.attackers, number, study.updates, coin)
        if self.attack is not None and hostile:
            turn = Turn(
                pool=self.pool,
                drawn=drawn,
                version=version,
                step=step,
                noise=noise,
                scale=gamma * problem.mechanism.noise_scale,
                sigma=gamma / problem.gamma * problem.sigma,
                clip=gamma * problem.mechanism.clip,
                threshold=study.threshold,
                spread=math.sqrt(self.variance),
                harm=problem.harms[self.harm],
                gone=number / study.updates,
                stream=self.forgery,
                memory=self.memory,
            )
            sent = self.attack.forge(turn, self.strength)
        return hostile, sent[0], _in_float32(sent[1]), gamma

    def _arrives(self, sent: _Waiting, *, counts: bool) -> None:
        hostile, version, answer, gamma = sent
        parent = self.pool.version(version)
        fits = parent is not None and bool((np.abs(answer) <= LARGEST).all())  # as a server looks at it first
        accepted = parent is not None and fits and self.accepts(answer, parent, gamma)
        if accepted:
            self.pool.discard(answer)
        if counts:
            self.seen[int(hostile)] += 1
            self.rejected[int(hostile)] += not accepted

    def _noise(self) -> Floats:
        size = self.problem.model.size
        return self.noise.normals(size) if self.problem.mechanism.noise == "gaussian" else self.noise.laplaces(size)

    def _accepts(self, randomness: SeededRandomness) -> Accepts:
        study, problem = self.study, self.problem
        if self.test == "none":
            return lambda *_: True
        if self.test == "band":
            return Band(self.pool, threshold=study.threshold, sigma=problem.sigma).accepts
        return ResidualTest(
            problem.mechanism, turned_away=study.rate, learns=self.test == "residual", randomness=randomness
        ).accepts
