"""Compiled loops for what is between two Linear layers, and its ways back: few passes over rows that stay in the cache.

Rows are [examples, outputs]; each loop writes every number of what it gives, so that nothing of the last batch is left.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers
from incrowd.learning.machine_code import inserted, kept

Numbers32 = NDArray[np.float32]
Bow = Callable[[Numbers32, Numbers32, Numbers32], None]
"""Writes a function of one number, and its derivative."""

_compiled = kept(__file__)
_inserted = inserted

_LEAST, _MOST = np.float32(-87), np.float32(88)
_PER_DOUBLING = np.float32(1 / math.log(2))
_DOUBLING, _DOUBLING_REST = np.float32(355 / 512), np.float32(math.log(2) - 355 / 512)
_ROOT, _DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
_TANH, _CUBE = np.float32(2 * math.sqrt(2 / math.pi)), np.float32(0.044715)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)

# exp(t^2) erfc(t) for t >= 0 as a polynomial in u = 1 / (1 + 0.3 t) without a constant, at most 4e-8 of it off: found
# by least squares, with weights that grow where it is off most (Lawson 1961).
_SHARE = np.float32(0.3)
_TAIL = tuple(
    np.float32(one)
    for one in (
        0.1692047562830089, 0.17042366534432568, 0.1504692711638788, 0.20638350557408386, -0.07404510657009693,
        0.5170427856132097, -0.4846863351630843, 0.4718234883989386, -0.12661599223770606,
    )
)  # fmt: skip
_A, _B, _C, _D, _E, _F, _G, _H, _I = _TAIL


@_inserted
def _exp(x: np.float32) -> np.float32:
    """At most 2^-21 of it off: 2^k e^r, r at most log(2) / 2 from 0; the library's takes one number at a time.

    Beyond what float32 holds it is 0 or infinite; of what is no number it is none.
    """
    held = min(max(x, _LEAST), _MOST)
    held = held if x == x else _ZERO
    k = np.floor(held * _PER_DOUBLING + _HALF)
    r = held - k * _DOUBLING - k * _DOUBLING_REST  # k times the first is exact
    p = _ONE + r * np.float32(1 / 7)
    p = _ONE + p * r * np.float32(1 / 6)
    p = _ONE + p * r * np.float32(1 / 5)
    p = _ONE + p * r * np.float32(1 / 4)
    p = _ONE + p * r * np.float32(1 / 3)
    p = _ONE + p * r * _HALF
    p = _ONE + p * r
    value = p * np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)
    value = _ZERO if x < _LEAST else value
    value = np.float32(np.inf) if x > _MOST else value
    result: np.float32 = value if x == x else x
    return result


@_compiled
def gelu(x: Numbers32, out: Numbers32, slope: Numbers32) -> None:
    """Of x: x times the share of a normal distribution that is below x; and its derivative."""
    for b in range(x.shape[0]):
        of, to, steep = x[b], out[b], slope[b]
        for c in range(x.shape[1]):
            one = of[c]
            e = _exp(-_HALF * one * one)
            u = _ONE / (_ONE + _SHARE * _ROOT * abs(one))
            tail = _A + u * (_B + u * (_C + u * (_D + u * (_E + u * (_F + u * (_G + u * (_H + u * _I)))))))
            tail = _HALF * e * u * tail
            below = tail if one < 0 else _ONE - tail
            to[c] = one * below
            steep[c] = below + one * e * _DENSITY


@_compiled
def gelu_tanh(x: Numbers32, out: Numbers32, slope: Numbers32) -> None:
    """The same with tanh(sqrt(2 / pi) (x + 0.044715 x^3)) for the share, and its derivative."""
    for b in range(x.shape[0]):
        of, to, steep = x[b], out[b], slope[b]
        for c in range(x.shape[1]):
            one = of[c]
            square = one * one
            share = _ONE / (_ONE + _exp(-_TANH * one * (_ONE + _CUBE * square)))
            to[c] = one * share
            steep[c] = share + one * share * (_ONE - share) * _TANH * (_ONE + np.float32(3) * _CUBE * square)


@_compiled
def silu(x: Numbers32, out: Numbers32, slope: Numbers32) -> None:
    """Of x: x times its logistic function, and its derivative."""
    for b in range(x.shape[0]):
        of, to, steep = x[b], out[b], slope[b]
        for c in range(x.shape[1]):
            one = of[c]
            share = _ONE / (_ONE + _exp(-one))
            to[c] = one * share
            steep[c] = share + one * share * (_ONE - share)


@_compiled
def normalise(
    x: Numbers32, gain: Numbers32, shift: Numbers32, eps: float, numbers: Numbers32, scales: Numbers32, out: Numbers32
) -> None:
    """Each row moved to mean 0 and variance 1, `numbers`, and these stretched and shifted; `scales` are kept, too."""
    width = x.shape[1]
    for b in range(x.shape[0]):
        of, number, to = x[b], numbers[b], out[b]
        mean, square = 0.0, 0.0
        for c in range(width):
            mean += of[c]
        mean /= width
        for c in range(width):
            off = of[c] - mean
            square += off * off
        scale = np.float32(1 / np.sqrt(square / width + eps))
        scales[b] = scale
        for c in range(width):
            number[c] = np.float32(of[c] - mean) * scale
            to[c] = number[c] * gain[c] + shift[c]


@_compiled
def denormalise(
    d: Numbers32, gain: Numbers32, numbers: Numbers32, scales: Numbers32, of_gain: Numbers32, of_shift: Numbers32
) -> None:
    """The way back of `normalise`, in place; and the gradients of `gain` and `shift`."""
    width = d.shape[1]
    of_gain[:] = 0
    of_shift[:] = 0
    for b in range(d.shape[0]):
        own, number = d[b], numbers[b]
        total, product = 0.0, 0.0
        for c in range(width):
            of_gain[c] += own[c] * number[c]
            of_shift[c] += own[c]
            total += own[c] * gain[c]
            product += own[c] * gain[c] * number[c]
        mean, slope, scale = np.float32(total / width), np.float32(product / width), scales[b]
        for c in range(width):
            own[c] = scale * (own[c] * gain[c] - mean - slope * number[c])


@_compiled
def rectified(value: Numbers32, d: Numbers32) -> None:
    """The way back of max(x, 0), in place, given its value."""
    for b in range(d.shape[0]):
        own, by = d[b], value[b]
        for c in range(d.shape[1]):
            own[c] = _ZERO if by[c] <= 0 else own[c]


SOFTMAX, SIGMOID, IDENTITY, EXP = range(4)
"""What outputs stand for."""


@_inserted
def _means(row: Numbers32, kind: int) -> None:
    """The means of the labels that outputs stand for, in place."""
    if kind == SOFTMAX:
        largest = row[0]
        for o in range(1, row.shape[0]):
            largest = row[o] if row[o] > largest else largest
        total = _ZERO
        for o in range(row.shape[0]):
            row[o] = _exp(row[o] - largest)
            total += row[o]
        for o in range(row.shape[0]):
            row[o] /= total
    elif kind == SIGMOID:
        for o in range(row.shape[0]):
            row[o] = _ONE / (_ONE + _exp(-row[o]))
    elif kind == EXP:
        for o in range(row.shape[0]):
            row[o] = _exp(row[o])


class Finish(NamedTuple):
    """What a last layer works with: weight [outputs, inputs], bias or nothing, what is added to its outputs, what they
    stand for, times what a gradient is a step, and room for the gradients of the outputs.
    """

    weight: Numbers32
    bias: Numbers32
    offset: Numbers32
    kind: int
    change: float
    gradients: Numbers32


@_inserted
def _with_row(rows: Numbers32, row: Numbers32, out: Numbers32) -> None:
    """The product of each of several rows with one; four at a time, so that this one is read a quarter as often."""
    several = len(rows) - len(rows) % 4
    for r in range(0, several, 4):
        a, b, c, d = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        of_a, of_b, of_c, of_d = _ZERO, _ZERO, _ZERO, _ZERO
        for k in range(len(row)):
            of_a += a[k] * row[k]
            of_b += b[k] * row[k]
            of_c += c[k] * row[k]
            of_d += d[k] * row[k]
        out[r], out[r + 1], out[r + 2], out[r + 3] = of_a, of_b, of_c, of_d
    for r in range(several, len(rows)):
        one, total = rows[r], _ZERO
        for k in range(len(row)):
            total += one[k] * row[k]
        out[r] = total


@_inserted
def _products(weight: Numbers32, x: Numbers32, rows: Integers, out: Numbers32) -> None:
    """Of each of these rows of x with each of weight: four with two at a time, so that both are read less often."""
    fours, pairs = len(rows) - len(rows) % 4, len(weight) - len(weight) % 2
    for r in range(0, fours, 4):
        a, b, c, d = x[rows[r]], x[rows[r + 1]], x[rows[r + 2]], x[rows[r + 3]]
        for o in range(0, pairs, 2):
            one, two = weight[o], weight[o + 1]
            a_one, b_one, c_one, d_one = _ZERO, _ZERO, _ZERO, _ZERO
            a_two, b_two, c_two, d_two = _ZERO, _ZERO, _ZERO, _ZERO
            for k in range(len(one)):
                a_one += a[k] * one[k]
                b_one += b[k] * one[k]
                c_one += c[k] * one[k]
                d_one += d[k] * one[k]
                a_two += a[k] * two[k]
                b_two += b[k] * two[k]
                c_two += c[k] * two[k]
                d_two += d[k] * two[k]
            out[r, o], out[r + 1, o], out[r + 2, o], out[r + 3, o] = a_one, b_one, c_one, d_one
            out[r, o + 1], out[r + 1, o + 1], out[r + 2, o + 1], out[r + 3, o + 1] = a_two, b_two, c_two, d_two
        for o in range(pairs, len(weight)):
            for of in range(r, r + 4):
                _with_row(weight[o : o + 1], x[rows[of]], out[of, o : o + 1])
    for r in range(fours, len(rows)):
        _with_row(weight, x[rows[r]], out[r])


@_inserted
def add_rows(rows: Numbers32, factors: Numbers32, out: Numbers32) -> None:
    """Add rows times factors to one; four at a time, so that this one is read and written a quarter as often."""
    several = len(rows) - len(rows) % 4
    for r in range(0, several, 4):
        a, b, c, d = rows[r], rows[r + 1], rows[r + 2], rows[r + 3]
        of_a, of_b, of_c, of_d = factors[r], factors[r + 1], factors[r + 2], factors[r + 3]
        for k in range(len(out)):
            out[k] += of_a * a[k] + of_b * b[k] + of_c * c[k] + of_d * d[k]
    for r in range(several, len(rows)):
        one, by = rows[r], factors[r]
        for k in range(len(out)):
            out[k] += by * one[k]


@_inserted
def _descend(last: Finish, x: Numbers32, rows: Integers) -> None:
    """The step, given the gradients of the outputs; eight examples at a time, so that a weight is read and written an
    eighth as often.
    """
    by, eights = np.float32(last.change), len(rows) - len(rows) % 8
    for r in range(0, eights, 8):
        a, b, c, d = x[rows[r]], x[rows[r + 1]], x[rows[r + 2]], x[rows[r + 3]]
        e, f, g, h = x[rows[r + 4]], x[rows[r + 5]], x[rows[r + 6]], x[rows[r + 7]]
        for o in range(len(last.weight)):
            of = last.gradients[r : r + 8, o]
            of_a, of_b, of_c, of_d = by * of[0], by * of[1], by * of[2], by * of[3]
            of_e, of_f, of_g, of_h = by * of[4], by * of[5], by * of[6], by * of[7]
            own = last.weight[o]
            for k in range(len(own)):
                first = of_a * a[k] + of_b * b[k] + of_c * c[k] + of_d * d[k]
                own[k] += first + of_e * e[k] + of_f * f[k] + of_g * g[k] + of_h * h[k]
    for r in range(eights, len(rows)):
        row = x[rows[r]]
        for o in range(len(last.weight)):
            own, of_row = last.weight[o], by * last.gradients[r, o]
            for k in range(len(own)):
                own[k] += of_row * row[k]
    for r in range(len(rows)):
        for o in range(len(last.bias)):
            last.bias[o] += by * last.gradients[r, o]


@_compiled
def finish(last: Finish, x: Numbers32, rows: Integers, targets: Numbers32, shares: Numbers32, below: Numbers32) -> None:
    """All of the last layer: its outputs for these rows of x, their gradients times the `shares` of examples, those of
    the rows if there is room for them `below`, and a step.

    The step comes last, so that the gradients of x are those by the weights that the outputs are by.
    """
    outputs = last.weight.shape[0]
    _products(last.weight, x, rows, last.gradients)
    for b in range(len(rows)):
        gradient = last.gradients[b]
        for o in range(outputs):
            gradient[o] += last.offset[o] + (last.bias[o] if len(last.bias) else _ZERO)
        _means(gradient, last.kind)
        for o in range(outputs):
            gradient[o] = (gradient[o] - targets[b, o]) * shares[b]
        if len(below):
            below[b] = 0
            add_rows(last.weight, gradient, below[b])
    _descend(last, x, rows)


@_compiled
def finish_block(
    last: Finish,
    values: Numbers32,
    products: Numbers32,
    change: float,
    targets: Numbers32,
    shares: Numbers32,
    gradients: Numbers32,
) -> None:
    """Several batches, [steps, rows] of `shares`, through max(x, 0) and the last layer, whose steps are taken.

    `values` [rows of all, outputs] are those of a layer before the first batch, `products` those of its examples with
    each other. What it has learnt since is added from the gradients of the batches before, times `change`.
    """
    steps, width = shares.shape
    step, rows = np.float32(change), np.arange(width)
    for t in range(steps):
        begin, end = t * width, (t + 1) * width
        for b in range(begin, end):
            own = values[b]
            add_rows(gradients[:begin], step * products[b, :begin], own)
            for c in range(own.shape[0]):
                own[c] = _ZERO if own[c] <= 0 else own[c]
        finish(last, values[begin:end], rows, targets[t], shares[t], gradients[begin:end])
        for b in range(begin, end):
            back, by = gradients[b], values[b]
            for c in range(by.shape[0]):
                back[c] = _ZERO if by[c] <= 0 else back[c]


def ready() -> None:
    """Have the machine code of all loops, so that processes that are forked from this one find it."""
    rows, row, none = np.zeros((0, 1), np.float32), np.zeros(1, np.float32), np.zeros(0, np.float32)
    for bow in (gelu, gelu_tanh, silu):
        bow(rows, rows, rows)
    normalise(rows, row, row, 1.0, rows, none, rows)
    denormalise(rows, row, rows, none, row, row)
    rectified(rows, rows)
    places = np.zeros(0, np.int64)
    last = Finish(rows, none, none, SOFTMAX, 0.0, rows)
    finish(last, rows, places, rows, none, rows)
    finish_block(last, rows, rows, 0.0, np.zeros((0, 1, 1), np.float32), rows, rows)
