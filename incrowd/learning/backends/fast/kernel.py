"""One client's training: a compiled loop over its batches, and the first layer where that is Linear.

A sparse client's examples are pairs of a feature and a nonzero number. Outputs are then sums of rows of the weight, and
a step adds rows of gradients to the rows of its features: example by example where rows are narrow, else feature by
feature, so that a batch reads and writes each row once.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import incrowd.learning.backends.fast.memory as m
import incrowd.learning.backends.fast.passes as passes
from incrowd._random import Integers
from incrowd.learning.backends.fast.memory import Numbers, Space
from incrowd.learning.backends.fast.rows import add_rows, add_to_rows, compiled, fetch, inner
from incrowd.learning.contributions import RUN

_NARROW = 64  # outputs of a first layer whose weight stays in the nearest cache
_ZERO = np.float32(0)


class Examples(NamedTuple):
    """All examples; a number means itself * scale + offset.

    Row r of a sparse client has the pairs from starts[r] to starts[r + 1]; rows of others are only in the table.
    """

    table: NDArray[Any]  # uint8 or float32
    starts: NDArray[np.int64]
    places: NDArray[Any]  # unsigned
    numbers: NDArray[Any]
    scale: np.float32
    offset: np.float32


class Settings(NamedTuple):
    """The settings of a step; a `plain` step is the gradient alone."""

    rate: np.float32
    momentum: np.float32
    weight_decay: np.float32
    proximal: np.float32
    plain: bool
    change: np.float32  # times which gradients are added to the weights, or to the velocity
    loss: int
    together: int  # examples that are looked at together


class Batches(NamedTuple):
    """One client's batches, with these `sizes`, one after the other in `rows` and `labels`; outputs get `offset`."""

    rows: NDArray[np.int64]
    labels: Numbers
    sizes: Integers
    offset: Numbers


@compiled
def train(e: Examples, s: Space, how: Settings, start: Numbers, b: Batches, sparse: bool, out: Numbers) -> float:
    """Train a client from the weights `start` and `write` what it learnt."""
    for k in range(len(start)):
        s.floats[k] = start[k]
    for k in range(len(start), s.integers[m.KEPT_FROM]):  # NaN in the padding must not reach the next client
        s.floats[k] = 0
    lowest, target = 1 if sparse else 0, s.integers[m.VELOCITY]
    begin: int = np.int64(0)  # type: ignore[assignment]  # a literal would be another type to numba
    for count in b.sizes:
        done = 0 * begin
        while done < count:
            size = min(count - done, how.together)
            rows, labels = b.rows[begin + done :][:size], b.labels[begin + done :][:size]
            if sparse:
                _sparse_outputs(e, s, rows, b.rows[begin + count : begin + 2 * count])
            else:
                _load(e, s, rows)
            passes.forward(s, size, lowest)
            passes.compare(s, how.loss, labels, b.offset, np.float32(1 / count))
            passes.backward(s, size, lowest, target, how.change)
            if sparse:
                _sparse_step(e, s, how, rows)
            done += size
        if count and not how.plain:
            _descend(s, how, start)
        begin += count
    return write(s, start, out)


@inner
def _descend(s: Space, how: Settings, start: Numbers) -> None:
    """A step along the gradients in the velocity, which is made ready for the next."""
    pull = how.weight_decay + how.proximal
    weights, velocity = s.floats[: len(start)], s.floats[s.integers[m.VELOCITY] :][: len(start)]
    if pull != 0:
        for k in range(len(start)):
            velocity[k] += pull * weights[k] - how.proximal * start[k]
    for k in range(len(start)):
        weights[k] -= how.rate * velocity[k]
        velocity[k] *= how.momentum


@inner
def _load(e: Examples, s: Space, rows: NDArray[np.int64]) -> None:
    """Dense examples; the channels of a picture's pixel lie together."""
    t = s.table[0]
    channels, each = t[m.CHANNELS], t[m.ROWS] * t[m.COLUMNS]
    for i in range(len(rows)):
        own, to = e.table[rows[i]], t[m.IN] + i * t[m.IN_ROW]
        if each == 1:
            x = s.floats[to : to + channels]
            for c in range(channels):
                x[c] = np.float32(own[c]) * e.scale + e.offset
        for c in range(0 if each == 1 else channels):
            for p in range(each):
                s.floats[to + p * channels + c] = np.float32(own[c * each + p]) * e.scale + e.offset


@inner
def _sparse_outputs(e: Examples, s: Space, rows: NDArray[np.int64], following: NDArray[np.int64]) -> None:
    """Compute the first layer's outputs for a batch, and prefetch the next batch."""
    t = s.table[0]
    for row in following:
        fetch(e.places, (e.starts[row], e.starts[row + 1]))
        fetch(e.numbers, (e.starts[row], e.starts[row + 1]))
    passes.fill(s.floats, t[m.BIAS], t[m.WIDTH], t[m.OUT], t[m.WIDTH], len(rows))
    for i in range(len(rows)):
        where = (t[m.OUT] + i * t[m.WIDTH], t[m.WEIGHT], t[m.WIDTH], e.starts[rows[i]], e.starts[rows[i] + 1])
        add_rows(s.floats, s.floats, where, e.places, e.numbers, e.scale)


@inner
def _sparse_step(e: Examples, s: Space, how: Settings, rows: NDArray[np.int64]) -> None:
    """The step, or the gradients, of a sparse first layer."""
    t, h, target = s.table[0], s.integers, s.integers[m.VELOCITY]
    width, d, weight = t[m.WIDTH], t[m.OUT] + h[m.GRADIENTS], t[m.WEIGHT] + target
    change = np.float32(how.change * e.scale)
    if width <= _NARROW:
        for i in range(len(rows)):
            where = (weight, d + i * width, width, e.starts[rows[i]], e.starts[rows[i] + 1])
            add_to_rows(s.floats, s.floats, where, e.places, e.numbers, change)
    else:
        users, amounts = s.shorts[h[m.USERS] :], s.floats[h[m.AMOUNTS] :]
        firsts, ends, order = h[h[m.FIRSTS] :], h[h[m.ENDS] :], h[h[m.ORDER] :]
        for n in range(_transpose(e, s, rows)):
            k = order[n]
            where = (weight + k * width, d, width, firsts[k], ends[k])
            add_rows(s.floats, s.floats, where, users, amounts, change)
    if t[m.BIASED]:
        passes.add_bias(s.floats, target + t[m.BIAS], width, how.change, d, width, len(rows))


@inner
def _transpose(e: Examples, s: Space, rows: NDArray[np.int64]) -> int:
    """Transpose a batch: pairs firsts[k] to ends[k] are the examples that have feature k, and their numbers.

    Returns the number of features in use. `order` sorts them by their number of examples, so that the processor
    predicts where their loops end, which is a quarter of the time.
    """
    features, h = s.table[0, m.INPUTS], s.integers
    firsts, ends, order, many = h[h[m.FIRSTS] :], h[h[m.ENDS] :], h[h[m.ORDER] :], h[h[m.MANY] :]
    users, amounts = s.shorts[h[m.USERS] :], s.floats[h[m.AMOUNTS] :]
    ends[:features] = 0
    for row in rows:
        for k in range(e.starts[row], e.starts[row + 1]):
            ends[e.places[k]] += 1
    many[: len(rows) + 2] = 0
    for k in range(features):
        many[ends[k] + 1] += 1
    many[1] = 0  # features that no example has
    for n in range(1, len(rows) + 1):
        many[n + 1] += many[n]
    pair = np.int64(0)
    for k in range(features):
        n = ends[k]
        if n:
            order[many[n]] = k
            many[n] += 1
        firsts[k], ends[k] = pair, pair
        pair += n
    for i in range(len(rows)):
        for k in range(e.starts[rows[i]], e.starts[rows[i] + 1]):
            place = e.places[k]
            users[ends[place]], amounts[ends[place]] = i, e.numbers[k]
            ends[place] += 1
    several: int = many[len(rows)]
    return several


@compiled
def write(s: Space, start: Numbers, out: Numbers) -> float:
    """Write the update, laid out as `start`; return its squared length, see `incrowd.learning.contributions`."""
    total = 0.0
    for begin in range(0, len(start), RUN):
        run = _ZERO
        for k in range(begin, min(begin + RUN, len(start))):
            change = s.floats[k] - start[k]
            out[k] = change
            run += change * change
        total += np.float64(run)
    return total


@compiled
def add_steps(rows: Numbers, divisors: Numbers, total: Numbers) -> None:
    """Add rows, divided and rounded towards zero to whole numbers; an infinite divisor leaves a row out."""
    for j in range(len(rows)):
        row, divisor = rows[j], divisors[j]
        if divisor < np.inf:
            for k in range(len(row)):
                total[k] += np.trunc(row[k] / divisor)
