"""A device that names directions, attacked by somebody who knows all that it tossed.

Neighbours are any two tables, so the two gradients are opposite. The adversary sees the seed that is named and knows
the directions to choose from: which of them points most along either gradient, and so the whole of what there is to
tell. What is attacked is the way of every real contribution: whole numbers, charge, choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.audit.checks import ALARM
from incrowd.audit.finding import Check, Claim, Finding, bounded
from incrowd.drawdiscard.specification import Specification
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.whole_noise import PARTS, SEED_BITS, most_along, random_words, seed_of

_WEIGHTS = 40
"""So many weights has a contribution: more than a seed has bits, and what it costs does not depend on their number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DirectionPlay:
    """Contributions: whose was the first table, the adversary's scores, and whether the own table's best was named.

    `seeds` are those that were named, `sizes` the sizes of all numbers that were released, in steps.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    best: NDArray[np.bool_]
    seeds: Integers
    sizes: Integers


@dataclass(frozen=True, kw_only=True)
class DirectionGame:
    """The game against one specification."""

    specification: Specification

    @cached_property
    def mechanism(self) -> Mechanism:
        """What hides a device, with few numbers."""
        return replace(self.specification.mechanism, size=_WEIGHTS)

    @cached_property
    def gradients(self) -> tuple[Floats, Floats]:
        """Those of the two tables."""
        first = SeededRandomness(seed=0).stream("gradient").normals(_WEIGHTS)
        return first, -first

    def play(self, seed: int, trials: int) -> DirectionPlay:
        """So many contributions, each of one of the two tables by a fair coin."""
        randomness, positions = SeededRandomness(seed=seed), list[int]()
        inside = randomness.stream("tables").bits(trials) % np.uint64(2) == 1
        ledger = Ledger.in_memory(budget=Budget(epsilon=1e9, delta=0.5), relation=RELATION)

        def charge(mechanism: Mechanism) -> Receipt:
            receipt = ledger.charge(mechanism.event("model"), pays_for=mechanism.pays_for, randomness=randomness)
            positions.append(receipt.entry.position)
            return receipt

        released = [
            Contribution(self.mechanism, self.gradients[0 if first else 1]).release(charge=charge) for first in inside
        ]
        tossed = [self._tossed(randomness, position) for position in positions]
        return self._seen(released, tossed, inside)

    def _tossed(self, randomness: SeededRandomness, position: int) -> Integers:
        """The directions of a contribution: its first words."""
        candidates = self.mechanism.choice.candidates
        word = random_words(randomness.stream("noise", position), candidates)
        return np.array([word() % 2**SEED_BITS for _ in range(candidates)], np.int64)

    def _seen(self, released: Sequence[Whole], tossed: Sequence[Integers], inside: NDArray[np.bool_]) -> DirectionPlay:
        seeds = np.array([seed_of((each.steps > 0).astype(np.uint8)) for each in released])
        bounded = [self.mechanism.choice.bounded(gradient).astype(np.float64) for gradient in self.gradients]
        first, second = (np.array([each[most_along(each, table)] for each in tossed]) for table in bounded)
        loss = self.mechanism.choice.loss / PARTS
        scores = loss * ((seeds == first).astype(np.float64) - (seeds == second))
        return DirectionPlay(
            inside=inside,
            scores=scores,
            best=np.where(inside, seeds == first, seeds == second),
            seeds=seeds,
            sizes=np.abs(np.array([each.steps for each in released])),
        )


def direction_looks(asked: Specification, *, trials: int, seed: int) -> tuple[Finding, list[Check]]:
    """Attack so many contributions that are directions.

    Guarantee: a right device passes but for one audit in a million.
    """
    game = DirectionGame(specification=asked)
    play = game.play(seed, trials)
    return _finding(game, play), _checks(game, play)


def _finding(game: DirectionGame, play: DirectionPlay) -> Finding:
    return bounded(
        Claim(unit="contribution", epsilon=game.mechanism.epsilon, delta=0.0),
        play.scores[play.inside],
        play.scores[~play.inside],
        attack="two tables, as unlike as can be, told apart by one contribution and all directions that were tossed",
        note="a server sees less: which directions were tossed never leaves the device; so do pools",
    )


def _checks(game: DirectionGame, play: DirectionPlay) -> list[Check]:
    choice, trials = game.mechanism.choice, len(play.best)
    named, honest = int(play.best.sum()), choice.honest
    again = 1 - len(np.unique(play.seeds)) / trials
    return [
        Check(
            name="how often the direction most along is named",
            measured=f"{named / trials:.4f}",
            stated=f"{honest:.4f}",
            holds=bool(
                binom.cdf(named, trials, honest) > ALARM / 2 and binom.sf(named - 1, trials, honest) > ALARM / 2
            ),
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
