"""The batches of clients: each client draws from a stream of its own, so that no other client matters."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Integers, Randomness
from incrowd.settings.local import Local


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of one client, or of several side by side.

    ``positions[..., t, :]`` are the places, in a client's own list, of the examples of step t, of which the first
    ``sizes[..., t]`` count; the others are padding, and repeat one that counts. A size of 0 is no step at all.
    """

    positions: Integers
    sizes: Integers

    @property
    def steps(self) -> int:
        """The number of steps."""
        return int(self.positions.shape[-2])

    @property
    def width(self) -> int:
        """The number of examples in the largest batch."""
        return int(self.positions.shape[-1])


def draw_batches(examples: int, local: Local, *, randomness: Randomness, round: int, client: int) -> Batches:
    """The batches of one client in one round.

    Guarantee: every example comes once in every epoch; the batches depend on nothing but the randomness, round, client
    and number of examples.
    """
    template, sizes = _template(examples, local.batch_size, local.batches)
    if local.shuffle and len(sizes) > 1:
        bits = randomness.stream("batches", round, client).bits(local.epochs * examples)
        order = np.argsort(bits.reshape(local.epochs, examples), axis=1)
    else:
        order = np.broadcast_to(np.arange(examples), (local.epochs, examples))
    positions = order[:, template].reshape(-1, template.shape[1])
    return Batches(positions=positions, sizes=np.tile(sizes, local.epochs))


def side_by_side(several: Sequence[Batches]) -> Batches:
    """The batches of clients with equally many examples."""
    return Batches(
        positions=np.stack([one.positions for one in several]), sizes=np.stack([one.sizes for one in several])
    )


@lru_cache(maxsize=1024)
def _template(examples: int, batch_size: int | None, batches: int | None) -> tuple[NDArray[np.intp], Integers]:
    """The places in a shuffled list of each batch's examples, the last repeated to fill a row; the batches' sizes."""
    if batches is None:
        starts = np.arange(0, examples, batch_size or examples)
    else:
        starts = np.linspace(0, examples, min(batches, examples) + 1).astype(np.int64)[:-1]
    ends = np.append(starts[1:], examples)
    sizes = ends - starts
    return np.minimum(starts[:, None] + np.arange(sizes.max()), ends[:, None] - 1), sizes
