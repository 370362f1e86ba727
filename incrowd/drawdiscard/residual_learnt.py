"""What the residual test learns from the answers that it is offered: what is usual, and in which directions they agree.

The fixed limits have to let the longest step pass. Where most devices make shorter ones, colluders who send noise with
honest sizes and chosen signs hide below. But they agree with each other, as honest noise never does, and agreement
shows: the residuals vary most along what many of them share. So two more things are looked at.

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
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from incrowd._random import Floats, Integers, Randomness, Stream
from incrowd.drawdiscard.residual_limits import noise_limits
from incrowd.errors import DataError
from incrowd.privacy.mechanism.device import Mechanism

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
            centre, spread = _middle(kept)
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

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from a state.

        Edge cases: what is no state of such a test raises `DataError`, and nothing changes.
        """
        own = self.state()
        for name, array in own.items():
            given = state.get(name)
            if given is None or given.shape != array.shape or given.dtype != array.dtype or not _sound(name, given):
                raise DataError(f"this is no state of a residual test for such answers: see {name}")
        where, offered = state["where"], int(state["offered"][0])
        if set(state) != set(own) or offered < 0 or (np.diff(where) <= 0).any() or not self._fits(where):
            raise DataError(f"this is no state of a residual test: it has {', '.join(sorted(state))}")
        for name in _KEPT:
            getattr(self, f"_{name}")[...] = state[name]
        self._offered = offered

    def _fits(self, where: Integers) -> bool:
        return bool(where[0] >= 0 and where[-1] < self._size)


_KEPT = ("where", "directions", "pulled", "centres", "projections", "highest", "between")


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


def _middle(rows: Floats) -> tuple[Floats, Floats]:
    """The median of each row, and its median absolute deviation as a standard deviation."""
    centre = _medians(rows)
    return centre, _TO_DEVIATION * _medians(np.abs(rows - centre[:, None]))


def _medians(rows: Floats) -> Floats:
    """The median of each row, as `np.median` has it, which takes three times as long over what is not finite."""
    above = rows.shape[1] // 2
    below = (rows.shape[1] - 1) // 2
    ordered = np.partition(rows, (below, above), axis=1)
    medians: Floats = (ordered[:, below] + ordered[:, above]) / 2
    return medians
