"""Forward and backward passes of a stack's layers over some examples, and the loss."""

import math

import numpy as np

from incrowd.learning.paths.fast import pictures
from incrowd.learning.paths.fast.blas import sgemm
from incrowd.learning.paths.fast.layers import (
    CONVOLUTION,
    GELU,
    GELU_TANH,
    LINEAR,
    LOGIT,
    NORM,
    NUMBER,
    POOL,
    RELU,
    SIGMOID,
    SILU,
    SOFTMAX,
    TANH,
)
from incrowd.learning.paths.fast.memory import (
    BIAS,
    BIASED,
    GAINED,
    GRADIENTS,
    IN,
    IN_ROW,
    INPUTS,
    KEPT,
    KIND,
    LETTERS,
    OUT,
    OUT_ROW,
    OUTPUTS,
    PLACES,
    REAL,
    SUMS,
    WEIGHT,
    WIDTH,
    Numbers,
    Space,
)
from incrowd.learning.paths.fast.rows import exp, inner

_ONE, _HALF, _ZERO = np.float32(1), np.float32(0.5), np.float32(0)
_ROOT, _DENSITY = np.float32(math.sqrt(0.5)), np.float32(1 / math.sqrt(2 * math.pi))
_TANH, _CUBE = np.float32(2 * math.sqrt(2 / math.pi)), np.float32(0.044715)

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


@inner
def product(
    s: Space, turned: tuple[int, int], sizes: tuple[int, int, int], alpha: np.float32, a: tuple[int, int],
    b: tuple[int, int], beta: np.float32, c: tuple[int, int],
) -> None:  # fmt: skip
    """Write alpha * a [m, k] b [k, n] + beta * c into c; of `turned` ones the transpose is given. Matrices are places
    in `floats` and distances of rows.
    """
    words, numbers, real = s.shorts, s.floats, s.integers[REAL]
    words[0], words[1], words[2] = sizes[1], sizes[0], sizes[2]
    words[3], words[4], words[5] = b[1], a[1], c[1]
    numbers[real], numbers[real + 1] = alpha, beta
    w, f = words.ctypes.data, numbers.ctypes.data
    letters, r = w + 4 * LETTERS, f + 4 * real
    sgemm(
        letters + 4 * turned[1], letters + 4 * turned[0], w, w + 4, w + 8, r, f + 4 * b[0], w + 12, f + 4 * a[0],
        w + 16, r + 4, f + 4 * c[0], w + 20,
    )  # fmt: skip


@inner
def fill(numbers: Numbers, bias: int, width: int, begin: int, row: int, count: int) -> None:
    """Begin rows with the bias."""
    for i in range(count):
        for h in range(width):
            numbers[begin + i * row + h] = numbers[bias + h]


@inner
def add_bias(numbers: Numbers, bias: int, width: int, change: np.float32, begin: int, row: int, count: int) -> None:
    """Add rows, times a factor, to a bias."""
    for i in range(count):
        for h in range(width):
            numbers[bias + h] += change * numbers[begin + i * row + h]


@inner
def forward(s: Space, count: int, begin: int) -> None:
    """The values of so many examples, of the layers from `begin` on."""
    for number in range(begin, len(s.table)):
        t = s.table[number]
        if t[KIND] <= CONVOLUTION:
            _multiply(s, number, count)
        elif t[KIND] == NORM:
            pictures.normalize(s, number, count)
        elif t[KIND] == POOL:
            pictures.pool(s, number, count)
        else:
            size = count * t[OUT_ROW]
            _activate(t[KIND], s.floats[t[OUT] : t[OUT] + size], s.floats[t[KEPT] : t[KEPT] + size])


@inner
def _multiply(s: Space, number: int, count: int) -> None:
    """The outputs of a layer with a weight."""
    t = s.table[number]
    rows, x, row, out, width = count, t[IN], t[IN_ROW], t[OUT_ROW], t[WIDTH]
    if t[KIND] == CONVOLUTION:
        pictures.unfold(s, number, count)
        rows, x, row, out, width = count * t[PLACES], t[KEPT], t[INPUTS], t[OUTPUTS], t[OUTPUTS]
    fill(s.floats, t[BIAS], width, t[OUT], out, rows)
    product(s, (0, 0), (rows, t[OUTPUTS], t[INPUTS]), _ONE, (x, row), (t[WEIGHT], t[WIDTH]), _ONE, (t[OUT], out))


@inner
def backward(s: Space, count: int, end: int, target: int, change: np.float32) -> None:
    """The gradients of the values down to layer `end`; those of the parameters, times `change`, are added to numbers
    that lie from `target` on as the weights do.
    """
    shift = s.integers[GRADIENTS]
    for number in range(len(s.table) - 1, end - 1, -1):
        t = s.table[number]
        if t[KIND] == LINEAR:
            _linear_back(s, number, count, target, change)
        elif t[KIND] == CONVOLUTION:
            _convolution_back(s, number, count, target, change)
        elif t[KIND] == NORM:
            pictures.normalize_back(s, number, count)
            _learn_norm(s, number, target, change)
        elif t[KIND] == POOL:
            pictures.pool_back(s, number, count)
        else:
            size, begin = count * t[OUT_ROW], t[OUT] + shift
            values, kept = s.floats[t[OUT] : t[OUT] + size], s.floats[t[KEPT] : t[KEPT] + size]
            _derive(t[KIND], values, kept, s.floats[begin : begin + size])


@inner
def _linear_back(s: Space, number: int, count: int, target: int, change: np.float32) -> None:
    t, shift = s.table[number], s.integers[GRADIENTS]
    d, weight, below = (t[OUT] + shift, t[OUT_ROW]), (t[WEIGHT], t[WIDTH]), (t[IN] + shift, t[IN_ROW])
    product(s, (0, 1), (count, t[INPUTS], t[OUTPUTS]), _ONE, d, weight, _ZERO, below)
    into, sizes = (target + t[WEIGHT], t[WIDTH]), (t[INPUTS], t[OUTPUTS], count)
    product(s, (1, 0), sizes, change, (t[IN], t[IN_ROW]), d, _ONE, into)
    if t[BIASED]:
        add_bias(s.floats, target + t[BIAS], t[WIDTH], change, d[0], d[1], count)


@inner
def _convolution_back(s: Space, number: int, count: int, target: int, change: np.float32) -> None:
    t, shift = s.table[number], s.integers[GRADIENTS]
    rows, outputs = count * t[PLACES], t[OUTPUTS]
    d, windows, into = (t[OUT] + shift, outputs), (t[KEPT], t[INPUTS]), (target + t[WEIGHT], t[WIDTH])
    product(s, (1, 0), (t[INPUTS], outputs, rows), change, windows, d, _ONE, into)
    if t[BIASED]:
        add_bias(s.floats, target + t[BIAS], outputs, change, d[0], outputs, rows)
    if number:  # the windows have been used: their memory takes their gradients
        product(s, (0, 1), (rows, t[INPUTS], outputs), _ONE, d, (t[WEIGHT], t[WIDTH]), _ZERO, windows)
        pictures.fold(s, number, count)


@inner
def _learn_norm(s: Space, number: int, target: int, change: np.float32) -> None:
    t, sums = s.table[number], s.integers[SUMS]
    for c in range(t[OUTPUTS]):
        if t[GAINED]:
            s.floats[target + t[WEIGHT] + c] += change * np.float32(s.doubles[sums + c])
        if t[BIASED]:
            s.floats[target + t[BIAS] + c] += change * np.float32(s.doubles[sums + t[OUTPUTS] + c])


@inner
def _activate(kind: int, values: Numbers, kept: Numbers) -> None:
    """An activation, in place; `kept` gets its derivative where that is not computed from its output."""
    if kind == RELU:
        for k in range(len(values)):
            x = values[k]
            values[k] = _ZERO if x < 0 else x
    elif kind == TANH:
        for k in range(len(values)):
            values[k] = np.float32(2) / (_ONE + exp(np.float32(-2) * values[k])) - _ONE
    elif kind == SIGMOID:
        for k in range(len(values)):
            values[k] = _ONE / (_ONE + exp(-values[k]))
    elif kind == GELU:
        _gelu(values, kept)
    elif kind == GELU_TANH:
        for k in range(len(values)):
            x = values[k]
            share = _ONE / (_ONE + exp(-_TANH * x * (_ONE + _CUBE * x * x)))
            values[k] = x * share
            kept[k] = share + x * share * (_ONE - share) * _TANH * (_ONE + np.float32(3) * _CUBE * x * x)
    elif kind == SILU:
        for k in range(len(values)):
            x = values[k]
            share = _ONE / (_ONE + exp(-x))
            values[k] = x * share
            kept[k] = share + x * share * (_ONE - share)


@inner
def _gelu(values: Numbers, kept: Numbers) -> None:
    for k in range(len(values)):
        x = values[k]
        e = exp(-_HALF * x * x)
        u = _ONE / (_ONE + _SHARE * _ROOT * abs(x))
        tail = _A + u * (_B + u * (_C + u * (_D + u * (_E + u * (_F + u * (_G + u * (_H + u * _I)))))))
        tail = _HALF * e * u * tail
        below = tail if x < 0 else _ONE - tail
        values[k] = x * below
        kept[k] = below + x * e * _DENSITY


@inner
def _derive(kind: int, values: Numbers, kept: Numbers, gradients: Numbers) -> None:
    """Gradients of what came out of an activation to those of what went in, in place."""
    if kind == RELU:
        for k in range(len(values)):
            d = gradients[k]
            gradients[k] = _ZERO if values[k] <= 0 else d
    elif kind == TANH:
        for k in range(len(values)):
            gradients[k] *= _ONE - values[k] * values[k]
    elif kind == SIGMOID:
        for k in range(len(values)):
            gradients[k] *= values[k] * (_ONE - values[k])
    else:
        for k in range(len(values)):
            gradients[k] *= kept[k]


@inner
def compare(s: Space, loss: int, labels: Numbers, offset: Numbers, over: np.float32) -> None:
    """The gradients of the last outputs, times `over`: the mean of the label that they stand for, minus the label.

    `offset` is added to the outputs before.
    """
    t, shift = s.table[len(s.table) - 1], s.integers[GRADIENTS]
    outputs = t[OUTPUTS]
    for i in range(len(labels)):
        begin = t[OUT] + i * t[OUT_ROW]
        z, d = s.floats[begin : begin + outputs], s.floats[begin + shift : begin + shift + outputs]
        for h in range(outputs):
            z[h] += offset[h]
        if loss == SOFTMAX:
            largest, total = z[0], _ZERO
            for h in range(outputs):
                largest = max(largest, z[h])
            for h in range(outputs):
                d[h] = exp(z[h] - largest)
            for h in range(outputs):
                total += d[h]
            total = over / total
            for h in range(outputs):
                d[h] *= total
            d[int(labels[i])] -= over
        elif loss == LOGIT:
            d[0] = over * (_ONE / (_ONE + exp(-z[0])) - labels[i])
        elif loss == NUMBER:
            d[0] = over * (z[0] - labels[i])
        else:
            d[0] = over * (exp(z[0]) - labels[i])
