"""Loops over pictures whose channels lie together, for what is no matrix product: windows, pooling, and the ways
back.

Pictures are [examples, rows, columns, channels]; a loop over channels, or over a run of them, is the innermost, so that
it fills vector registers. All write every number of what they give, so that nothing of the last batch is left.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from incrowd.learning.machine_code import inserted, kept

Floats32 = NDArray[np.float32]
Which = NDArray[np.int32]
Integers32 = NDArray[np.int32]

_compiled = kept(__file__)
_inserted = inserted


@_compiled
def windows(pictures: Floats32, size: int, stride: int, out: Floats32) -> None:
    """Copy the window of `size` x `size` pixels at each place into a row of its own, [places, numbers]."""
    examples, height, width, channels = pictures.shape
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    run = size * channels
    flat = pictures.reshape(examples, height, width * channels)
    place = 0
    for b in range(examples):
        for i in range(rows):
            for j in range(columns):
                begin = j * stride * channels
                for u in range(size):
                    seen, window = flat[b, i * stride + u, begin : begin + run], out[place, u * run : (u + 1) * run]
                    for q in range(run):
                        window[q] = seen[q]
                place += 1


@_compiled
def add_windows(rows_: Floats32, size: int, stride: int, out: Floats32) -> None:
    """The way back of `windows`: each number of a picture is the sum of what the windows have at its place."""
    examples, height, width, channels = out.shape
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    run = size * channels
    flat = out.reshape(examples, height, width * channels)
    place = 0
    for b in range(examples):
        flat[b] = 0
        for i in range(rows):
            for j in range(columns):
                begin = j * stride * channels
                for u in range(size):
                    seen, window = flat[b, i * stride + u, begin : begin + run], rows_[place, u * run : (u + 1) * run]
                    for q in range(run):
                        seen[q] += window[q]
                place += 1


@_compiled
def taps(pictures: Floats32, size: int, stride: int, out: Floats32) -> None:
    """The same numbers as `windows`, turned, [numbers, places]: faster to copy where there are few channels."""
    examples, height, width, channels = pictures.shape
    rows, columns = (height - size) // stride + 1, (width - size) // stride + 1
    for u in range(size):
        for v in range(size):
            for c in range(channels):
                tap = (u * size + v) * channels + c
                place = 0
                for b in range(examples):
                    for i in range(rows):
                        seen, line = pictures[b, i * stride + u, v:, c], out[tap, place : place + columns]
                        if stride == 1:
                            for j in range(columns):
                                line[j] = seen[j]
                        else:
                            for j in range(columns):
                                line[j] = seen[j * stride]
                        place += columns


@_compiled
def pooled(values: Floats32, bias: Floats32, pool: int, bent: int, out: Floats32, margin: int, which: Which) -> None:
    """The largest of each `pool` x `pool` values, with the bias, made 0 if it is negative and `bent`; `which` it was.

    Of equals it is the first, and what is no number is larger than all, as in torch. The bias changes no order, and
    rectifying before or after is the same. They come `margin` pixels from the edges of `out`.
    """
    examples, _, _, channels = values.shape
    for b in range(examples):
        for i in range(which.shape[1]):
            for j in range(which.shape[2]):
                best, place = out[b, i + margin, j + margin], which[b, i, j]
                first = values[b, i * pool, j * pool]
                for c in range(channels):
                    best[c] = first[c]
                    place[c] = 0
                for k in range(1, pool * pool):
                    other = values[b, i * pool + k // pool, j * pool + k % pool]
                    for c in range(channels):
                        value = other[c]
                        larger = (value > best[c]) | (value != value)
                        best[c] = value if larger else best[c]
                        place[c] = k if larger else place[c]
                for c in range(channels):
                    value = best[c] + bias[c]
                    best[c] = np.float32(0) if (value <= 0) & (bent != 0) else value


@_compiled
def unpooled(
    gradients: Floats32, after: Floats32, margin: int, which: Which, pool: int, bent: int, out: Floats32, bias: Floats32
) -> None:
    """The way back of `pooled`: each gradient goes where its value came from; their sums are that of the bias."""
    examples, rows, columns, channels = which.shape
    bias[:] = 0
    own = np.empty(channels, np.float32)
    for b in range(examples):
        out[b, rows * pool :] = 0
        out[b, :, columns * pool :] = 0
        for i in range(rows):
            for j in range(columns):
                gradient, value = gradients[b, i + margin, j + margin], after[b, i + margin, j + margin]
                place = which[b, i, j]
                for c in range(channels):
                    own[c] = np.float32(0) if (value[c] <= 0) & (bent != 0) else gradient[c]
                    bias[c] += own[c]
                for k in range(pool * pool):
                    back = out[b, i * pool + k // pool, j * pool + k % pool]
                    for c in range(channels):
                        back[c] = own[c] if place[c] == k else np.float32(0)


class Normal(NamedTuple):
    """What normalising by groups works with, `gain` and `shift` of channels, and what it leaves for the way back."""

    gain: Floats32
    shift: Floats32
    groups: int
    eps: float
    numbers: Floats32  # normalised, of the shape of the values
    scales: Floats32  # [examples, channels]: one over the standard deviation of the channel's group


@_inserted
def _by_group(sums: NDArray[np.float64], groups: int) -> None:
    """Give each channel the sum of its group."""
    width = sums.shape[0] // groups
    for g in range(groups):
        total = 0.0
        for c in range(g * width, (g + 1) * width):
            total += sums[c]
        sums[g * width : (g + 1) * width] = total


@_compiled
def normalise(values: Floats32, bias: Floats32, normal: Normal) -> None:
    """Add the bias and normalise, in place, in each example and group of channels."""
    examples, rows, columns, channels = values.shape
    count = rows * columns * (channels // normal.groups)
    means, squares = np.empty(channels), np.empty(channels)
    for b in range(examples):
        means[:] = 0
        squares[:] = 0
        for i in range(rows):
            for j in range(columns):
                own = values[b, i, j]
                for c in range(channels):
                    means[c] += own[c]
        for c in range(channels):
            means[c] += rows * columns * np.float64(bias[c])
        _by_group(means, normal.groups)
        for c in range(channels):
            means[c] = means[c] / count - bias[c]
        for i in range(rows):
            for j in range(columns):
                own = values[b, i, j]
                for c in range(channels):
                    off = own[c] - means[c]
                    squares[c] += off * off
        _by_group(squares, normal.groups)
        for c in range(channels):
            normal.scales[b, c] = 1 / np.sqrt(squares[c] / count + normal.eps)
        for i in range(rows):
            for j in range(columns):
                own, number = values[b, i, j], normal.numbers[b, i, j]
                for c in range(channels):
                    number[c] = (own[c] - np.float32(means[c])) * normal.scales[b, c]
                    own[c] = number[c] * normal.gain[c] + normal.shift[c]


@_compiled
def denormalise(gradients: Floats32, normal: Normal, gain: Floats32, shift: Floats32, bias: Floats32) -> None:
    """The way back of `normalise`, in place; and the gradients of `gain`, `shift` and the bias."""
    examples, rows, columns, channels = gradients.shape
    count = rows * columns * (channels // normal.groups)
    sums, products, whole = np.empty(channels), np.empty(channels), np.empty(channels)
    gain[:] = 0
    shift[:] = 0
    bias[:] = 0
    for b in range(examples):
        sums[:] = 0
        products[:] = 0
        whole[:] = 0
        for i in range(rows):
            for j in range(columns):
                own, number = gradients[b, i, j], normal.numbers[b, i, j]
                for c in range(channels):
                    sums[c] += own[c]
                    products[c] += own[c] * number[c]
        for c in range(channels):
            gain[c] += products[c]
            shift[c] += sums[c]
            sums[c] *= normal.gain[c] / count
            products[c] *= normal.gain[c] / count
        _by_group(sums, normal.groups)
        _by_group(products, normal.groups)
        for i in range(rows):
            for j in range(columns):
                own, number = gradients[b, i, j], normal.numbers[b, i, j]
                for c in range(channels):
                    steep = normal.gain[c] * own[c] - np.float32(sums[c]) - np.float32(products[c]) * number[c]
                    own[c] = normal.scales[b, c] * steep
                    whole[c] += own[c]
        for c in range(channels):
            bias[c] += whole[c]


class Live(NamedTuple):
    """The gradients that are not zero of what a convolution makes, before pooling: whose they are, where, how large."""

    examples: Integers32
    channels: Integers32
    rows: Integers32
    columns: Integers32
    gradients: Floats32


@_compiled
def alive(
    gradients: Floats32, after: Floats32, margin: int, which: Which, pool: int, bent: int, bias: Floats32, live: Live
) -> int:
    """List what is not zero of `gradients`, taken back through `pooled`, and say how much: a channel's side by side.

    Most are zero: all but one of a square, and all of what was rectified. Their sums are the gradient of the bias.
    """
    examples, rows, columns, channels = which.shape
    bias[:] = 0
    count = 0
    for b in range(examples):
        for c in range(channels):
            for i in range(rows):
                for j in range(columns):
                    gradient = gradients[b, i + margin, j + margin, c]
                    if gradient != 0 and not (bent != 0 and after[b, i + margin, j + margin, c] <= 0):
                        k = which[b, i, j, c]
                        live.examples[count], live.channels[count] = b, c
                        live.rows[count], live.columns[count] = i * pool + k // pool, j * pool + k % pool
                        live.gradients[count] = gradient
                        bias[c] += gradient
                        count += 1
    return count


@_inserted
def _begin(live: Live, n: int, shape: tuple[int, int, int, int], stride: int) -> np.uintp:
    """Where the window of a place begins in pictures that are one line of numbers."""
    row = live.examples[n] * shape[1] + live.rows[n] * stride
    return np.uintp((row * shape[2] + live.columns[n] * stride) * shape[3])


@_inserted
def _alike(channels: Integers32, n: int) -> bool:
    """Whether four after each other are the same channel: the next example may begin with it again."""
    own: np.int32 = channels[n]
    return bool(channels[n + 1] == own and channels[n + 2] == own and channels[n + 3] == own)


@_compiled
def spread(live: Live, count: int, weight: Floats32, size: int, stride: int, out: Floats32) -> None:
    """The gradients of pictures, given those of what a convolution by `weight` [channels, window] made of them."""
    _, _, width, channels = out.shape
    to, of = out.reshape(-1), weight.reshape(-1)
    to[:] = 0
    run, line = np.uintp(size * channels), np.uintp(width * channels)
    for n in range(count):
        gradient = live.gradients[n]
        begin, own = _begin(live, n, out.shape, stride), np.uintp(live.channels[n] * weight.shape[1])
        for _ in range(size):
            for q in range(run):
                to[begin + q] += gradient * of[own + q]
            begin += line
            own += run


@_compiled
def gather(live: Live, count: int, pictures: Floats32, size: int, stride: int, scale: float, out: Floats32) -> None:
    """Add the gradient of a weight, times `scale`, to `out` [channels, window]; four windows of a channel at a time."""
    _, _, width, channels = pictures.shape
    of, to = pictures.reshape(-1), out.reshape(-1)
    run, line = np.uintp(size * channels), np.uintp(width * channels)
    factor = np.float32(scale)
    n = 0
    while n < count:
        own = np.uintp(live.channels[n] * out.shape[1])
        a, first = factor * live.gradients[n], _begin(live, n, pictures.shape, stride)
        if n + 3 < count and _alike(live.channels, n):
            b, second = factor * live.gradients[n + 1], _begin(live, n + 1, pictures.shape, stride)
            c, third = factor * live.gradients[n + 2], _begin(live, n + 2, pictures.shape, stride)
            d, fourth = factor * live.gradients[n + 3], _begin(live, n + 3, pictures.shape, stride)
            for _ in range(size):
                for q in range(run):
                    to[own + q] += a * of[first + q] + b * of[second + q] + c * of[third + q] + d * of[fourth + q]
                own += run
                first += line
                second += line
                third += line
                fourth += line
            n += 4
        else:
            for _ in range(size):
                for q in range(run):
                    to[own + q] += a * of[first + q]
                own += run
                first += line
            n += 1
