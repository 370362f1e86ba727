"""Samplers: the choice of the clients that take part in a round.

A sampler is public: its fields say how clients are chosen, and not which clients were. It knows its neighbouring
relation. It turns a noise multiplier (noise on the sum, in units of the clip bound C) into the event that an accountant
prices, so that the executed sampling is the accounted one.

To zero out a client is to let it contribute nothing, in its place: clients that are counted are not removed.

| sampler       | neighbouring relation    | sensitivity            | amplified by sampling |
| ------------- | ------------------------ | ---------------------- | --------------------- |
| Poisson       | add or remove a client   | C, of the sum          | yes                   |
| FixedSize     | replace a client         | 2C, of the sum         | yes                   |
| Everyone      | zero out a client        | C, of the sum          | no                    |
| Cyclic        | zero out a client        | C, of the sum          | no                    |
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent

from incrowd import _validate
from incrowd._random import Integers, Stream
from incrowd.errors import ConfigError


class Sampler(Protocol):
    """How the cohort of one round is chosen, and what that is worth."""

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation under which `event` is priced."""

    @property
    def sensitivity_in_clips(self) -> int:
        """By how many clip bounds two neighbouring sums can differ: 1 or 2."""

    @property
    def clients(self) -> int:
        """How many clients there are (public)."""

    @property
    def expected_cohort(self) -> float:
        """The public denominator of the round's mean, whatever cohort is realised."""

    def event(self, noise_multiplier: float) -> DpEvent:
        """The cost of one round, where N(0, (noise_multiplier * C)^2) is added to the sum."""

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """The cohort of a round: client numbers in rising order. Private: never log it."""


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Each client takes part with the same probability, independently of all others.

    Guarantee: participations are independent; the executed probability is `sampling_prob` rounded down to a multiple of
    2^-64; neighbours differ by one client added or removed, which changes no other client's coin: `clients` and
    `cohort` are declared, and public, and give the probability and the denominator for any clients that are there.

    Edge cases: the cohort may be empty; a cohort of all clients means that everyone takes part, without amplification.
    """

    clients: int
    cohort: float
    relation: ClassVar = NeighboringRelation.ADD_OR_REMOVE_ONE
    sensitivity_in_clips: ClassVar = 1

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        _validate.positive(cohort=self.cohort)
        _validate.at_most(self.clients, "the number of clients", cohort=self.cohort)

    @property
    def expected_cohort(self) -> float:
        """See `Sampler.expected_cohort`."""
        return float(self.cohort)

    @property
    def sampling_prob(self) -> float:
        """The probability that one client takes part in one round."""
        return self.cohort / self.clients

    def event(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian on a Poisson sample; a plain Gaussian when everyone takes part."""
        gaussian = GaussianDpEvent(noise_multiplier)
        return gaussian if self.sampling_prob == 1 else PoissonSampledDpEvent(self.sampling_prob, gaussian)

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        if self.sampling_prob == 1:
            return np.arange(self.clients)
        threshold = np.uint64(int(self.sampling_prob * 2**64))
        return np.flatnonzero(stream.bits(self.clients) < threshold)


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """A uniformly random set of exactly `cohort` clients.

    Guarantee: every set of that size is equally likely; neighbours differ by one client replaced, which can change the
    sum by two clip bounds, and the event says so.

    Edge cases: a cohort of all clients is priced without amplification. Two clients tie with probability below
    clients^2 / 2^65, in which case the lower-placed one is preferred.
    """

    clients: int
    cohort: int
    relation: ClassVar = NeighboringRelation.REPLACE_ONE
    sensitivity_in_clips: ClassVar = 2

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients, cohort=self.cohort)
        _validate.at_most(self.clients, "the number of clients", cohort=self.cohort)

    @property
    def expected_cohort(self) -> float:
        """See `Sampler.expected_cohort`."""
        return float(self.cohort)

    def event(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian of half the multiplier (the sensitivity is 2C) on a sample without replacement."""
        gaussian = GaussianDpEvent(noise_multiplier / self.sensitivity_in_clips)
        if self.cohort == self.clients:
            return gaussian
        return SampledWithoutReplacementDpEvent(self.clients, self.cohort, gaussian)

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        order = np.argsort(stream.bits(self.clients), kind="stable")
        return np.sort(order[: self.cohort])


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """Every client takes part in every round.

    Guarantee: there is no amplification by sampling, and none is claimed; neighbours differ by one client that
    contributes nothing and keeps its number: how many there are is public.
    """

    clients: int
    relation: ClassVar = NeighboringRelation.REPLACE_SPECIAL
    sensitivity_in_clips: ClassVar = 1

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)

    @property
    def expected_cohort(self) -> float:
        """See `Sampler.expected_cohort`."""
        return float(self.clients)

    def event(self, noise_multiplier: float) -> DpEvent:
        """A plain Gaussian."""
        return GaussianDpEvent(noise_multiplier)

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        return np.arange(self.clients)


@dataclass(frozen=True, kw_only=True)
class Cyclic:
    """Clients take turns: the client at place p takes part in the rounds t with t = p modulo `groups`.

    A place is public, and the client's own: a line of a declared roster, or a number made of its name (`named_places`).
    It is never a position among those who are there: one absent client would then move all who come after it to
    other groups, and the noise would have to hide all of them.

    Guarantee: two participations of one client are exactly `groups` rounds apart for any other clients, which is what
    correlated noise relies on; nothing is random, so there is no amplification by sampling and none is claimed.
    Neighbours differ by one client that contributes nothing; one that is absent contributes nothing in its own rounds.

    Edge cases: cohorts may differ in size, and by name any number of clients may share a turn; the denominator is the
    same in all rounds.
    """

    clients: int
    groups: int
    relation: ClassVar = NeighboringRelation.REPLACE_SPECIAL
    sensitivity_in_clips: ClassVar = 1

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients, groups=self.groups)
        _validate.at_most(self.clients, "the number of clients", groups=self.groups)

    @property
    def expected_cohort(self) -> float:
        """See `Sampler.expected_cohort`."""
        return self.clients / self.groups

    def event(self, noise_multiplier: float) -> DpEvent:
        """Refused: rounds with correlated noise are priced together, as one event of the whole run."""
        remedy = "use Everyone or Poisson for independent noise, or give Plan.event, the price of the whole run"
        raise ConfigError(field="sampling", value=type(self).__name__, remedy=remedy)

    def has_turn(self, place: int, *, round: int) -> bool:
        """Whether the client at a place takes part in a round: public, so that the client itself can tell."""
        return place % self.groups == round % self.groups

    def among(self, places: Integers, *, round: int) -> Integers:
        """The clients at these places that take part in a round: their numbers, in rising order."""
        return np.flatnonzero(places % self.groups == round % self.groups)

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        return np.arange(round % self.groups, self.clients, self.groups)


def named_places(names: Sequence[str]) -> Integers:
    """A public place for each name: 48 bits of its SHA-256, which no other name changes."""
    digests = (hashlib.sha256(f"incrowd place: {name}".encode()).digest() for name in names)
    return np.array([int.from_bytes(digest[:6]) for digest in digests], np.int64)
