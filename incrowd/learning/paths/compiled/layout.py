"""Where numbers lie while a client is trained: everything of a kind in one flat array, drawn here.

The weights of a program (`weights`, and what a round starts from). Outputs are filled up with zeros to whole lines of
the cache, 16 numbers; the outputs of a layer below the last are cut into tiles of 128, each [input][output in it], so
that what is in use together fits into a near cache. Say there are 784-200-10:

    | bias 0  | bias 1 | weight 1          | weight 0                                                     |
    | 200 + 8 | 10 + 6 | 200 inputs, of 16 | tile 0: 784 inputs, of 128   | tile 1: 784 inputs, of 80     |
                                             input 0: | outputs 0 .. 127 |   input 0: | 128 .. 199 | 8 zeros |
                                             input 1: | outputs 0 .. 127 |   input 1: | 128 .. 199 | 8 zeros |
                                             ..

The first weight lies behind all others: it is the one of which only the rows of features in use are touched.

The outputs of the layers (`values`, and their `gradients`), for a batch of up to `width` examples:

    | layer 0, tile 0                  | layer 0, tile 1                 | layer 1, its only tile    |
    | example 0: 128 | example 1: 128 | .. | example 0: 80 | example 1: 80 | .. | example 0: 16 | .. |

What a layer reads, as pairs of a place and a number that is not zero; for two examples 0 0 7 0 3 and 0 9 0 0 0

    starts   0     2   3            the same the other      firsts and ends of places 0 .. 4
    places   2 4   1                way round, for the      users     1 0 0     who has the place
    numbers  7 3   9                step of a weight        amounts   9 7 3     and how much of it
"""

from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incrowd.learning.paths.compiled import kernel
from incrowd.learning.paths.compiled.vector import LINE, padded
from incrowd.learning.program import ACTIVATIONS, Activation, Program

_TILE = 128  # outputs; 784 rows of so many still fit into the second cache, several times

_ACTIVATIONS: dict[Activation | None, int] = {
    None: kernel.NO_ACTIVATION,
    ACTIVATIONS[nn.ReLU]: kernel.RELU,
    ACTIVATIONS[nn.Tanh]: kernel.TANH,
    ACTIVATIONS[nn.Sigmoid]: kernel.LOGISTIC,
}


def workspace(layers: NDArray[np.int64], width: int) -> kernel.Workspace:
    """Room for training in batches of at most `width` examples."""
    layers = layers.copy()
    strides, inputs = layers[:, kernel.STRIDE].tolist(), layers[:, kernel.INPUTS].tolist()
    layers[:, kernel.VALUES] = [0, *accumulate(width * stride for stride in strides)][:-1]
    room = width * max(inputs[1:], default=0) + LINE
    return kernel.Workspace(
        layers=layers,
        weights=_lines(_size(layers)),
        values=_lines(width * sum(strides)),
        gradients=_lines(width * sum(strides)),
        starts=np.zeros((len(layers), width + 1), np.int64),
        places=np.zeros((len(layers), room), np.uint32),
        numbers=np.zeros((len(layers), room), np.float32),
        firsts=np.zeros(max(inputs), np.int64),
        ends=np.zeros(max(inputs), np.int64),
        users=np.zeros(width * max(inputs), np.uint32),
        amounts=np.zeros(width * max(inputs), np.float32),
        order=np.zeros(max(inputs), np.int64),
        many=np.zeros(width + 2, np.int64),
        numbered=np.arange(max(width, *inputs)),
        everyone=np.arange(width, dtype=np.uint32),
        ones=np.ones(width, np.float32),
    )


def table_of(program: Program) -> NDArray[np.int64]:
    """The layers, as the kernel sees them. The first weight lies behind all others."""
    table = np.zeros((len(program.layers), kernel.VALUES + 1), np.int64)
    place = 0
    for row, layer in zip(table, program.layers, strict=True):
        stride = padded(layer.outputs)
        row[kernel.INPUTS], row[kernel.OUTPUTS], row[kernel.STRIDE] = layer.inputs, layer.outputs, stride
        row[kernel.TILE] = stride if layer is program.layers[-1] else min(stride, _TILE)
        row[kernel.BIASED], row[kernel.ACTIVATION] = layer.bias, _ACTIVATIONS[layer.activation]
        row[kernel.BIAS], place = place, place + stride
    for number in (*range(1, len(table)), 0):
        table[number, kernel.WEIGHT] = place
        place += int(table[number, kernel.INPUTS] * table[number, kernel.STRIDE])
    return table


def _size(layers: NDArray[np.int64]) -> int:
    """How many numbers all weights take."""
    return int(layers[0, kernel.WEIGHT] + layers[0, kernel.INPUTS] * layers[0, kernel.STRIDE])


def _lines(size: int) -> NDArray[np.float32]:
    """Zeros that begin where a line of the cache does, as torch sees to."""
    zeros: NDArray[np.float32] = torch.zeros(size).numpy()
    return zeros


def arranged(program: Program, layers: NDArray[np.int64], weights: Tensor) -> NDArray[np.float32]:
    """Flat weights as they lie in memory for training."""
    found = _lines(_size(layers))
    parts = iter(weights.split_with_sizes(sizes_of(program)))
    for layer, row in zip(program.layers, layers, strict=True):
        _arrange(next(parts).view(layer.outputs, -1), row, found)
        if layer.bias:
            found[row[kernel.BIAS] :][: layer.outputs] = next(parts).numpy()
    return found


def _arrange(weight: Tensor, row: NDArray[np.int64], arranged: NDArray[np.float32]) -> None:
    """Put a weight [outputs, inputs] where a row of the table says, tile after tile."""
    outputs, inputs = weight.shape
    for begin in range(0, row[kernel.STRIDE], row[kernel.TILE]):
        width = min(row[kernel.TILE], row[kernel.STRIDE] - begin)
        tile = arranged[row[kernel.WEIGHT] + begin * inputs :][: inputs * width].reshape(inputs, width)
        tile[:, : outputs - begin] = weight[begin : begin + width].t().numpy()


def sizes_of(program: Program) -> list[int]:
    """The sizes of the parameters in the flat vector."""
    both = ((layer.inputs * layer.outputs, layer.outputs)[: 1 + layer.bias] for layer in program.layers)
    return [size for several in both for size in several]
