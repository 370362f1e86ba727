"""The spam tests: an answer less its parent has to look like an honest device's step and noise.

The ticket of an answer names its parent, an instance that the server knows. The residual, answer less parent, is the
specification's noise and a step within the clip: answers that shift, replay, average or invent weights have other
residuals. `ResidualTest` compares it with the limits of `spam_limits`.

A direction (`DirectionTest`) moves its parent by one public length in every weight, to the last bit of float32, along
signs that follow from the first 20 of them (`incrowd.privacy.mechanism.whole_noise`). An attacker can only name one,
as all devices do, and not one direction again and again: an honest device names a direction only among N of a million.

Both tests learn from the offered answers (`Learnt`). The fixed limits let the longest step pass, so colluders can hide
below them with honest sizes and chosen signs. But they agree with each other, as honest noise never does: residuals
vary most along the directions that many of them share. Learning only tightens the fixed limits, never below the needs
of honest noise: an attacker who fills the memory lets nothing in and keeps no noise out. Every answer within the fixed
limits counts, accepted or not, so the majority sets the normal range, and a lie lasts half a memory.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binom

from incrowd import _validate
from incrowd._random import Floats, Integers, Randomness, Stream, SystemRandomness
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.spam_limits import fixed_limits, noise_limits
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.whole_noise import SEED_BITS, seed_of, sign_bits

FIXED_PART = 0.92  # the part of the share of honest answers that the fixed limits may turn away; learning has the rest
NAMED_PART = 0.3  # the part of the share, for directions, that frequent seeds have
LATEST_SEEDS = 4096  # the test remembers the seeds of this many answers
LINE = 16  # the number of weights in one line of a processor's memory
MEMORY = 400  # the number of answers that set the normal range
DIRECTIONS = 8  # the number of directions that the test follows, or the number of weights if smaller
SEEN = 2048  # in larger models the test follows directions in this many secret weights
LEAST = 200  # the test has no normal range before it remembers this many answers
REMEMBERED_EVERY = 2  # the test remembers every other answer: a burst has to be twice as long to become normal
PASSES = 3  # the medians of all answers, and then of those within the limits so far, this many times
REFRESHED_EVERY = 50  # the test computes medians and directions anew after this many answers
PULL = 0.65  # divided by the number of weights, the turn of an answer: directions forget in some hundred answers
SHORTEST = 1e-9  # a shorter direction is rounding alone, and stays short
CENTRE_PART, DIRECTION_PART = 0.3, 0.7  # the parts of the learnt share
_TO_DEVIATION = 1.4826  # a median absolute deviation times this is a normal distribution's standard deviation

TestState = Mapping[str, NDArray[Any]]


class Learnt:
    """The normal range of residuals, from the last answers: their sizes, and projections on their leading directions.

    Sizes (mean |r| and mean r^2) may lie above the median by a number of scaled median absolute deviations; a power
    iteration over all answers follows the leading directions, and the projections on them may differ from the median as
    much. The medians leave out answers beyond the limits, so tight colluders do not narrow them. Directions have one
    size, so the test looks at their projections alone.

    `share` is the share of noise alone that it may turn away. The seen weights and the first directions come from the
    stream ``residual directions``.

    Guarantee: restored from its `state` it continues bit for bit.
    """

    def __init__(self, mechanism: Mechanism, *, share: float, randomness: Randomness) -> None:
        size, seen = mechanism.size, min(mechanism.size, SEEN)
        count = min(DIRECTIONS, seen)
        self._size, self._gaussian = size, mechanism.noise != "laplace"  # sums of signs are nearly normal
        self._deviation = 1.0 if self._gaussian else math.sqrt(2)  # of the noise, in units of its scale
        self._centre_floor = np.full(2, math.inf)
        if mechanism.noise != "direction":
            floors = noise_limits(mechanism, share=CENTRE_PART * share / 2)
            self._centre_floor[:] = floors.high, floors.high_square
        self._wide = -float(ndtri(CENTRE_PART * share / 2))
        self._aside = -float(ndtri(DIRECTION_PART * share / (2 * count)))
        stream = randomness.stream("residual directions")
        self._where = _chosen(size, seen, stream)
        self._directions = stream.normals(count * seen).reshape(count, seen)
        _straighten(self._directions)
        self._pulled = np.zeros((count, seen))
        self._lately = np.zeros((2 + count, MEMORY))
        self._centres, self._projections = self._lately[:2], self._lately[2:]
        self._offered = np.zeros(1, np.int64)
        self._bounds = np.full((2, 2 + count), ((-math.inf,), (math.inf,)))
        self._highest, self._between = self._bounds[1, :2], self._bounds[:, 2:]

    def usual(self, residual: Floats, sizes: tuple[float, float] = (0.0, 0.0)) -> bool:
        """Whether a residual, in units of the noise's scale, is in the normal range, which it joins.

        `sizes` are its mean |r| and mean r^2.
        """
        seen = (residual if len(residual) == len(self._where) else residual[self._where]) / self._deviation
        found = np.empty(2 + len(self._directions))
        found[:2], found[2:] = sizes, np.einsum("ij,j->i", self._directions, seen)  # einsum: no threads
        self._pulled += found[2:, None] * seen
        offered = int(self._offered[0])
        if offered % REMEMBERED_EVERY == 0:
            self._lately[:, offered // REMEMBERED_EVERY % MEMORY] = found
        usual = bool(((self._bounds[0] <= found) & (found <= self._bounds[1])).all())
        self._offered += 1
        if (offered + 1) % REFRESHED_EVERY == 0:
            self._refresh(-(-(offered + 1) // REMEMBERED_EVERY))
        return usual

    def _refresh(self, remembered: int) -> None:
        """Turn the directions along their pull, and compute the normal range anew."""
        self._pulled *= PULL / len(self._where)
        self._directions += self._pulled
        self._pulled[:] = 0.0
        _straighten(self._directions)
        if remembered < LEAST:
            return
        # Noise alone needs a normal quantile, and more in a direction of a few weights, whose tails are longer: the
        # excess kurtosis is 3 sum v^4 (Cornish and Fisher 1938).
        tails = 0.0 if self._gaussian else (self._aside**3 - 3 * self._aside) / 8
        floor = self._aside + tails * np.einsum("ij,ij,ij,ij->i", *[self._directions] * 4)
        values = self._lately[:, :remembered]
        kept, before = values, np.ones(values.shape[1], bool)
        for _ in range(PASSES):
            centre = _medians(kept)
            spread = _TO_DEVIATION * _medians(np.abs(kept - centre[:, None]))
            self._highest[:] = np.maximum(centre[:2] + self._wide * spread[:2], self._centre_floor)
            middle, width = centre[2:], np.maximum(self._aside * spread[2:], floor)
            self._between[:] = np.stack([np.minimum(middle - width, -floor), np.maximum(middle + width, floor)])
            inside = ((self._bounds[0][:, None] <= values) & (values <= self._bounds[1][:, None])).all(axis=0)
            if 2 * inside.sum() <= len(inside) or np.array_equal(inside, before):
                break  # the same answers have the same medians
            kept, before = values[:, inside], inside

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays for `restore`."""
        return {name: getattr(self, f"_{name}").copy() for name in _KEPT}

    def restore(self, state: TestState) -> None:
        """Continue from a state; arrays of another test raise `DataError`, and change nothing."""
        _check_state(state, self.state())
        where = state["where"]
        if state["offered"][0] < 0 or where[0] < 0 or where[-1] >= self._size or (np.diff(where) <= 0).any():
            raise DataError("this is no state of such a test: see offered and where")
        for name in _KEPT:
            getattr(self, f"_{name}")[...] = state[name]


_KEPT = ("where", "directions", "pulled", "centres", "projections", "highest", "between", "offered")


class ResidualTest:
    """Tests whether an honest device may have sent an answer, given its parent; callers hold a lock.

    It takes its secrets from `randomness` (the operating system's by default); without `learns` it has the fixed limits
    alone.

    Guarantee: it turns away at most a share `turned_away` of the honest answers, whatever their steps within the clip,
    and at least two fifths of that share of noise alone, for every merge and gamma. The same calls have the same
    results. Restored from its state it continues bit for bit. It turns away numbers that are not finite.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        turned_away: float = 0.01,
        learns: bool = True,
        randomness: Randomness | None = None,
    ) -> None:
        _validate.fraction(turned_away=turned_away)
        self.mechanism, self._scale = mechanism, mechanism.noise_scale
        self.limits = fixed_limits(mechanism, share=FIXED_PART * turned_away)
        self.learnt: Learnt | None = None
        if learns:
            share, secret = (1 - FIXED_PART) * turned_away, randomness or SystemRandomness()
            self.learnt = Learnt(mechanism, share=share, randomness=secret)

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this size."""
        with np.errstate(all="ignore"):  # NaN fails every limit
            residual = _residual(answer, parent, gamma * self._scale)
            sizes, count = np.abs(residual), len(residual)
            mean, square = float(sizes.sum()) / count, float(np.einsum("i,i->", residual, residual)) / count
            most = float(sizes.max())
        limits = self.limits
        within = limits.low <= mean <= limits.high and limits.low_square <= square <= limits.high_square
        if not (within and most <= limits.most):
            return False
        return self.learnt is None or self.learnt.usual(residual, (mean, square))

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays for `restore`."""
        return {} if self.learnt is None else self.learnt.state()

    def restore(self, state: TestState) -> None:
        """Continue from a state; arrays of another test raise `DataError`, and change nothing."""
        if self.learnt is not None:
            self.learnt.restore(state)


class DirectionTest:
    """Tests whether an answer is a direction from its parent.

    Guarantee: it accepts directions alone, each at most `most` times among the last `LATEST_SEEDS`; honest devices
    hardly ever name one as often, whatever their gradients. Learning turns away at most the rest of the share of
    independent directions. Restored from its state it continues bit for bit.

    Edge cases: in a weight so large that float32 cannot show a step, the direction has to have +1. The test turns away
    numbers that are not finite.
    """

    def __init__(
        self, mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None
    ) -> None:
        _validate.fraction(turned_away=turned_away)
        if mechanism.noise != "direction":
            raise ConfigError(field="noise", value=mechanism.noise, remedy="only directions can be told apart so")
        choice, self._scale = mechanism.choice, mechanism.noise_scale
        self._step, self._length = choice.step, float(choice.length)
        chance = min(1.0, choice.candidates / 2.0 ** min(SEED_BITS, mechanism.size))
        self.most = int(binom.isf(NAMED_PART * turned_away, LATEST_SEEDS, chance)) + 1
        share = (1 - NAMED_PART) * turned_away
        self._learnt = Learnt(mechanism, share=share, randomness=randomness or SystemRandomness())
        self._named, self._taken = np.full(LATEST_SEEDS, -1, np.int64), 0

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this size."""
        seed = named_seed(answer, parent, (gamma * self._step) * self._length)  # in the order of `device.stepped`
        if seed < 0 or np.count_nonzero(self._named == seed) >= self.most:
            return False
        if not self._learnt.usual(_residual(answer, parent, gamma * self._scale)):
            return False
        self._named[self._taken % LATEST_SEEDS] = seed
        self._taken += 1
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The arrays for `restore`."""
        return self._learnt.state() | {"named": self._named.copy(), "taken": np.array([self._taken], np.int64)}

    def restore(self, state: TestState) -> None:
        """Continue from a state; arrays of another test raise `DataError`, and change nothing."""
        _check_state(state, self.state())
        named, taken = state["named"], int(state["taken"][0])
        if not ((named >= -1) & (named < 2**SEED_BITS)).all() or taken < 0:
            raise DataError("this is no state of a test of directions: see named and taken")
        self._learnt.restore({name: array for name, array in state.items() if name in _KEPT})
        self._named[:], self._taken = named, taken


def named_seed(answer: Instance, parent: Instance, length: float) -> int:
    """The seed of the direction from a parent to an answer, with a step of this length; -1 for no direction."""
    wide = parent.astype(np.float64)
    with np.errstate(all="ignore"):  # NaN and infinity equal no step
        below, above = (wide - length).astype(np.float32), (wide + length).astype(np.float32)
    seed = seed_of((answer == below).view(np.uint8))
    signs = sign_bits(np.array([seed], np.int64), len(answer))[0].view(np.bool_)
    return seed if (answer == np.where(signs, below, above)).all() and np.isfinite(answer).all() else -1


def answer_test(
    mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None
) -> ResidualTest | DirectionTest:
    """The test of a mechanism's answers."""
    kind = DirectionTest if mechanism.noise == "direction" else ResidualTest
    return kind(mechanism, turned_away=turned_away, randomness=randomness)


def _residual(answer: Instance, parent: Instance, scale: float) -> Floats:
    if answer.shape != parent.shape:
        raise DataError(f"an answer of shape {answer.shape} does not fit its parent of shape {parent.shape}")
    residual: Floats = np.subtract(parent, answer, dtype=np.float64) * (1 / scale)
    return residual


def _check_state(state: TestState, own: TestState) -> None:
    """Refuse a state with other arrays than a test's own, or with numbers that are not finite (limits may be)."""
    for name in state.keys() | own.keys():
        given, mine = state.get(name), own.get(name)
        if given is None or mine is None or (given.shape, given.dtype) != (mine.shape, mine.dtype):
            raise DataError(f"this is no state of such a test: see {name}")
        if np.isnan(given).any() or (name not in ("highest", "between") and np.isinf(given).any()):
            raise DataError(f"this is no state of such a test: {name} is not finite")


def _chosen(size: int, seen: int, stream: Stream) -> Integers:
    """Random weights, in runs of neighbours: memory comes in lines."""
    if seen == size:
        return np.arange(size)
    offset = int(stream.bits(1)[0] % np.uint64(size % LINE + 1))
    runs = np.sort(np.argsort(stream.bits(size // LINE), kind="stable")[: seen // LINE])
    where: Integers = (offset + LINE * runs[:, None] + np.arange(LINE)).reshape(-1)
    return where


def _straighten(directions: Floats) -> None:
    """Make directions orthogonal to those before them, and of length 1, in place."""
    for place in range(len(directions)):
        earlier, own = directions[:place], directions[place]
        own -= ((earlier * own).sum(axis=1)[:, None] * earlier).sum(axis=0)
        own /= max(math.sqrt(own @ own), SHORTEST)


def _medians(rows: Floats) -> Floats:
    """The median of each row; `np.median` takes three times as long."""
    above, below = rows.shape[1] // 2, (rows.shape[1] - 1) // 2
    ordered = np.partition(rows, (below, above), axis=1)
    medians: Floats = (ordered[:, below] + ordered[:, above]) / 2
    return medians
