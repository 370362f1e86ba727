"""A device of draw and discard with one of two tables, and what whoever reads its answer makes of it.

Neighbours are any two tables, so the two gradients are opposite and far beyond the bound. What is attacked is the way
of every real contribution: bound, whole steps, charge, noise. The adversary knows both gradients: its score is the
logarithm of the likelihood ratio of the stated noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, SeededRandomness
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism
from incrowd.privacy.mechanism.grid import Whole

_FAR = 1e3
"""A gradient is so many times longer than the bound, so that only the bound keeps it to it."""

_NUMBERS = 4_000_000
"""So many numbers are drawn at most: it is what takes the time."""

_FEW = 8
"""So many numbers has a contribution whose noise does not depend on their number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DevicePlay:
    """Contributions: whose was the first of the two tables, the adversary's scores, and noise in stated scales.

    `whole` says whether all that was released were whole steps, and `again` which share had noise that came before.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    noise: Floats
    whole: bool
    again: float


@dataclass(frozen=True, kw_only=True)
class DeviceGame:
    """The game against one specification.

    Edge cases: a specification without noise has nothing to be attacked, and directions are another game:
    `ConfigError`.
    """

    specification: Specification

    def __post_init__(self) -> None:
        if self.specification.noise == "direction":
            remedy = "nothing is added that an attack could weigh: see `direction_plays`"
            raise ConfigError(field="noise", value="direction", remedy=remedy)
        if self.specification.noise == "none":
            remedy = "it is for simulations, and no device answers it: give one with noise"
            raise ConfigError(field="noise", value="none", remedy=remedy)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What hides a device; with fewer numbers where that changes neither their noise nor what they cost."""
        whole = self.specification.mechanism
        same = whole.privacy == "feature" or whole.bound == "norm"
        return replace(whole, size=min(whole.size, _FEW)) if same else whole

    @property
    def claimed(self) -> float:
        """The epsilon of one contribution: of each number where privacy is per feature, of all of them otherwise."""
        return self.mechanism.epsilon

    @property
    def delta(self) -> float:
        """Its delta."""
        return self.mechanism.delta or 0.0

    @cached_property
    def gradients(self) -> tuple[Floats, Floats]:
        """Those of the two tables: as far apart as a bound lets two be."""
        size, clip = self.mechanism.size, self.mechanism.clip
        first = np.full(size, _FAR * clip) if self.mechanism.bound == "element" else np.eye(1, size)[0] * _FAR * clip
        return first, -first

    @cached_property
    def sent(self) -> tuple[Floats, Floats]:
        """What a textbook's bound makes of the two gradients."""
        clip = self.mechanism.clip
        first, second = (np.clip(gradient, -clip, clip) for gradient in self.gradients)
        return first, second

    def play(self, seed: int, trials: int) -> DevicePlay:
        """So many contributions, each of one of the two tables by a fair coin."""
        trials = max(16, min(trials, _NUMBERS // self.mechanism.size))
        randomness = SeededRandomness(seed=seed)
        inside = randomness.stream("tables").bits(trials) % np.uint64(2) == 1
        ledger = Ledger.in_memory(budget=Budget(epsilon=1e9, delta=0.5), relation=RELATION)

        def charge(mechanism: Mechanism) -> Receipt:
            event = mechanism.event(mechanism.privacy)
            note = {"per": mechanism.privacy}
            return ledger.charge(event, pays_for=mechanism.pays_for, randomness=randomness, note=note)

        released = [
            Contribution(self.mechanism, self.gradients[0 if first else 1]).release(charge=charge) for first in inside
        ]
        return self._seen(released, inside)

    def _seen(self, released: Sequence[Whole], inside: NDArray[np.bool_]) -> DevicePlay:
        mechanism = self.mechanism
        whole = all(each.steps.dtype == np.int64 and math.frexp(each.step)[0] == 0.5 for each in released)
        answers = np.array([each.values for each in released])
        sent = np.where(inside[:, None], *self.sent)
        first, second = self.sent
        each = self.log_likely(answers - first) - self.log_likely(answers - second)
        deviation = np.sqrt(mechanism.noise_variance)
        noise = (answers - sent) / deviation
        again = 1 - len(np.unique(np.rint(noise * 2**20), axis=0)) / len(noise)
        return DevicePlay(inside=inside, scores=each, noise=noise, whole=whole, again=again)

    def log_likely(self, noise: Floats) -> Floats:
        """The logarithm of how likely such noise is, [..., numbers], up to a constant.

        Edge cases: where the promise is for each number by itself, the first alone is looked at.
        """
        scale, seen = self.mechanism.noise_scale, noise[..., : self.looked_at]
        if self.mechanism.noise == "laplace":
            return np.asarray(-np.abs(seen).sum(axis=-1) / scale)
        return np.asarray(-(seen**2).sum(axis=-1) / (2 * scale**2))

    @property
    def looked_at(self) -> int:
        """How many numbers the promise is about."""
        return 1 if self.mechanism.privacy == "feature" else self.mechanism.size
