"""The inner loops of `incrowd.privacy.mechanism.grid`, compiled."""

import numpy as np
from numpy.typing import NDArray

from incrowd._machine_code import compiled
from incrowd._random import Floats, Integers
from incrowd.privacy.mechanism.grid import SlotCells

_SLOTS, _SPARE = 2**16, 47  # as in `grid`: machine code that is kept on disk follows this file alone


@compiled
def look(bits: Integers, cells: tuple[SlotCells, Integers, int], values: Integers) -> NDArray[np.int32]:
    """See `grid.look`."""
    cell, sure, width_bits = cells
    place, rest_bits = (np.int64(1) << width_bits) - 1, (np.int64(1) << _SPARE) - 1
    undecided = np.empty(bits.size + 1, np.int32)
    found = 0
    for number in range(bits.size):
        word = bits[number]
        its = np.int64(cell[word >> 48 & (_SLOTS - 1)])
        rest = word & rest_bits
        values[number] = ((its << width_bits) + (rest & place)) ^ -(word >> 47 & 1)
        undecided[found] = number  # overwritten by the next, unless this one counts: no branch to guess
        found += rest >> width_bits >= sure[its]
    return undecided[:found]


@compiled
def added(total: Floats, in_a_unit: float, noise: Integers) -> Integers:
    """See `grid.added`."""
    whole = np.empty(noise.size, np.int64)
    for place in range(noise.size):
        whole[place] = np.int64(np.rint(total[place] * in_a_unit)) + noise[place]
    return whole
