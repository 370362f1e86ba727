"""What random words propose, and what is left of it: the slow twin of `proposal_loops`, equal to the last bit.

Of a word's 64 bits 16 choose a slot, one is the sign, and the rest begins a decision and ends in a place in a cell:
`incrowd.privacy.mechanism.grid` says what for.
"""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers

SlotCells = NDArray[np.uint16]

SLOTS = 2**16
SPARE = 47
"""Bits of a word that choose neither slot nor sign."""


def look(bits: Integers, cell: SlotCells, sure: Integers, width_bits: int) -> tuple[Integers, Integers]:
    """What each word proposes, and which proposals have to be decided by more than these bits.

    `cell` has the cell of every slot; `sure` says of a cell below what a decision keeps any of its numbers.
    """
    cells = cell[bits >> 48 & (SLOTS - 1)]
    rest = bits & (2**SPARE - 1)
    magnitude = cells.astype(np.int64)
    magnitude <<= width_bits
    magnitude += rest & (2**width_bits - 1)
    rest >>= width_bits
    undecided = np.flatnonzero(rest >= sure[cells])
    magnitude ^= -(bits >> 47 & 1)  # m or -1 - m: mirrored around -1/2
    return magnitude, undecided


def without(values: Integers, refused: Integers) -> Integers:
    """The values in their order, but those in the places that are refused, which rise."""
    kept: Integers = np.delete(values, refused)
    return kept
