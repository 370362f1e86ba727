"""One record at a time through the layers before the first Linear one: their outputs, and their gradients."""

import numpy as np

from incrowd.learning.backends.fast import memory as m
from incrowd.learning.backends.fast import passes
from incrowd.learning.backends.fast.memory import Numbers, Space
from incrowd.learning.backends.fast.rows import compiled, inner

_ONE = np.float32(1)


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
    passes.forward(s, 1, 0)
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
    passes.backward(s, 1, 0, target, _ONE)
    for k in range(len(out)):
        out[k] = s.floats[target + k]
