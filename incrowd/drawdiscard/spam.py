"""The spam tests: an answer less its parent has to look like an honest device's step and noise.

An answer descends from an instance that the server knows, its parent: the ticket names it. What remains of the answer
when the parent is taken off is the noise that the specification asks for and a step that the clip bounds, and nothing
else: whoever shifts, replays, averages or invents weights leaves another residual. `ResidualTest` compares it with the
limits of `spam_limits`.

Of a direction nothing is estimated (`DirectionTest`). An honest answer is its parent, moved by the same public length
in every weight, along signs that follow from the first 20 of them (`incrowd.privacy.mechanism.whole_noise`), to the
last bit of float32. So whoever makes answers of their own can do no more than to name a direction, as everybody does.
And not the same one again and again, which would take a model there as straight as nothing else does: an honest device
names a direction only if it tossed it, among N of a million, which bounds how often any of them comes up.

**What is learnt** from the answers that are offered (`Learnt`). The fixed limits have to let the longest step pass.
Where most devices make shorter ones, colluders who send noise with honest sizes and chosen signs hide below. But they
agree with each other, as honest noise never does, and agreement shows: the residuals vary most along what many of them
share. So two more things are looked at.

*The centre.* Mean |r| and mean r^2 may lie above the median of the last answers by so many (scaled) median absolute
deviations.
*Directions.* The leading directions of the residuals are followed by a power iteration over all answers; the projection
on each of them may differ from the median of the last answers' by so many median absolute deviations.

Both are looked at again without those that lie beyond, so that colluders who agree with each other closely do not make
honest devices seem more alike than they are.

What is learnt only ever tightens the fixed limits, and never below what honest noise alone needs: whoever fills the
memory can neither let anything in that the fixed limits stop, nor keep noise out. All answers count that pass the
fixed limits, let in or not, so that a majority of honest answers sets what is usual: a lie lasts half a memory.
"""

import math
from collections import Counter
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

FIXED_PART = 0.92
"""So much of the wanted share of honest answers the fixed limits may turn away; the rest is for what is learnt."""

NAMED_PART = 0.3
"""Of directions, so much of the wanted share is for seeds that come up too often."""

LATEST_SEEDS = 4096
"""The seeds of so many answers are remembered."""

LINE = 16
"""So many weights lie in one line of a processor's memory."""

MEMORY = 400
"""So many answers say what is usual."""

DIRECTIONS = 8
"""So many directions are followed, or as many as there are weights."""

SEEN = 2048
"""Of more weights than that, directions are followed in so many, which nobody else knows."""

LEAST = 200
"""Before so many answers are remembered nothing is usual."""

REMEMBERED_EVERY = 2
"""Every other answer is remembered: a burst has to be so much longer to be usual."""

PASSES = 3
"""Medians are taken of all answers, and again of those that are within the limits so far."""

REFRESHED_EVERY = 50
"""Medians and directions are computed anew every so many answers."""

PULL = 0.65
"""How much an answer turns a direction, times the number of weights: directions forget within some hundred answers."""

SHORTEST = 1e-9
"""A direction of which less is left is not made as long as the others: it would be rounding."""

CENTRE_PART, DIRECTION_PART = 0.3, 0.7
"""How the share of honest answers that may be turned away is divided."""

_TO_DEVIATION = 1.4826  # a median absolute deviation times this is a normal distribution's standard deviation

TestState = Mapping[str, NDArray[Any]]


class Learnt:
    """What the last answers were like.

    `share` is how much of noise alone may be turned away. Which weights are seen, and the first directions, are from
    the stream ``residual directions``. Signs that a device names (noise ``direction``) are all of one size, so only the
    projections of those are looked at.

    Guarantee: restored from its `state` it goes on bit for bit.
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
        aside = DIRECTION_PART * share / (2 * count)
        self._aside = -float(ndtri(aside))
        stream = randomness.stream("residual directions")
        self._where = _chosen(size, seen, stream)
        self._directions = stream.normals(count * seen).reshape(count, seen)
        _straighten(self._directions)
        self._pulled = np.zeros((count, seen))
        self._lately = np.zeros((2 + count, MEMORY))
        self._centres, self._projections = self._lately[:2], self._lately[2:]
        self._offered = 0
        self._bounds = np.full((2, 2 + count), ((-math.inf,), (math.inf,)))
        self._highest, self._between = self._bounds[1, :2], self._bounds[:, 2:]

    def usual(self, residual: Floats, sizes: tuple[float, float] = (0.0, 0.0)) -> bool:
        """Whether an answer's residual, in units of the noise's scale, is like the last ones, which it joins.

        `sizes` are its mean |r| and mean r^2.
        """
        there = (residual if len(residual) == len(self._where) else residual[self._where]) / self._deviation
        found = np.empty(2 + len(self._directions))
        found[:2], found[2:] = sizes, np.einsum("ij,j->i", self._directions, there)  # einsum: no threads
        self._pulled += found[2:, None] * there
        if self._offered % REMEMBERED_EVERY == 0:
            self._lately[:, self._offered // REMEMBERED_EVERY % MEMORY] = found
        usual = bool(((self._bounds[0] <= found) & (found <= self._bounds[1])).all())
        self._offered += 1
        if self._offered % REFRESHED_EVERY == 0:
            self._refresh()
        return usual

    def _refresh(self) -> None:
        """Turn the directions to what pulled them, and see anew what is usual."""
        self._pulled *= PULL / len(self._where)
        self._directions += self._pulled
        self._pulled[:] = 0.0
        _straighten(self._directions)
        remembered = -(-self._offered // REMEMBERED_EVERY)
        if remembered < LEAST:
            return
        # Noise alone needs a normal quantile, and more where a few weights, whose tails are longer, make up most of a
        # direction. The excess kurtosis is 3 sum v^4 (Cornish and Fisher 1938).
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
            inside = (values[:2] <= self._highest[:, None]).all(axis=0)
            inside &= (self._between[0][:, None] <= values[2:]).all(axis=0)
            inside &= (values[2:] <= self._between[1][:, None]).all(axis=0)
            if 2 * inside.sum() <= len(inside) or np.array_equal(inside, before):
                break  # of the same answers the medians are the same
            kept, before = values[:, inside], inside

    def state(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs."""
        arrays = {name: getattr(self, f"_{name}").copy() for name in _KEPT}
        return arrays | {"offered": np.array([self._offered], np.int64)}

    def restore(self, state: TestState) -> None:
        """Go on from a state; what is none of such a test raises `DataError`, and changes nothing."""
        own = self.state()
        for name, array in own.items():
            given = state.get(name)
            if given is None or given.shape != array.shape or given.dtype != array.dtype or not _sound(name, given):
                raise DataError(f"this is no state of a residual test for such answers: see {name}")
        where, offered = state["where"], int(state["offered"][0])
        fits = where[0] >= 0 and where[-1] < self._size and (np.diff(where) > 0).all()
        if set(state) != set(own) or offered < 0 or not fits:
            raise DataError(f"this is no state of a residual test: it has {', '.join(sorted(state))}")
        for name in _KEPT:
            getattr(self, f"_{name}")[...] = state[name]
        self._offered = offered


_KEPT = ("where", "directions", "pulled", "centres", "projections", "highest", "between")


class ResidualTest:
    """Whether an honest device may have sent an answer, given its parent; callers hold a lock.

    It turns away at most `turned_away` of the honest answers. What is secret of it (see `Learnt`) is from `randomness`,
    the operating system's by default; with `learns` false it has the fixed limits alone.

    Guarantee: of honest answers at most the wanted share is turned away, whatever their steps within the clip, and at
    least two fifths of that share where there is noise alone; however instances are merged, and whatever gamma. The
    same calls have the same answers. Restored from its state it goes on bit for bit. What is not finite is turned away.
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
        self.mechanism, self._shape, self._scale = mechanism, (mechanism.size,), mechanism.noise_scale
        self.limits = fixed_limits(mechanism, share=FIXED_PART * turned_away)
        self.learnt: Learnt | None = None
        if learns:
            share, secret = (1 - FIXED_PART) * turned_away, randomness or SystemRandomness()
            self.learnt = Learnt(mechanism, share=share, randomness=secret)

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this rate."""
        _check_shapes(answer, parent, self._shape)
        with np.errstate(all="ignore"):  # what is not a number fails every limit
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
        """What was learnt: all that `restore` needs."""
        return {} if self.learnt is None else self.learnt.state()

    def restore(self, state: TestState) -> None:
        """Go on from a state; what is none of such a test raises `DataError`, and changes nothing."""
        if self.learnt is not None:
            self.learnt.restore(state)
        elif state:
            raise DataError(f"this test learns nothing, and the state has {', '.join(sorted(state))}")


class DirectionTest:
    """Whether an answer is a direction's, given its parent.

    Guarantee: nothing passes but directions, each at most `most` times among the last `LATEST_SEEDS` that did; where
    all devices are honest, whatever their gradients, hardly any of their answers comes up as often. What is learnt of
    their projections turns away at most the rest of the wanted share of directions that have nothing in common.
    Restored from its state it goes on bit for bit. What is not finite is turned away.

    Edge cases: where a weight is so large that float32 cannot show a step, the direction has to be the one with +1
    there.
    """

    def __init__(
        self, mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None
    ) -> None:
        _validate.fraction(turned_away=turned_away)
        if mechanism.noise != "direction":
            raise ConfigError(field="noise", value=mechanism.noise, remedy="only directions can be told apart so")
        self._shape, choice = (mechanism.size,), mechanism.choice
        self._step, self._length = choice.step, float(choice.length)
        chance = min(1.0, choice.candidates / 2.0 ** min(SEED_BITS, mechanism.size))
        self.most = int(binom.isf(NAMED_PART * turned_away, LATEST_SEEDS, chance)) + 1
        share = (1 - NAMED_PART) * turned_away
        self._learnt = Learnt(mechanism, share=share, randomness=randomness or SystemRandomness())
        self._scale = mechanism.noise_scale
        self._lately, self._taken, self._counts = np.full(LATEST_SEEDS, -1, np.int64), 0, Counter[int]()

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this rate."""
        _check_shapes(answer, parent, self._shape)
        seed = named_seed(answer, parent, (gamma * self._step) * self._length)  # as `outbox.stepped` has it
        if seed < 0 or self._counts[seed] >= self.most:
            return False
        if not self._learnt.usual(_residual(answer, parent, gamma * self._scale)):
            return False
        self._remember(seed)
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The seeds of the last answers, and what was learnt of them: all that `restore` needs."""
        return self._learnt.state() | self._named_state()

    def restore(self, state: TestState) -> None:
        """Go on from a state; what is none of such a test raises `DataError`, and changes nothing."""
        own = self._named_state()
        alike = all(
            name in state and state[name].shape == array.shape and state[name].dtype == array.dtype
            for name, array in own.items()
        )
        if not alike or not ((state["named"] >= -1) & (state["named"] < 2**SEED_BITS)).all() or state["taken"][0] < 0:
            raise DataError(f"this is no state of a test of directions: it has {', '.join(sorted(state))}")
        self._learnt.restore({name: array for name, array in state.items() if name not in own})
        self._lately[:], self._taken = state["named"], int(state["taken"][0])
        self._counts = Counter(self._lately[self._lately >= 0].tolist())

    def _named_state(self) -> dict[str, NDArray[Any]]:
        return {"named": self._lately.copy(), "taken": np.array([self._taken], np.int64)}

    def _remember(self, seed: int) -> None:
        place = self._taken % LATEST_SEEDS
        before = int(self._lately[place])
        if before >= 0:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        self._lately[place] = seed
        self._counts[seed] += 1
        self._taken += 1


def named_seed(answer: Instance, parent: Instance, length: float) -> int:
    """The seed of the direction along which an answer is so long a step from its parent; -1 where there is none."""
    wide = parent.astype(np.float64)
    with np.errstate(all="ignore"):  # what is not finite equals nothing
        below, above = (wide - length).astype(np.float32), (wide + length).astype(np.float32)
    seed = seed_of((answer == below).view(np.uint8))
    signs = sign_bits(np.array([seed], np.int64), len(answer))[0].view(np.bool_)
    return seed if (answer == np.where(signs, below, above)).all() and np.isfinite(answer).all() else -1


def answer_test(
    mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None
) -> ResidualTest | DirectionTest:
    """The test of a mechanism's answers; see `ResidualTest` for what `turned_away` and `randomness` are."""
    if mechanism.noise == "direction":
        return DirectionTest(mechanism, turned_away=turned_away, randomness=randomness)
    return ResidualTest(mechanism, turned_away=turned_away, randomness=randomness)


def _residual(answer: Instance, parent: Instance, scale: float) -> Floats:
    residual: Floats = np.subtract(parent, answer, dtype=np.float64) * (1 / scale)
    return residual


def _check_shapes(answer: Instance, parent: Instance, shape: tuple[int]) -> None:
    if answer.shape != shape or parent.shape != shape:
        raise DataError(f"answer and parent are {answer.shape} and {parent.shape}, not {shape[0]} weights")


def _chosen(size: int, seen: int, stream: Stream) -> Integers:
    """So many weights by chance, in runs that lie side by side: memory comes in lines."""
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


def _sound(name: str, array: NDArray[Any]) -> bool:
    """Whether an array has numbers only; limits may be infinite."""
    return not np.isnan(array).any() if name in ("highest", "between") else bool(np.isfinite(array).all())


def _medians(rows: Floats) -> Floats:
    """The median of each row, as `np.median` has it, which takes three times as long over what is not finite."""
    above = rows.shape[1] // 2
    below = (rows.shape[1] - 1) // 2
    ordered = np.partition(rows, (below, above), axis=1)
    medians: Floats = (ordered[:, below] + ordered[:, above]) / 2
    return medians
