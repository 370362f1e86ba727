"""Windows of convolutions, pooling and normalization, and their backward passes.

A loop over channels, or over a run of them, is the innermost, so that it is vectorized.
"""

import numpy as np

from incrowd._random import Floats
from incrowd.learning.backends.fast import memory as m
from incrowd.learning.backends.fast.memory import Space
from incrowd.learning.backends.fast.rows import inner

_ZERO = np.float32(0)


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
def _by_group(sums: Floats, channels: int, groups: int) -> None:
    """Give each channel the sum of its group."""
    width = channels // groups
    for g in range(groups):
        total = 0.0
        for c in range(g * width, (g + 1) * width):
            total += sums[c]
        sums[g * width : (g + 1) * width] = total


@inner
def normalize(s: Space, number: int, count: int) -> None:
    """Each group of channels of each example moved to mean 0 and variance 1, then times the gain, plus the shift."""
    t, eps, sums = s.table[number], s.doubles[number], s.doubles[s.integers[m.SUMS] :]
    channels, places, row, groups = t[m.OUTPUTS], t[m.PLACES], t[m.OUT_ROW], t[m.GROUPS]
    size, scales = places * channels, t[m.KEPT] + count * row
    gain, shift = s.floats[t[m.WEIGHT] : t[m.WEIGHT] + channels], s.floats[t[m.BIAS] : t[m.BIAS] + channels]
    means, squares, shared = sums[:channels], sums[channels : 2 * channels], groups / size
    for i in range(count):
        of, kept, to = t[m.IN] + i * row, t[m.KEPT] + i * row, t[m.OUT] + i * row
        own, out = (
            s.floats[of : of + size].reshape(places, channels),
            s.floats[to : to + size].reshape(places, channels),
        )
        normal = s.floats[kept : kept + size].reshape(places, channels)
        means[:], squares[:] = 0, 0
        for p in range(places):
            for c in range(channels):
                means[c] += own[p, c]
        _by_group(means, channels, groups)
        for c in range(channels):
            means[c] *= shared
        for p in range(places):
            for c in range(channels):
                off = own[p, c] - means[c]
                squares[c] += off * off
        _by_group(squares, channels, groups)
        for c in range(channels):
            squares[c] = 1 / np.sqrt(squares[c] * shared + eps)
        scale = s.floats[scales + i * channels : scales + (i + 1) * channels]
        for c in range(channels):
            scale[c] = squares[c]
        for p in range(places):
            for c in range(channels):
                value = np.float32(own[p, c] - means[c]) * scale[c]
                normal[p, c] = value
                out[p, c] = value * gain[c] + shift[c]


@inner
def normalize_back(s: Space, number: int, count: int) -> None:
    """The gradients of the inputs; the first two sums are the gradients of gain and shift."""
    t, move, sums = s.table[number], s.integers[m.GRADIENTS], s.doubles[s.integers[m.SUMS] :]
    channels, places, row, groups = t[m.OUTPUTS], t[m.PLACES], t[m.OUT_ROW], t[m.GROUPS]
    size, scales, shared = places * channels, t[m.KEPT] + count * row, groups / (places * channels)
    gain, of_gain, of_shift = (
        s.floats[t[m.WEIGHT] : t[m.WEIGHT] + channels],
        sums[:channels],
        sums[channels : 2 * channels],
    )
    totals, products = sums[2 * channels : 3 * channels], sums[3 * channels : 4 * channels]
    of_gain[:], of_shift[:] = 0, 0
    for i in range(count):
        of, kept, to = t[m.OUT] + move + i * row, t[m.KEPT] + i * row, t[m.IN] + move + i * row
        own, back = (
            s.floats[of : of + size].reshape(places, channels),
            s.floats[to : to + size].reshape(places, channels),
        )
        normal = s.floats[kept : kept + size].reshape(places, channels)
        totals[:], products[:] = 0, 0
        for p in range(places):
            for c in range(channels):
                totals[c] += own[p, c]
                products[c] += own[p, c] * normal[p, c]
        for c in range(channels):
            of_gain[c] += products[c]
            of_shift[c] += totals[c]
            products[c] *= gain[c] * shared
            totals[c] *= gain[c] * shared
        _by_group(totals, channels, groups)
        _by_group(products, channels, groups)
        scale = s.floats[scales + i * channels : scales + (i + 1) * channels]
        for p in range(places):
            for c in range(channels):
                steep = gain[c] * own[p, c] - np.float32(totals[c]) - np.float32(products[c]) * normal[p, c]
                back[p, c] = scale[c] * steep
