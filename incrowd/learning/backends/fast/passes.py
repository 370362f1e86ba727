"""Forward and backward passes of a stack's layers over some examples, and the loss."""

import numpy as np

import incrowd.learning.backends.fast.memory as m
from incrowd.learning.backends.fast.memory import Numbers, Space
from incrowd.learning.backends.fast.rows import compiled, exp, inner, sgemm

_ONE, _ZERO = np.float32(1), np.float32(0)


@inner
def product(
    s: Space, turned: tuple[int, int], sizes: tuple[int, int, int], alpha: np.float32, a: tuple[int, int],
    b: tuple[int, int], beta: np.float32, c: tuple[int, int],
) -> None:  # fmt: skip
    """C = alpha * a [m, k] b [k, n] + beta * c, transposing what is `turned`; a matrix is (offset, row length)."""
    words, numbers, real = s.shorts, s.floats, s.integers[m.REAL]
    words[0], words[1], words[2] = sizes[1], sizes[0], sizes[2]
    words[3], words[4], words[5] = b[1], a[1], c[1]
    numbers[real], numbers[real + 1] = alpha, beta
    w, f = words.ctypes.data, numbers.ctypes.data
    letters, r = w + 4 * m.LETTERS, f + 4 * real
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
        if t[m.KIND] <= m.CONVOLUTION:
            _multiply(s, number, count)
        elif t[m.KIND] == m.POOL:
            pool(s, number, count)
        else:
            _activate(t[m.KIND], s.floats[t[m.OUT] : t[m.OUT] + count * t[m.OUT_ROW]])


@inner
def _multiply(s: Space, number: int, count: int) -> None:
    """The outputs of a layer with a weight."""
    t = s.table[number]
    rows, x, row, out, width = count, t[m.IN], t[m.IN_ROW], t[m.OUT_ROW], t[m.WIDTH]
    if t[m.KIND] == m.CONVOLUTION:
        unfold(s, number, count)
        rows, x, row, out, width = count * t[m.PLACES], t[m.KEPT], t[m.INPUTS], t[m.OUTPUTS], t[m.OUTPUTS]
    fill(s.floats, t[m.BIAS], width, t[m.OUT], out, rows)
    product(
        s, (0, 0), (rows, t[m.OUTPUTS], t[m.INPUTS]), _ONE, (x, row), (t[m.WEIGHT], t[m.WIDTH]), _ONE, (t[m.OUT], out)
    )


@inner
def backward(s: Space, count: int, end: int, target: int, change: np.float32) -> None:
    """Compute values' gradients down to layer `end`; add parameters' gradients, times `change`, at offset `target`."""
    shift = s.integers[m.GRADIENTS]
    for number in range(len(s.table) - 1, end - 1, -1):
        t = s.table[number]
        if t[m.KIND] == m.LINEAR:
            _linear_back(s, number, count, target, change)
        elif t[m.KIND] == m.CONVOLUTION:
            _convolution_back(s, number, count, target, change)
        elif t[m.KIND] == m.POOL:
            pool_back(s, number, count)
        else:
            size, begin = count * t[m.OUT_ROW], t[m.OUT] + shift
            _derive(t[m.KIND], s.floats[t[m.OUT] : t[m.OUT] + size], s.floats[begin : begin + size])


@inner
def _linear_back(s: Space, number: int, count: int, target: int, change: np.float32) -> None:
    t, shift = s.table[number], s.integers[m.GRADIENTS]
    d, weight, below = (t[m.OUT] + shift, t[m.OUT_ROW]), (t[m.WEIGHT], t[m.WIDTH]), (t[m.IN] + shift, t[m.IN_ROW])
    if number:
        product(s, (0, 1), (count, t[m.INPUTS], t[m.OUTPUTS]), _ONE, d, weight, _ZERO, below)
    into, sizes = (target + t[m.WEIGHT], t[m.WIDTH]), (t[m.INPUTS], t[m.OUTPUTS], count)
    product(s, (1, 0), sizes, change, (t[m.IN], t[m.IN_ROW]), d, _ONE, into)
    if t[m.BIASED]:
        add_bias(s.floats, target + t[m.BIAS], t[m.WIDTH], change, d[0], d[1], count)


@inner
def _convolution_back(s: Space, number: int, count: int, target: int, change: np.float32) -> None:
    t, shift = s.table[number], s.integers[m.GRADIENTS]
    rows, outputs = count * t[m.PLACES], t[m.OUTPUTS]
    d, windows, into = (t[m.OUT] + shift, outputs), (t[m.KEPT], t[m.INPUTS]), (target + t[m.WEIGHT], t[m.WIDTH])
    product(s, (1, 0), (t[m.INPUTS], outputs, rows), change, windows, d, _ONE, into)
    if t[m.BIASED]:
        add_bias(s.floats, target + t[m.BIAS], outputs, change, d[0], outputs, rows)
    if number:  # the windows have been used: their memory takes their gradients
        product(s, (0, 1), (rows, t[m.INPUTS], outputs), _ONE, d, (t[m.WEIGHT], t[m.WIDTH]), _ZERO, windows)
        fold(s, number, count)


@inner
def _activate(kind: int, values: Numbers) -> None:
    """An activation, in place."""
    if kind == m.RELU:
        for k in range(len(values)):
            x = values[k]
            values[k] = _ZERO if x < 0 else x
    elif kind == m.TANH:
        for k in range(len(values)):
            values[k] = np.float32(2) / (_ONE + exp(np.float32(-2) * values[k])) - _ONE
    else:
        for k in range(len(values)):
            values[k] = _ONE / (_ONE + exp(-values[k]))


@inner
def _derive(kind: int, values: Numbers, gradients: Numbers) -> None:
    """Turn the gradients of an activation's outputs into those of its inputs, in place."""
    if kind == m.RELU:
        for k in range(len(values)):
            d = gradients[k]
            gradients[k] = _ZERO if values[k] <= 0 else d
    elif kind == m.TANH:
        for k in range(len(values)):
            gradients[k] *= _ONE - values[k] * values[k]
    else:
        for k in range(len(values)):
            gradients[k] *= values[k] * (_ONE - values[k])


@inner
def compare(s: Space, loss: int, labels: Numbers, offset: Numbers, over: np.float32) -> None:
    """The last outputs' gradients, times `over`: the mean label of outputs plus `offset`, minus the label."""
    t, shift = s.table[len(s.table) - 1], s.integers[m.GRADIENTS]
    outputs = t[m.OUTPUTS]
    for i in range(len(labels)):
        begin = t[m.OUT] + i * t[m.OUT_ROW]
        z, d = s.floats[begin : begin + outputs], s.floats[begin + shift : begin + shift + outputs]
        for h in range(outputs):
            z[h] += offset[h]
        if loss == m.SOFTMAX:
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
        elif loss == m.LOGIT:
            d[0] = over * (_ONE / (_ONE + exp(-z[0])) - labels[i])
        elif loss == m.NUMBER:
            d[0] = over * (z[0] - labels[i])
        else:
            d[0] = over * (exp(z[0]) - labels[i])


@inner
def unfold(s: Space, number: int, count: int) -> None:
    """Copy the window at each place into a row of its own, with zeros where it leaves the picture."""
    t = s.table[number]
    size, channels, columns = t[m.SIZE], t[m.CHANNELS], t[m.COLUMNS]
    run = size * channels
    for i in range(count):
        for y in range(t[m.OUT_ROWS]):
            for u in range(size):
                row = y * t[m.STRIDE] + u - t[m.PADDING]
                inside = 0 <= row < t[m.ROWS]
                of, place = (
                    t[m.IN] + i * t[m.IN_ROW] + row * columns * channels,
                    (i * t[m.OUT_ROWS] + y) * t[m.OUT_COLUMNS],
                )
                for x in range(t[m.OUT_COLUMNS]):
                    first = x * t[m.STRIDE] - t[m.PADDING]
                    to = t[m.KEPT] + (place + x) * t[m.INPUTS] + u * run
                    window, begin = s.floats[to : to + run], of + first * channels
                    if inside and first >= 0 and first + size <= columns:
                        seen = s.floats[begin : begin + run]
                        for q in range(run):
                            window[q] = seen[q]
                    else:
                        window[:] = 0
                        low, high = max(0, -first) * channels, min(size, columns - first) * channels
                        for q in range(low, high if inside else low):
                            window[q] = s.floats[begin + q]


@inner
def fold(s: Space, number: int, count: int) -> None:
    """Add the gradients of windows up to those of the pictures."""
    t, shift = s.table[number], s.integers[m.GRADIENTS]
    size, channels, columns = t[m.SIZE], t[m.CHANNELS], t[m.COLUMNS]
    run, pictures = size * channels, t[m.IN] + shift
    s.floats[pictures : pictures + count * t[m.IN_ROW]] = 0
    for i in range(count):
        for y in range(t[m.OUT_ROWS]):
            for u in range(size):
                row = y * t[m.STRIDE] + u - t[m.PADDING]
                if 0 <= row < t[m.ROWS]:
                    to = pictures + i * t[m.IN_ROW] + row * columns * channels
                    place = (i * t[m.OUT_ROWS] + y) * t[m.OUT_COLUMNS]
                    for x in range(t[m.OUT_COLUMNS]):
                        first = x * t[m.STRIDE] - t[m.PADDING]
                        low, high = max(0, -first) * channels, min(size, columns - first) * channels
                        begin, of = to + first * channels, t[m.KEPT] + (place + x) * t[m.INPUTS] + u * run
                        seen, window = s.floats[begin + low : begin + high], s.floats[of + low : of + high]
                        for q in range(len(seen)):
                            seen[q] += window[q]


@inner
def pool(s: Space, number: int, count: int) -> None:
    """The largest of each square, and its place: the first of equals; NaN counts as the largest."""
    t = s.table[number]
    size, channels, line = t[m.SIZE], t[m.CHANNELS], t[m.COLUMNS] * t[m.CHANNELS]
    for i in range(count):
        for y in range(t[m.OUT_ROWS]):
            for x in range(t[m.OUT_COLUMNS]):
                place = i * t[m.OUT_ROW] + (y * t[m.OUT_COLUMNS] + x) * channels
                best = s.floats[t[m.OUT] + place : t[m.OUT] + place + channels]
                which = s.shorts[t[m.KEPT] + place : t[m.KEPT] + place + channels]
                begin = t[m.IN] + i * t[m.IN_ROW] + y * size * line + x * size * channels
                first = s.floats[begin : begin + channels]
                for c in range(channels):
                    best[c] = first[c]
                    which[c] = 0
                for k in range(1, size * size):
                    at = begin + k // size * line + k % size * channels
                    other = s.floats[at : at + channels]
                    for c in range(channels):  # everything is read before, or LLVM would not vectorize this
                        value, before, place_before = other[c], best[c], which[c]
                        larger = not value <= before
                        best[c] = value if larger else before
                        which[c] = np.int32(k) if larger else place_before


@inner
def pool_back(s: Space, number: int, count: int) -> None:
    """Send each gradient to the place of the largest."""
    t, shift = s.table[number], s.integers[m.GRADIENTS]
    size, channels, line = t[m.SIZE], t[m.CHANNELS], t[m.COLUMNS] * t[m.CHANNELS]
    pictures, out = t[m.IN] + shift, t[m.OUT] + shift
    if t[m.OUT_ROWS] * size < t[m.ROWS] or t[m.OUT_COLUMNS] * size < t[m.COLUMNS]:
        s.floats[pictures : pictures + count * t[m.IN_ROW]] = 0
    for i in range(count):
        for y in range(t[m.OUT_ROWS]):
            for x in range(t[m.OUT_COLUMNS]):
                place = i * t[m.OUT_ROW] + (y * t[m.OUT_COLUMNS] + x) * channels
                own = s.floats[out + place : out + place + channels]
                which = s.shorts[t[m.KEPT] + place : t[m.KEPT] + place + channels]
                begin = pictures + i * t[m.IN_ROW] + y * size * line + x * size * channels
                for k in range(size * size):
                    at = begin + k // size * line + k % size * channels
                    back = s.floats[at : at + channels]
                    for c in range(channels):
                        back[c] = own[c] if which[c] == k else _ZERO


@inner
def _turn(of: Numbers, to: Numbers, rows: int, columns: int) -> None:
    """Write a matrix's columns as rows."""
    for r in range(rows):
        for c in range(columns):
            to[c * rows + r] = of[r * columns + c]


@compiled
def outputs(s: Space, record: Numbers, out: Numbers) -> None:
    """The layers' outputs for a record, both with channels first."""
    first, last = s.table[0], s.table[len(s.table) - 1]
    _turn(record, s.floats[first[m.IN] :], first[m.CHANNELS], first[m.ROWS] * first[m.COLUMNS])
    forward(s, 1, 0)
    _turn(s.floats[last[m.OUT] :], out, last[m.OUT_ROWS] * last[m.OUT_COLUMNS], last[m.OUTPUTS])


@compiled
def gradients(s: Space, back: Numbers, out: Numbers) -> None:
    """The gradients of the parameters, as the weights lie, from those of the outputs, channels first."""
    last, target = s.table[len(s.table) - 1], s.integers[m.VELOCITY]
    _turn(
        back, s.floats[last[m.OUT] + s.integers[m.GRADIENTS] :], last[m.OUTPUTS], last[m.OUT_ROWS] * last[m.OUT_COLUMNS]
    )
    for k in range(len(out)):
        s.floats[target + k] = 0
    backward(s, 1, 0, target, _ONE)
    for k in range(len(out)):
        out[k] = s.floats[target + k]
