"""Compiled loops for sparse numbers: the local training of clients, without a matrix product.

What a layer reads is held as pairs (place, number) of what is not zero, example after example: of the first layer the
features, of the others the activations. With a weight stored [inputs, outputs] a forward pass adds up some of its
rows, and a step adds the gradients of some examples to each row in use.

Where all that lies is drawn in `incrowd.learning.paths.compiled.layout`: a weight is [tile][input][output in the
tile], values and gradients are [tile][example][output in the tile].
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers
from incrowd.learning.machine_code import inserted
from incrowd.learning.paths.compiled.vector import (
    LINE,
    add_products,
    add_rows,
    add_to_rows,
    compiled,
    exp,
    fetch,
    inner,
    pack,
)

SOFTMAX, SIGMOID, IDENTITY, EXP = range(4)  # means of losses
NO_ACTIVATION, RELU, TANH, LOGISTIC = range(4)
INPUTS, OUTPUTS, STRIDE, TILE, WEIGHT, BIAS, BIASED, ACTIVATION, VALUES = range(9)  # columns of a table of layers

_NARROW = 64  # a weight with so few outputs stays in the nearest cache, so its rows may be visited several times
_ONE = np.float32(1)
RUN = 256  # numbers, as in `incrowd.learning.deltas`


class Pairs(NamedTuple):
    """Sparse rows: row r holds the numbers at `places` from starts[r] to starts[r + 1]; all others are zero."""

    starts: NDArray[np.int64]
    places: NDArray[Any]  # unsigned
    numbers: NDArray[Any]  # uint8 or float32


class Objective(NamedTuple):
    """What all clients have in common: the table of examples (times a scale), their labels, and the settings."""

    examples: Pairs
    labels: NDArray[np.float32]
    scale: np.float32
    rate: np.float32
    loss: int


class ClientSteps(NamedTuple):
    """Some clients, each with its steps and the features that are not zero in all of its examples."""

    rows: NDArray[np.int64]  # [c, steps, width], of the table of examples
    sizes: Integers  # [c, steps], how many of a step's rows count
    used: NDArray[np.int64]  # [c, features]
    counts: NDArray[np.int64]  # how many of them count
    offsets: NDArray[np.float32]  # [c, outputs], added to the last outputs


class Workspace(NamedTuple):
    """Where a client is trained; `layers` says where in it a layer has its weights, values and gradients."""

    layers: NDArray[np.int64]  # [layers, columns of the table]
    weights: NDArray[np.float32]
    values: NDArray[np.float32]
    gradients: NDArray[np.float32]
    starts: NDArray[np.int64]  # [layers, width + 1]; with places and numbers the pairs that a layer reads
    places: NDArray[np.uint32]  # [layers, most pairs]
    numbers: NDArray[np.float32]
    firsts: NDArray[np.int64]  # with ends, users and amounts a layer's pairs the other way round
    ends: NDArray[np.int64]
    users: NDArray[np.uint32]
    amounts: NDArray[np.float32]
    order: NDArray[np.int64]  # places that are used, those with equally many users together; `many` is for sorting
    many: NDArray[np.int64]
    numbered: NDArray[np.int64]  # 0, 1, 2 .., up to the most inputs of a layer or examples of a batch
    everyone: NDArray[np.uint32]  # 0, 1, 2 ..; of a batch all, as pairs with `ones`
    ones: NDArray[np.float32]


@compiled
def train(
    objective: Objective,
    space: Workspace,
    start: NDArray[np.float32],
    clients: ClientSteps,
    flat: NDArray[np.float32],
    apart: int,
) -> None:
    """Train clients from the weights `start`, which lie as in the workspace, and write down what has changed.

    Into `flat` go the changes of all parameters but the first `apart` weights. Those of a first weight that is apart
    stay in the workspace, where only those of the last client are.
    """
    for j in range(len(clients.sizes)):
        rows, sizes, used = clients.rows[j], clients.sizes[j], clients.used[j, : clients.counts[j]]
        _begin(space, start, used)
        for step in range(len(sizes)):
            if step + 1 < len(sizes):
                for i in range(sizes[step + 1]):
                    _fetch_example(objective.examples, rows[step + 1, i])
            if sizes[step]:
                _step(objective, space, rows[step], sizes[step], used, clients.offsets[j])
        _write_flat(space, start, used, flat[j], apart)
        if apart:
            _subtract(space, start, used)


@inner
def _fetch_example(examples: Pairs, row: int) -> None:
    part = (examples.starts[row], examples.starts[row + 1])
    fetch(examples.places, part)
    fetch(examples.numbers, part)


@inserted
def _step(
    objective: Objective,
    space: Workspace,
    rows: Integers,
    count: int,
    used: NDArray[np.int64],
    offset: NDArray[np.float32],
) -> None:
    """Learn from the first examples of a batch, which use no other features."""
    last = len(space.layers) - 1
    change = np.float32(-objective.rate / count)
    _read(space, 0, objective.examples, rows, count, objective.scale)
    for layer in range(1, last + 1):
        _activate(space, layer - 1, count)
        _collect(space, layer, count)
        _read(space, layer, _collected(space, layer), space.numbered, count, _ONE)
    _compare(objective, space, rows, count, offset)
    for layer in range(last, 0, -1):
        inputs = space.numbered[: space.layers[layer, INPUTS]]
        several = _transpose(space, _collected(space, layer), space.numbered, count, inputs)
        _go_back(space, layer, count, several)
        _learn(space, layer, several, change)
        _step_bias(space, layer, count, change)
    if space.layers[0, STRIDE] <= _NARROW:
        _learn_one_by_one(space, objective.examples, rows, count, np.float32(change * objective.scale))
    else:
        several = _transpose(space, objective.examples, rows, count, used)
        _learn(space, 0, several, np.float32(change * objective.scale))
    _step_bias(space, 0, count, change)


@inner
def _tiles(space: Workspace, layer: int) -> int:
    """How many tiles the outputs of a layer are cut into."""
    tiles: int = -(-space.layers[layer, STRIDE] // space.layers[layer, TILE])
    return tiles


@inner
def _tile(space: Workspace, layer: int, tile: int) -> tuple[int, int, int]:
    """How wide a tile is, and where its weights and its values begin."""
    row, room = space.layers[layer], space.starts.shape[1] - 1
    begin = tile * row[TILE]
    return min(row[TILE], row[STRIDE] - begin), row[WEIGHT] + begin * row[INPUTS], row[VALUES] + begin * room


@inner
def _collected(space: Workspace, layer: int) -> Pairs:
    """The pairs that a layer reads."""
    return Pairs(space.starts[layer], space.places[layer], space.numbers[layer])


@inner
def _begin(space: Workspace, start: NDArray[np.float32], used: NDArray[np.int64]) -> None:
    """Set all weights as `start` has them, but those of features that are not used."""
    first = space.layers[0, WEIGHT]
    for k in range(first):
        space.weights[k] = start[k]
    for tile in range(_tiles(space, 0)):
        width, weight, _ = _tile(space, 0, tile)
        for k in used:
            for h in range(weight + k * width, weight + (k + 1) * width):
                space.weights[h] = start[h]


@inner
def _read(space: Workspace, layer: int, pairs: Pairs, rows: Integers, count: int, scale: np.float32) -> None:
    """The outputs of a layer for some rows."""
    for tile in range(_tiles(space, layer)):
        width, weight, at = _tile(space, layer, tile)
        bias = space.layers[layer, BIAS] + tile * space.layers[layer, TILE]
        for i in range(count):
            for h in range(width):
                space.values[at + i * width + h] = space.weights[bias + h]
            where = (at + i * width, weight, width, pairs.starts[rows[i]], pairs.starts[rows[i] + 1])
            add_rows(space.values, space.weights, where, pairs.places, pairs.numbers, scale)


@inner
def _activate(space: Workspace, layer: int, count: int) -> None:
    kind = space.layers[layer, ACTIVATION]
    for tile in range(_tiles(space, layer)):
        width, _, at = _tile(space, layer, tile)
        values = space.values[at : at + count * width]
        if kind == RELU:
            for k in range(len(values)):
                values[k] = np.float32(0) if values[k] < 0 else values[k]  # what is no number has to be noticed
        elif kind == TANH:
            for k in range(len(values)):
                values[k] = math.tanh(values[k])
        elif kind == LOGISTIC:
            for k in range(len(values)):
                values[k] = _ONE / (_ONE + math.exp(-values[k]))


@inner
def _collect(space: Workspace, layer: int, count: int) -> None:
    """Find the pairs that a layer reads; a value of 0 counts for nothing only where its gradient is 0 as well."""
    starts, places, numbers = _collected(space, layer)
    bent = space.layers[layer - 1, ACTIVATION] == RELU
    pairs = 0
    for i in range(count):
        starts[i] = pairs
        for tile in range(_tiles(space, layer - 1)):
            width, _, at = _tile(space, layer - 1, tile)
            first = tile * space.layers[layer - 1, TILE]
            if bent:
                for h in range(space.layers[layer, INPUTS] - first, width):  # zeros times what is no number are none
                    space.values[at + i * width + h] = 0
                pairs = pack(space.values, places, numbers, (at + i * width, width, first, pairs))
            else:
                for h in range(min(width, space.layers[layer, INPUTS] - first)):
                    places[pairs], numbers[pairs] = first + h, space.values[at + i * width + h]
                    pairs += 1
    starts[count] = pairs


@inner
def _compare(objective: Objective, space: Workspace, rows: Integers, count: int, offset: NDArray[np.float32]) -> None:
    """The gradient of the loss with respect to the last outputs: the mean that they stand for minus the label."""
    layer = len(space.layers) - 1
    outputs = space.layers[layer, OUTPUTS]
    width, _, at = _tile(space, layer, 0)
    for i in range(count):
        z = space.values[at + i * width : at + i * width + outputs]
        d = space.gradients[at + i * width : at + i * width + outputs]
        label = objective.labels[rows[i]]
        for h in range(outputs):
            z[h] += offset[h]
        if objective.loss == SOFTMAX:
            largest, total = z[0], np.float32(0)
            for h in range(outputs):
                largest = max(largest, z[h])
            for h in range(outputs):
                d[h] = exp(z[h] - largest)
            for h in range(outputs):
                total += d[h]
            total = _ONE / total
            for h in range(outputs):
                d[h] *= total
            d[int(label)] -= _ONE
        elif objective.loss == SIGMOID:
            d[0] = _ONE / (_ONE + math.exp(-z[0])) - label
        elif objective.loss == IDENTITY:
            d[0] = z[0] - label
        else:
            d[0] = math.exp(z[0]) - label


@inner
def _transpose(
    space: Workspace, pairs: Pairs, rows: Integers, count: int, used: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Who of some rows uses a place, and how much: pairs of place k go from firsts[k] to ends[k].

    Gives the places in use. Those with equally many users come together: loops of one length after the other are
    guessed rightly by a processor, which is a quarter of the time.
    """
    starts, places, numbers = pairs
    firsts, ends, users, amounts, many = space.firsts, space.ends, space.users, space.amounts, space.many
    for k in used:
        ends[k] = 0
    for i in range(count):
        for k in range(starts[rows[i]], starts[rows[i] + 1]):
            ends[places[k]] += 1
    for n in range(count + 2):
        many[n] = 0
    for k in used:
        many[ends[k] + 1] += 1
    many[1] = 0  # nobody uses these
    for n in range(1, count + 1):
        many[n + 1] += many[n]
    pair = 0
    for k in used:
        n = ends[k]
        if n:
            space.order[many[n]] = k
            many[n] += 1
        firsts[k], ends[k] = pair, pair
        pair += n
    for i in range(count):
        for k in range(starts[rows[i]], starts[rows[i] + 1]):
            pair = ends[places[k]]
            users[pair], amounts[pair] = i, numbers[k]
            ends[places[k]] = pair + 1
    return space.order[: many[count]]


@inner
def _go_back(space: Workspace, layer: int, count: int, places: NDArray[np.int64]) -> None:
    """The gradient of the values that a layer reads; values that have no pair have none."""
    size = space.layers[layer - 1, TILE]
    for below in range(_tiles(space, layer - 1)):
        narrow, _, lower = _tile(space, layer - 1, below)
        for k in range(lower, lower + count * narrow):
            space.gradients[k] = 0
    for tile in range(_tiles(space, layer)):
        width, weight, at = _tile(space, layer, tile)
        for k in places:
            narrow, _, lower = _tile(space, layer - 1, k // size)
            where = (lower + k % size, weight + k * width, at, width, space.firsts[k], space.ends[k])
            add_products(space.gradients, space.weights, space.gradients, where, space.users, narrow)
    for below in range(_tiles(space, layer - 1)):
        narrow, _, lower = _tile(space, layer - 1, below)
        _derive(space, layer - 1, lower, lower + count * narrow)


@inner
def _derive(space: Workspace, layer: int, begin: int, end: int) -> None:
    """Multiply gradients with the derivative of an activation, in terms of its values."""
    kind = space.layers[layer, ACTIVATION]
    if kind == TANH:
        for k in range(begin, end):
            space.gradients[k] *= _ONE - space.values[k] * space.values[k]
    elif kind == LOGISTIC:
        for k in range(begin, end):
            space.gradients[k] *= space.values[k] * (_ONE - space.values[k])


@inner
def _learn(space: Workspace, layer: int, places: NDArray[np.int64], change: np.float32) -> None:
    """A step of a layer's weight, row by row."""
    for tile in range(_tiles(space, layer)):
        width, weight, at = _tile(space, layer, tile)
        for k in places:
            where = (weight + k * width, at, width, space.firsts[k], space.ends[k])
            add_rows(space.weights, space.gradients, where, space.users, space.amounts, change)


@inner
def _learn_one_by_one(space: Workspace, pairs: Pairs, rows: Integers, count: int, change: np.float32) -> None:
    """A step of a narrow first weight, example by example."""
    for tile in range(_tiles(space, 0)):
        width, weight, at = _tile(space, 0, tile)
        for i in range(count):
            where = (weight, at + i * width, width, pairs.starts[rows[i]], pairs.starts[rows[i] + 1])
            add_to_rows(space.weights, space.gradients, where, pairs.places, pairs.numbers, change)


@inner
def _step_bias(space: Workspace, layer: int, count: int, change: np.float32) -> None:
    """A step of a layer's bias, which is the weight of a feature that is 1 in all examples."""
    for tile in range(_tiles(space, layer) if space.layers[layer, BIASED] else 0):
        width, _, at = _tile(space, layer, tile)
        where = (space.layers[layer, BIAS] + tile * space.layers[layer, TILE], at, width, 0, count)
        add_rows(space.weights, space.gradients, where, space.everyone, space.ones, change)


@inner
def _subtract(space: Workspace, start: NDArray[np.float32], used: NDArray[np.int64]) -> None:
    """Make the first weight its change."""
    for tile in range(_tiles(space, 0)):
        width, weight, _ = _tile(space, 0, tile)
        for k in used:
            for h in range(weight + k * width, weight + (k + 1) * width):
                space.weights[h] -= start[h]


@compiled
def copy_rows(space: Workspace, used: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
    """The changes of a first weight that is apart, [used, outputs]."""
    for tile in range(_tiles(space, 0)):
        width, weight, _ = _tile(space, 0, tile)
        first = tile * space.layers[0, TILE]
        for j in range(len(used)):
            row = weight + used[j] * width
            for h in range(min(width, space.layers[0, OUTPUTS] - first)):
                rows[j, first + h] = space.weights[row + h]


@compiled
def squares_of_rows(space: Workspace, used: NDArray[np.int64]) -> float:
    """The sum of their squares, in float32 within `RUN` numbers of a row."""
    total, result = 0.0, space.gradients  # which nobody needs any more
    for tile in range(_tiles(space, 0)):
        width, weight, _ = _tile(space, 0, tile)
        for k in used:
            for at in range(weight + k * width, weight + (k + 1) * width, RUN):
                result[0] = 0
                where = (0, at, at, min(RUN, weight + (k + 1) * width - at), 0, 1)
                add_products(result, space.weights, space.weights, where, space.everyone, 1)
                total += result[0]
    return total


@compiled
def add_steps_of_rows(space: Workspace, used: NDArray[np.int64], factor: float, total: NDArray[np.float32]) -> None:
    """Add them times a factor, rounded towards zero, to total [inputs, outputs]."""
    for tile in range(_tiles(space, 0)):
        width, weight, _ = _tile(space, 0, tile)
        first = tile * space.layers[0, TILE]
        real = min(width, space.layers[0, OUTPUTS] - first)
        for k in used:
            row, own = space.weights[weight + k * width :][:real], total[k, first : first + real]
            for h in range(real):
                own[h] += np.float32(np.trunc(np.float64(row[h]) * factor))


@compiled
def add_steps_at(rows: NDArray[np.float32], used: NDArray[np.int64], factor: float, total: NDArray[np.float32]) -> None:
    """The same of rows [used, outputs] that were copied."""
    for j in range(len(used)):
        row, own = rows[j], total[used[j]]
        for h in range(len(row)):
            own[h] += np.float32(np.trunc(np.float64(row[h]) * factor))


@inner
def _write_flat(
    space: Workspace, start: NDArray[np.float32], used: NDArray[np.int64], flat: NDArray[np.float32], begin: int
) -> None:
    """Write all but the weights of the layers before `begin`."""
    place = 0
    for layer in range(len(space.layers)):
        inputs, outputs = space.layers[layer, INPUTS], space.layers[layer, OUTPUTS]
        bias = space.layers[layer, BIAS]
        if layer >= begin:
            _write_transposed(space, start, used if layer == 0 else space.numbered[:inputs], layer, flat[place:])
            place += inputs * outputs
        if space.layers[layer, BIASED]:
            for h in range(outputs):
                flat[place + h] = space.weights[bias + h] - start[bias + h]
            place += outputs


@inner
def _write_transposed(
    space: Workspace, start: NDArray[np.float32], places: NDArray[np.int64], layer: int, flat: NDArray[np.float32]
) -> None:
    inputs, outputs = space.layers[layer, INPUTS], space.layers[layer, OUTPUTS]
    if len(places) < inputs:
        for k in range(inputs * outputs):
            flat[k] = 0
    for tile in range(_tiles(space, layer)):
        width, weight, _ = _tile(space, layer, tile)
        first = tile * space.layers[layer, TILE]
        for line in range(0, min(width, outputs - first), LINE):  # so few lines of the result stay in the cache
            for k in places:
                row = weight + k * width
                for h in range(line, min(line + LINE, outputs - first)):
                    flat[(first + h) * inputs + k] = space.weights[row + h] - start[row + h]


@compiled
def run_squares(
    rows: NDArray[np.float32], width: int, begin: int, end: int, itself: Pairs, sums: NDArray[np.float64]
) -> None:
    """The sum of the squares from begin to end of each row of so many numbers, in float32 within `RUN` of them."""
    last = end - (end - begin) % RUN
    result = itself.numbers
    for j in range(len(sums)):
        total, row = 0.0, j * width
        for k in range(row + begin, row + last, RUN):
            result[0] = 0
            add_products(result, rows, rows, (0, k, k, RUN, 0, 1), itself.places, 1)
            total += result[0]
        for k in range(row + last, row + end):
            total += np.float64(rows[k]) * np.float64(rows[k])
        sums[j] = total


@compiled
def add_steps(
    rows: NDArray[np.float32], begin: int, end: int, factors: NDArray[np.float64], total: NDArray[np.float32]
) -> None:
    """Add rows[j, begin:end] times its factor, rounded towards zero; a factor of 0 leaves a row out."""
    for j in range(len(rows)):
        factor, row, own = factors[j], rows[j, begin:end], total[begin:end]
        if factor != 0:
            for k in range(len(row)):
                own[k] += np.float32(np.trunc(np.float64(row[k]) * factor))
