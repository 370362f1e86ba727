"""One record at a time through the layers before the first Linear one: their outputs, and their gradients."""

import numpy as np

from incrowd.learning.paths.fast import passes
from incrowd.learning.paths.fast.memory import (
    CHANNELS,
    COLUMNS,
    GRADIENTS,
    IN,
    OUT,
    OUT_COLUMNS,
    OUT_ROWS,
    OUTPUTS,
    ROWS,
    VELOCITY,
    Numbers,
    Space,
)
from incrowd.learning.paths.fast.rows import compiled, inner

_ONE = np.float32(1)


@inner
def _turn(of: Numbers, to: Numbers, rows: int, columns: int) -> None:
    """Write a matrix's columns as rows."""
    for r in range(rows):
        for c in range(columns):
            to[c * rows + r] = of[r * columns + c]


@compiled
def outputs(s: Space, record: Numbers, out: Numbers) -> None:
    """What the layers make of a record, both with channels first."""
    first, last = s.table[0], s.table[len(s.table) - 1]
    _turn(record, s.floats[first[IN] :], first[CHANNELS], first[ROWS] * first[COLUMNS])
    passes.forward(s, 1, 0)
    _turn(s.floats[last[OUT] :], out, last[OUT_ROWS] * last[OUT_COLUMNS], last[OUTPUTS])


@compiled
def gradients(s: Space, back: Numbers, out: Numbers) -> None:
    """The gradients of the parameters, as the weights lie, from those of the outputs, channels first."""
    last, target = s.table[len(s.table) - 1], s.integers[VELOCITY]
    _turn(back, s.floats[last[OUT] + s.integers[GRADIENTS] :], last[OUTPUTS], last[OUT_ROWS] * last[OUT_COLUMNS])
    for k in range(len(out)):
        s.floats[target + k] = 0
    passes.backward(s, 1, 0, target, _ONE)
    for k in range(len(out)):
        out[k] = s.floats[target + k]
