"""What `proposals` does, compiled: one pass over the words, and one over what they proposed."""

import numpy as np

from incrowd._machine_code import compiled
from incrowd._random import Integers
from incrowd.privacy.mechanism.proposals import SlotCells

_SLOTS, _SPARE = 2**16, 47  # as in `proposals`: machine code that is kept on disk follows this file alone


@compiled
def look(bits: Integers, cell: SlotCells, sure: Integers, width_bits: int) -> tuple[Integers, Integers]:
    """See `proposals.look`."""
    place, rest_bits = (np.int64(1) << width_bits) - 1, (np.int64(1) << _SPARE) - 1
    values, undecided = np.empty(bits.size, np.int64), np.empty(bits.size + 1, np.int64)
    found = 0
    for number in range(bits.size):
        word = bits[number]
        its = np.int64(cell[word >> 48 & (_SLOTS - 1)])
        rest = word & rest_bits
        values[number] = ((its << width_bits) + (rest & place)) ^ -(word >> 47 & 1)
        undecided[found] = number  # overwritten by the next, unless this one counts: no branch to guess
        found += rest >> width_bits >= sure[its]
    return values, undecided[:found]


@compiled
def without(values: Integers, refused: Integers) -> Integers:
    """See `proposals.without`."""
    kept = np.empty(values.size - refused.size, np.int64)
    begin = 0
    for number in range(refused.size + 1):
        end = refused[number] if number < refused.size else values.size
        for place in range(begin, end):
            kept[place - number] = values[place]
        begin = end + 1
    return kept
