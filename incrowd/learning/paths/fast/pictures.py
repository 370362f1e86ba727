"""Windows of convolutions, pooling and normalization, and their backward passes.

A loop over channels, or over a run of them, is the innermost, so that it is vectorized.
"""

import numpy as np

from incrowd._random import Floats
from incrowd.learning.paths.fast.memory import (
    BIAS,
    CHANNELS,
    COLUMNS,
    GRADIENTS,
    GROUPS,
    IN,
    IN_ROW,
    INPUTS,
    KEPT,
    OUT,
    OUT_COLUMNS,
    OUT_ROW,
    OUT_ROWS,
    OUTPUTS,
    PADDING,
    PLACES,
    ROWS,
    SIZE,
    STRIDE,
    SUMS,
    WEIGHT,
    Space,
)
from incrowd.learning.paths.fast.rows import inner

_ZERO = np.float32(0)


@inner
def unfold(s: Space, number: int, count: int) -> None:
    """Copy the window at each place into a row of its own, with zeros where it leaves the picture."""
    t = s.table[number]
    size, channels, columns = t[SIZE], t[CHANNELS], t[COLUMNS]
    run = size * channels
    for i in range(count):
        for y in range(t[OUT_ROWS]):
            for u in range(size):
                row = y * t[STRIDE] + u - t[PADDING]
                inside = 0 <= row < t[ROWS]
                of, place = t[IN] + i * t[IN_ROW] + row * columns * channels, (i * t[OUT_ROWS] + y) * t[OUT_COLUMNS]
                for x in range(t[OUT_COLUMNS]):
                    first = x * t[STRIDE] - t[PADDING]
                    to = t[KEPT] + (place + x) * t[INPUTS] + u * run
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
    t, shift = s.table[number], s.integers[GRADIENTS]
    size, channels, columns = t[SIZE], t[CHANNELS], t[COLUMNS]
    run, pictures = size * channels, t[IN] + shift
    s.floats[pictures : pictures + count * t[IN_ROW]] = 0
    for i in range(count):
        for y in range(t[OUT_ROWS]):
            for u in range(size):
                row = y * t[STRIDE] + u - t[PADDING]
                if 0 <= row < t[ROWS]:
                    to = pictures + i * t[IN_ROW] + row * columns * channels
                    place = (i * t[OUT_ROWS] + y) * t[OUT_COLUMNS]
                    for x in range(t[OUT_COLUMNS]):
                        first = x * t[STRIDE] - t[PADDING]
                        low, high = max(0, -first) * channels, min(size, columns - first) * channels
                        begin, of = to + first * channels, t[KEPT] + (place + x) * t[INPUTS] + u * run
                        seen, window = s.floats[begin + low : begin + high], s.floats[of + low : of + high]
                        for q in range(len(seen)):
                            seen[q] += window[q]


@inner
def pool(s: Space, number: int, count: int) -> None:
    """The largest of each square, and which it was: of equals the first; what is no number is larger than all."""
    t = s.table[number]
    size, channels, line = t[SIZE], t[CHANNELS], t[COLUMNS] * t[CHANNELS]
    for i in range(count):
        for y in range(t[OUT_ROWS]):
            for x in range(t[OUT_COLUMNS]):
                place = i * t[OUT_ROW] + (y * t[OUT_COLUMNS] + x) * channels
                best = s.floats[t[OUT] + place : t[OUT] + place + channels]
                which = s.shorts[t[KEPT] + place : t[KEPT] + place + channels]
                begin = t[IN] + i * t[IN_ROW] + y * size * line + x * size * channels
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
    """Each gradient goes where the largest was."""
    t, shift = s.table[number], s.integers[GRADIENTS]
    size, channels, line = t[SIZE], t[CHANNELS], t[COLUMNS] * t[CHANNELS]
    pictures, out = t[IN] + shift, t[OUT] + shift
    if t[OUT_ROWS] * size < t[ROWS] or t[OUT_COLUMNS] * size < t[COLUMNS]:
        s.floats[pictures : pictures + count * t[IN_ROW]] = 0
    for i in range(count):
        for y in range(t[OUT_ROWS]):
            for x in range(t[OUT_COLUMNS]):
                place = i * t[OUT_ROW] + (y * t[OUT_COLUMNS] + x) * channels
                own = s.floats[out + place : out + place + channels]
                which = s.shorts[t[KEPT] + place : t[KEPT] + place + channels]
                begin = pictures + i * t[IN_ROW] + y * size * line + x * size * channels
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
    t, eps, sums = s.table[number], s.doubles[number], s.doubles[s.integers[SUMS] :]
    channels, places, row, groups = t[OUTPUTS], t[PLACES], t[OUT_ROW], t[GROUPS]
    size, scales = places * channels, t[KEPT] + count * row
    gain, shift = s.floats[t[WEIGHT] : t[WEIGHT] + channels], s.floats[t[BIAS] : t[BIAS] + channels]
    means, squares, shared = sums[:channels], sums[channels : 2 * channels], groups / size
    for i in range(count):
        of, kept, to = t[IN] + i * row, t[KEPT] + i * row, t[OUT] + i * row
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
    """The gradients of what went in; those of gain and shift are the first two of the sums."""
    t, move, sums = s.table[number], s.integers[GRADIENTS], s.doubles[s.integers[SUMS] :]
    channels, places, row, groups = t[OUTPUTS], t[PLACES], t[OUT_ROW], t[GROUPS]
    size, scales, shared = places * channels, t[KEPT] + count * row, groups / (places * channels)
    gain, of_gain, of_shift = s.floats[t[WEIGHT] : t[WEIGHT] + channels], sums[:channels], sums[channels : 2 * channels]
    totals, products = sums[2 * channels : 3 * channels], sums[3 * channels : 4 * channels]
    of_gain[:], of_shift[:] = 0, 0
    for i in range(count):
        of, kept, to = t[OUT] + move + i * row, t[KEPT] + i * row, t[IN] + move + i * row
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
