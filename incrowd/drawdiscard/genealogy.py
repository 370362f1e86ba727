"""Which update descends from which: all that a simulation needs to know before it computes anything.

The coins of a server do not look at weights, so they can be tossed beforehand. An update whose instance is overwritten
before it was drawn leaves no trace, nor does one whose descendants all end like that: in the long run, all but one in k
(Pihur et al. 2018, lemma 2). Going back from the instances that are looked at, only their ancestors have to be
computed. With the same noise for the same update, the outcome is the same as if everything had been.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from incrowd import _validate
from incrowd._random import Integers, Randomness
from incrowd.drawdiscard.pool import Picks, check_share

NOWHERE = -1
"""In place of the instance that an update replaced: it was thrown away."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Coins:
    """Of each update, in the order of arrival: the instance it drew, the one it replaced, and how many came before.

    `seen` is the number of updates that had arrived when it drew.
    """

    instances: int
    drawn: Integers
    replaced: Integers
    seen: Integers
    merge: float = 1.0

    def __post_init__(self) -> None:
        check_share(self.merge)

    @property
    def updates(self) -> int:
        """How many updates there are."""
        return len(self.drawn)


def toss(purpose: str, choices: int, size: int, randomness: Randomness) -> Integers:
    """Fair choices, the same ones as a pool under this randomness makes one by one."""
    blocks = range(0, size, Picks.BLOCK)
    bits = [randomness.stream(purpose, number).bits(Picks.BLOCK) for number in range(len(blocks))]
    joined = np.concatenate([*bits, np.empty(0, np.uint64)])[:size]
    return (joined % np.uint64(choices)).astype(np.int64)


def draw_and_discard(
    *, instances: int, updates: int, randomness: Randomness, in_flight: int = 1, merge: float = 1.0
) -> Coins:
    """Each update draws an instance and replaces another, both at random.

    With one device in flight, each draws after all earlier ones have arrived. With several, a random one of them
    arrives next, and at the same moment another device draws.
    """
    _validate.count(instances=instances, updates=updates, in_flight=in_flight)
    return Coins(
        instances=instances,
        drawn=toss("draw", instances, updates, randomness),
        replaced=toss("discard", instances, updates, randomness),
        seen=_seen(updates, in_flight, randomness),
        merge=merge,
    )


def same_instance(*, instances: int, updates: int, randomness: Randomness, merge: float = 1.0) -> Coins:
    """Each update replaces the instance that it drew; one after the other."""
    _validate.count(instances=instances, updates=updates)
    drawn = toss("draw", instances, updates, randomness)
    return Coins(instances=instances, drawn=drawn, replaced=drawn, seen=np.arange(updates), merge=merge)


def accept_one_in(share: int, *, updates: int, randomness: Randomness) -> Coins:
    """A single instance; an update replaces it with a probability of one in `share`, and is thrown away otherwise."""
    _validate.count(share=share, updates=updates)
    accepted = toss("accept", share, updates, randomness) == 0
    nothing = np.zeros(updates, np.int64)
    return Coins(instances=1, drawn=nothing, replaced=np.where(accepted, nothing, NOWHERE), seen=np.arange(updates))


def _seen(updates: int, in_flight: int, randomness: Randomness) -> Integers:
    """Each arrival frees a random seat, whose next device draws at once: it will have seen what had arrived by then."""
    if in_flight == 1:
        return np.arange(updates)
    seats = toss("arrival", in_flight, updates, randomness)
    by_seat = np.argsort(seats, kind="stable")
    first_of_seat = np.diff(seats[by_seat], prepend=-1) != 0
    seen = np.empty(updates, np.int64)
    seen[by_seat] = np.where(first_of_seat, 0, np.roll(by_seat, 1) + 1)
    return seen


@dataclass(frozen=True, eq=False)
class Genealogy:
    """The descent of all versions of the instances: version i is instance i at the start, k + t is what update t made.

    A moment is a number of updates that have arrived.
    """

    coins: Coins
    moments: Sequence[int]

    def __post_init__(self) -> None:
        _validate.natural(**{f"moments[{place}]": moment for place, moment in enumerate(self.moments)})
        for moment in self.moments:
            _validate.at_most(self.coins.updates, "the number of updates", moment=moment)

    def holders(self, instances: Integers, moments: Integers) -> Integers:
        """The versions that these instances were, after so many updates had arrived."""
        versions = instances.copy()
        for instance, writes in enumerate(self._writes):
            asked = np.flatnonzero(instances == instance)
            last = np.searchsorted(writes, moments[asked]) - 1
            written = last >= 0
            versions[asked[written]] = self.coins.instances + writes[last[written]]
        return versions

    @cached_property
    def parents(self) -> Integers:
        """Of each update, the version that its device drew."""
        return self.holders(self.coins.drawn, self.coins.seen)

    @cached_property
    def partners(self) -> Integers:
        """Of each update, the version that it found in its place."""
        return self.holders(self.coins.replaced, np.arange(self.coins.updates))

    @cached_property
    def looked_at(self) -> Integers:
        """The versions in all instances at all moments, [moments, k]."""
        k = self.coins.instances
        holders = self.holders(np.tile(np.arange(k), len(self.moments)), np.repeat(np.array(self.moments, np.int64), k))
        return holders.reshape(-1, k)

    @cached_property
    def needed(self) -> Integers:
        """The updates on which the instances at the moments depend, in the order of arrival."""
        k = self.coins.instances
        ancestors = [self.parents, self.partners] if self.coins.merge < 1 else [self.parents]
        marked = bytearray(k + self.coins.updates)
        waiting = self.looked_at.ravel().tolist()
        while waiting:
            version = waiting.pop()
            if not marked[version]:
                marked[version] = 1
                if version >= k:
                    waiting += [int(versions[version - k]) for versions in ancestors]
        return np.flatnonzero(np.frombuffer(marked, np.uint8)[k:])

    @cached_property
    def _writes(self) -> list[Integers]:
        """Of each instance, the updates that replaced it."""
        return [np.flatnonzero(self.coins.replaced == instance) for instance in range(self.coins.instances)]
