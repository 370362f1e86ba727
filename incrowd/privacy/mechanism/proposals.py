"""What random words propose, what is left of it, and a sum with it: the slow twin of `proposal_loops`, to the last bit.

Of a word's 64 bits 16 choose a slot, one is the sign, and the rest begins a decision and ends in a place in a cell:
`incrowd.privacy.mechanism.grid` says what for.
"""

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Floats, Integers

SlotCells = NDArray[np.uint16]

SLOTS = 2**16
SPARE = 47
"""Bits of a word that choose neither slot nor sign."""


def look(bits: Integers, cells: tuple[SlotCells, Integers, int], values: Integers) -> NDArray[np.int32]:
    """Write down what each word proposes. Gives the places of proposals that more than these bits decide about.

    `cells`: the cell of every slot; below what a decision keeps any number of a cell; the bits of a cell's width.
    """
    cell, sure, width_bits = cells
    its = cell[bits >> 48 & (SLOTS - 1)]
    rest = bits & (2**SPARE - 1)
    magnitude = np.left_shift(its, width_bits, out=values, dtype=np.int64)
    magnitude += rest & (2**width_bits - 1)
    rest >>= width_bits
    undecided = np.flatnonzero(rest >= sure[its])
    magnitude ^= -(bits >> 47 & 1)  # m or -1 - m: mirrored around -1/2
    return undecided.astype(np.int32)


def added(total: Floats, in_a_unit: float, noise: Integers) -> Integers:
    """Numbers in whole steps, so many in a unit, to the nearest (halves to the even one), plus whole steps of noise."""
    steps = np.multiply(total, in_a_unit)
    whole = np.rint(steps, out=steps).astype(np.int64)
    whole += noise
    return whole


def close(values: Integers, refused: NDArray[np.int32]) -> int:
    """Close the gaps that values in refused places leave, which rise; how many values are left, in their order."""
    kept = np.delete(values, refused)
    values[: len(kept)] = kept
    return len(kept)
