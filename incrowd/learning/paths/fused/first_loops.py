"""Compiled loops for a client's own first layer: its features, weights and changes, in as few passes as can be."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers
from incrowd.learning.deltas import RUN
from incrowd.learning.machine_code import kept
from incrowd.learning.paths.fused.loops import Numbers32, add_rows

_compiled = kept(__file__)

_ZERO = np.float32(0)


class RarePairs(NamedTuple):
    """As `Rare` has them."""

    begins: Integers
    places: Integers
    values: Numbers32
    products: Numbers32


@_compiled
def add_rare(pairs: RarePairs, rows: Integers, weight: Numbers32, unit: Numbers32, out: Numbers32) -> None:
    """Add to the outputs of examples what comes of their rare features, given by which `rows` of the table.

    `weight` [rare, outputs] is without what comes of the usual numbers, which is those times `unit`.
    """
    for b in range(len(rows)):
        own, product = out[b], pairs.products[rows[b]]
        if product != 0:
            for c in range(len(unit)):
                own[c] += product * unit[c]
        begin, end = pairs.begins[rows[b]], pairs.begins[rows[b] + 1]
        for k in range(begin, end - 1, 2):  # two at a time, so that the outputs are read and written half as often
            by, value = weight[pairs.places[k]], pairs.values[k]
            by_next, next_ = weight[pairs.places[k + 1]], pairs.values[k + 1]
            for c in range(own.shape[0]):
                own[c] += value * by[c] + next_ * by_next[c]
        if (end - begin) % 2:
            by, value = weight[pairs.places[end - 1]], pairs.values[end - 1]
            for c in range(own.shape[0]):
                own[c] += value * by[c]


@_compiled
def learn_rare(
    pairs: RarePairs,
    rows: Integers,
    d: Numbers32,
    change: float,
    square: float,
    weight: Numbers32,
    unit: Numbers32,
    bias: Numbers32,
) -> None:
    """A step of `weight` and `unit`, and of the bias that all that is usual is one with; see `add_rare`."""
    step, constant = np.float32(change), np.float32(square)
    if len(bias):
        add_rows(d, step * (constant + pairs.products[rows]), bias)
        add_rows(d, np.full(len(rows), step), unit)
    for b in range(len(rows)):
        own = d[b]
        for k in range(pairs.begins[rows[b]], pairs.begins[rows[b] + 1]):
            of, one = weight[pairs.places[k]], step * pairs.values[k]
            for c in range(own.shape[0]):
                of[c] += one * own[c]


@_compiled
def multiply_rare(pairs: RarePairs, rows: Integers, features: int, out: Numbers32) -> None:
    """Add to the products of examples with those before them, and with themselves, what comes of their rare features.

    An example goes through those before it that have a feature in common: `latest` pair of each feature, and the one
    before each.
    """
    latest = np.full(features, -1)
    most = 0
    for b in range(len(rows)):
        most += pairs.begins[rows[b] + 1] - pairs.begins[rows[b]]
    before, owners, values = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.float32)
    taken, products = 0, pairs.products[rows]
    for b in range(len(rows)):
        own, product = out[b], products[b]
        for other in range(b + 1):
            own[other] += product + products[other]
        for k in range(pairs.begins[rows[b]], pairs.begins[rows[b] + 1]):
            place, value = pairs.places[k], pairs.values[k]
            before[taken], owners[taken], values[taken] = latest[place], b, value
            latest[place] = taken
            taken += 1
            at = latest[place]
            while at >= 0:
                own[owners[at]] += value * values[at]
                at = before[at]


@_compiled
def gather(table: NDArray[np.generic], rows: Integers, out: Numbers32) -> None:
    """These rows of a table, as numbers."""
    for b in range(len(rows)):
        of, to = table[rows[b]], out[b]
        for c in range(len(to)):
            to[c] = np.float32(of[c])


@_compiled
def begin(whole: Numbers32, features: Integers, usual: Numbers32, own: Numbers32, bias: Numbers32) -> None:
    """Copy the rows of a weight that are of these features, and add to a bias what comes of their usual numbers."""
    for r in range(len(features)):
        of, to, one = whole[features[r]], own[r], usual[features[r]]
        for c in range(len(to)):
            to[c] = of[c]
        if one != 0:
            for c in range(len(bias)):
                bias[c] += one * of[c]


@_compiled
def learn_usual(usual: Numbers32, features: Integers, unit: Numbers32, weight: Numbers32) -> None:
    """Add to the rows of a weight, which are of these features, what they learnt of their usual numbers."""
    for r in range(len(features)):
        one, own = usual[features[r]], weight[r]
        if one != 0:
            for c in range(len(unit)):
                own[c] += one * unit[c]


@_compiled
def changed_squares(values: Numbers32, start: Numbers32, columns: Integers, sums: NDArray[np.float64]) -> None:
    """The squares of values [c, D, outputs] minus `start` in these columns [c, D], in float32 within `RUN` numbers."""
    for j in range(values.shape[0]):
        total = 0.0
        for r in range(values.shape[1]):
            own, before = values[j, r], start[columns[j, r]]
            for begin in range(0, len(own), RUN):
                run = _ZERO
                for c in range(begin, min(begin + RUN, len(own))):
                    change = own[c] - before[c]
                    run += change * change
                total += np.float64(run)
        sums[j] = total


@_compiled
def add_changed(
    values: Numbers32, start: Numbers32, columns: Integers, to: Integers, factors: NDArray[np.float64], total: Numbers32
) -> None:
    """Add such changes times a client's factor, rounded towards zero, to the rows of a total that `to` says."""
    for j in range(values.shape[0]):
        factor = factors[j]
        if factor != 0:
            for r in range(values.shape[1]):
                own, before, sum_ = values[j, r], start[columns[j, r]], total[to[j, r]]
                for c in range(len(own)):
                    sum_[c] += np.float32(np.trunc(np.float64(own[c] - before[c]) * factor))


def ready() -> None:
    """As `loops.ready`."""
    rows, none, places = np.zeros((0, 1), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)
    pairs = RarePairs(places, places, none, none)
    add_rare(pairs, places, rows, none, rows)
    learn_rare(pairs, places, rows, 0.0, 0.0, rows, none, none)
    multiply_rare(pairs, places, 0, rows)
    for table in (rows, rows.astype(np.uint8)):
        gather(table, places, rows)
    begin(rows, places, none, rows, none)
    learn_usual(none, places, none, rows)
    several, columns, doubles = np.zeros((0, 0, 1), np.float32), np.zeros((0, 0), np.int64), np.zeros(0)
    changed_squares(several, rows, columns, doubles)
    add_changed(several, rows, columns, columns, doubles, rows)
