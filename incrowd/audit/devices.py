"""Attack one contribution of a draw-and-discard device, with the shipped device code.

Neighbours are any two tables, so the two gradients are opposite and far beyond the bound. Every contribution passes the
real path: bound, whole steps, charge, noise.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.audit.bounds import Check, Claim, Finding
from incrowd.audit.checks import ALARM, size_of_noise
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, IncrowdError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.whole_noise import PARTS, SEED_BITS, most_along, random_words, seed_of

_FAR = 1e3
"""A gradient is this many bounds long, so that only the bound shortens it."""

_NUMBERS = 4_000_000
"""An audit draws at most this many numbers."""

_FEW, _WEIGHTS = 8, 40
"""Sizes of contributions whose noise does not depend on it; a direction has more weights than a seed has bits."""

_LAPLACE_KURTOSIS = 6.0

_TABLES = "two tables, as unlike as can be, told apart by"


@dataclass(frozen=True, kw_only=True, eq=False)
class DevicePlay:
    """Contributions, each of the first table where `inside`, with the adversary's scores.

    `noise` is in stated deviations, `whole` says whether every release was in whole steps, and `again` is the share of
    contributions with repeated noise.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    noise: Floats
    whole: bool
    again: float


@dataclass(frozen=True, kw_only=True)
class DeviceGame:
    """The game against a specification with additive noise.

    The adversary knows both gradients: its score is the log-likelihood ratio of the stated noise.
    """

    specification: Specification

    def __post_init__(self) -> None:
        if self.specification.noise == "direction":
            raise ConfigError(field="noise", value="direction", remedy="no noise is added: play DirectionGame")
        if self.specification.noise == "none":
            remedy = "it is for simulations, and no device answers it: give one with noise"
            raise ConfigError(field="noise", value="none", remedy=remedy)

    @cached_property
    def mechanism(self) -> Mechanism:
        """The mechanism, with fewer numbers where that changes neither their noise nor the price."""
        whole = self.specification.mechanism
        same = whole.privacy == "feature" or whole.bound == "norm"
        return replace(whole, size=min(whole.size, _FEW)) if same else whole

    @cached_property
    def gradients(self) -> tuple[Floats, Floats]:
        """The gradients of the two tables, as far apart as the bound lets them be."""
        size, clip = self.mechanism.size, self.mechanism.clip
        first = np.full(size, _FAR * clip) if self.mechanism.bound == "element" else np.eye(1, size)[0] * _FAR * clip
        return first, -first

    def play(self, seed: int, trials: int) -> DevicePlay:
        """Release this many contributions, each of one of the two tables by a fair coin."""
        mechanism = self.mechanism
        trials = max(16, min(trials, _NUMBERS // mechanism.size))
        inside, released, _ = _released(mechanism, self.gradients, seed=seed, trials=trials)
        answers = np.array([each.values for each in released])
        first, second = (np.clip(gradient, -mechanism.clip, mechanism.clip) for gradient in self.gradients)
        noise = (answers - np.where(inside[:, None], first, second)) / np.sqrt(mechanism.noise_variance)
        return DevicePlay(
            inside=inside,
            scores=self._log_likely(answers - first) - self._log_likely(answers - second),
            noise=noise,
            whole=all(each.steps.dtype == np.int64 and math.frexp(each.step)[0] == 0.5 for each in released),
            again=1 - len(np.unique(np.rint(noise * 2**20), axis=0)) / len(noise),
        )

    def _log_likely(self, noise: Floats) -> Floats:
        """The log-likelihood of noise, up to a constant; privacy per feature looks at the first number alone."""
        scale = self.mechanism.noise_scale
        seen = noise[..., : 1 if self.mechanism.privacy == "feature" else self.mechanism.size]
        if self.mechanism.noise == "laplace":
            return np.asarray(-np.abs(seen).sum(axis=-1) / scale)
        return np.asarray(-(seen**2).sum(axis=-1) / (2 * scale**2))


def _released(
    mechanism: Mechanism, gradients: tuple[Floats, Floats], *, seed: int, trials: int
) -> tuple[NDArray[np.bool_], list[Whole], list[Integers]]:
    """Contributions of the first table where a coin says so, and the directions that each one drew."""
    randomness, positions = SeededRandomness(seed=seed), list[int]()
    inside = randomness.stream("tables").bits(trials) % np.uint64(2) == 1
    ledger = Ledger.in_memory(budget=Budget(epsilon=1e9, delta=0.5), relation=RELATION)

    def charge(its: Mechanism) -> Receipt:
        note = {"per": its.privacy}
        receipt = ledger.charge(its.event(its.privacy), pays_for=its.pays_for, randomness=randomness, note=note)
        positions.append(receipt.entry.position)
        return receipt

    released = [Contribution(mechanism, gradients[0 if first else 1]).release(charge=charge) for first in inside]
    if mechanism.noise != "direction":
        return inside, released, []
    tossed, candidates = list[Integers](), mechanism.choice.candidates
    for position in positions:
        word = random_words(randomness.stream("noise", position), candidates)
        tossed.append(np.array([word() % 2**SEED_BITS for _ in range(candidates)], np.int64))
    return inside, released, tossed


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectionPlay:
    """Contributions, each of the first table where `inside`, with the adversary's scores.

    `best` says where a device named the direction most along its gradient. `seeds` are the named directions, `sizes`
    the sizes of all released numbers, in steps.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    best: NDArray[np.bool_]
    seeds: Integers
    sizes: Integers


@dataclass(frozen=True, kw_only=True)
class DirectionGame:
    """The game against a specification whose devices send random directions.

    The adversary sees the named seed and knows all directions that the device drew, hence also which of them points
    most along either gradient.
    """

    specification: Specification

    @cached_property
    def mechanism(self) -> Mechanism:
        """The mechanism, with few numbers."""
        return replace(self.specification.mechanism, size=_WEIGHTS)

    def play(self, seed: int, trials: int) -> DirectionPlay:
        """Release this many contributions, each of one of the two tables by a fair coin."""
        choice = self.mechanism.choice
        gradient = SeededRandomness(seed=0).stream("gradient").normals(_WEIGHTS)
        inside, released, tossed = _released(self.mechanism, (gradient, -gradient), seed=seed, trials=trials)
        seeds = np.array([seed_of((each.steps > 0).astype(np.uint8)) for each in released])
        tables = [choice.bounded(one).astype(np.float64) for one in (gradient, -gradient)]
        first, second = (np.array([each[most_along(each, table)] for each in tossed]) for table in tables)
        return DirectionPlay(
            inside=inside,
            scores=choice.loss / PARTS * ((seeds == first).astype(np.float64) - (seeds == second)),
            best=np.where(inside, seeds == first, seeds == second),
            seeds=seeds,
            sizes=np.abs(np.array([each.steps for each in released])),
        )


def audit_specification(asked: Specification, *, trials: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Attack one contribution of a device that answers a specification.

    Guarantee: gradients and ledgers are synthetic; no ledger is opened. Each check fails on a right device once in a
    million audits.

    Edge cases: a specification without noise is a `ConfigError`; a refused contribution fails the audit.
    """
    if asked.noise == "direction":
        directions = DirectionGame(specification=asked)
        seen = directions.play(seed, trials)
        finding = Finding.of(
            Claim(unit="contribution", epsilon=directions.mechanism.epsilon, delta=0.0),
            seen.scores[seen.inside],
            seen.scores[~seen.inside],
            attack=f"{_TABLES} one contribution and all directions that were tossed",
            note="a server sees less: which directions were tossed never leaves the device; so do pools",
        )
        return [finding], _direction_checks(directions, seen)
    game = DeviceGame(specification=asked)
    try:
        play = game.play(seed, trials)
    except IncrowdError as error:
        return [], [Check.refused("a contribution", error), *_price(game)]
    its = game.mechanism
    each = "a number of one contribution" if its.privacy == "feature" else "one contribution"
    finding = Finding.of(
        Claim(unit="contribution", epsilon=its.epsilon, delta=its.delta or 0.0, gaussian=its.noise == "gaussian"),
        play.scores[play.inside],
        play.scores[~play.inside],
        attack=f"{_TABLES} {each}",
        note="the server, who draws, and who listens on the way see this",
    )
    return [finding], _checks(game, play)


def _checks(game: DeviceGame, play: DevicePlay) -> list[Check]:
    """Check noise, bound and grid of a contribution."""
    mechanism = game.mechanism
    laplace = mechanism.noise == "laplace"
    longest = max(_length(mechanism, row) for row in _odd(mechanism.size, mechanism.clip))
    return [
        size_of_noise("noise of a contribution", play.noise.ravel(), kurtosis=_LAPLACE_KURTOSIS if laplace else 3.0),
        Check(
            name="longest gradient that enters",
            measured=f"{longest:.6f} bounds",
            stated="at most 1",
            holds=longest <= 1 + (0 if laplace else 1e-9),
            note="exact, in whole steps" if laplace else "",
        ),
        Check(
            name="what a contribution is made of",
            measured="whole steps" if play.whole else "floats",
            stated="whole steps of a public grid",
            holds=play.whole,
        ),
        Check(
            name="noise that comes again",
            measured=f"{play.again:.0%} of the contributions",
            stated="none",
            holds=play.again < 0.01 or mechanism.size == 1,
        ),
        *_price(game),
    ]


def _price(game: DeviceGame) -> Iterator[Check]:
    """Recompute the price from noise and bound in whole steps, exactly, where noise is Laplace."""
    mechanism = game.mechanism
    if mechanism.noise != "laplace":
        return
    whole = mechanism.whole
    apart = 2 * whole.bound * (mechanism.size if not whole.joint and mechanism.privacy == "model" else 1)
    lost = apart / whole.scale
    yield Check(
        name="price of a contribution",
        measured=f"{lost:.6f}, from whole numbers",
        stated=f"{mechanism.epsilon:.6f}",
        holds=lost <= mechanism.epsilon,
    )
    repeated, alone = game.specification.mechanism, game.specification.repeats
    if mechanism.privacy == "feature":
        charged = 1 / repeated.event("feature").noise_multiplier
        owed = min(alone, repeated.size) * mechanism.epsilon
        yield Check(
            name="price of a column that is told several times",
            measured=f"{charged:.4f} for {alone} times",
            stated=f"{owed:.4f}",
            holds=charged >= owed * (1 - 1e-9),
        )


def _odd(size: int, clip: float) -> Iterator[Floats]:
    """Hostile gradients."""
    stream = SeededRandomness(seed=0).stream("audit")
    yield from (
        np.zeros(size),
        stream.normals(size) * clip / size,
        stream.normals(size) * 1e6 * clip,
        np.full(size, np.finfo(np.float64).max),
        np.full(size, np.nan),
        np.full(size, np.inf),
        np.where(np.arange(size) % 2, 1e300, -1e-300),
        np.eye(1, size)[0] * clip * (1 + 1e-12),
        np.full(size, clip / size * (1 + 1e-12)),
    )


def _length(mechanism: Mechanism, row: Floats) -> float:
    """The length of a bounded gradient, in bounds."""
    bounded = mechanism.bounded(row)
    if mechanism.noise == "laplace":
        whole = mechanism.whole
        sizes = np.abs(bounded)
        return float(sizes.sum() if whole.joint else sizes.max()) / whole.bound
    if mechanism.bound == "element":
        return float(np.abs(bounded).max() / mechanism.clip)
    return float(np.linalg.norm(bounded) / mechanism.clip)


def _direction_checks(game: DirectionGame, play: DirectionPlay) -> list[Check]:
    choice, trials = game.mechanism.choice, len(play.best)
    named, honest = int(play.best.sum()), choice.honest
    low, high = binom.cdf(named, trials, honest), binom.sf(named - 1, trials, honest)
    again = 1 - len(np.unique(play.seeds)) / trials
    return [
        Check(
            name="how often the direction most along is named",
            measured=f"{named / trials:.4f}",
            stated=f"{honest:.4f}",
            holds=bool(min(low, high) > ALARM / 2),
            note="more often would cost more",
        ),
        Check(
            name="size of the numbers of a contribution",
            measured=", ".join(f"{size} steps" for size in np.unique(play.sizes)[:3].tolist()),
            stated=f"{choice.length} steps",
            holds=bool((play.sizes == choice.length).all()),
        ),
        Check(
            name="price of a contribution",
            measured=f"{choice.loss / PARTS:.6f}, from whole numbers",
            stated=f"{game.mechanism.epsilon:.6f}",
            holds=choice.loss / PARTS <= game.mechanism.epsilon,
        ),
        Check(
            name="directions that come again",
            measured=f"{again:.1%} of the contributions",
            stated="hardly any",
            holds=again < 0.01 + trials / 2**SEED_BITS,
        ),
    ]
