"""Who takes part in which rounds: samplers, schedules of cohorts and noise, and declared numbers, all public.

A sampler says how clients are chosen, and not which were. It turns a noise multiplier (noise on the sum, in clip bounds
C) into the event that an accountant prices under the sampler's neighbouring relation. Where a client is replaced, sums
differ by 2C (`apart`). To zero out a client is to let it contribute nothing, in its place.

Declared numbers of clients and records are never counted: a count reveals a single member, since a probability or a
number of steps that follows it differs for a neighbouring data set. The owner compares the declared number with the
data once, before anything is spent. Of a third-party sampler or clip a plan has the name, never the code.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent

from incrowd import _extensions, _validate
from incrowd._random import Integers, KeyedStream, Stream
from incrowd.errors import ConfigError
from incrowd.privacy.account.events import canonical

_PROBE = bytes(32)
"""The public key of the stream with which a third-party sampler is tried."""


def apart(relation: NeighboringRelation) -> int:
    """By how many clip bounds the sums of neighbours differ at most."""
    return 2 if relation is NeighboringRelation.REPLACE_ONE else 1


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """How the cohort of one round is chosen among so many clients, and what that is worth; both numbers are public."""

    relation: ClassVar[NeighboringRelation]
    """The neighbouring relation under which `event` is priced."""

    clients: int
    cohort: float

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        _validate.positive(cohort=self.cohort)
        _validate.at_most(self.clients, "the number of clients", cohort=self.cohort)

    @property
    def expected_cohort(self) -> float:
        """The public denominator of the round's mean, whatever cohort is realised."""
        return float(self.cohort)

    @abstractmethod
    def event(self, noise_multiplier: float) -> DpEvent:
        """The cost of one round, where N(0, (noise_multiplier * C)^2) is added to the sum."""

    @abstractmethod
    def sample(self, stream: Stream, *, round: int) -> Integers:
        """The cohort of a round: client numbers in rising order. Private: never log it."""


@dataclass(frozen=True, kw_only=True)
class Poisson(Sampler):
    """Each client takes part with the same probability, independently of all others.

    Guarantee: participations are independent; the executed probability is `sampling_prob` rounded down to a multiple of
    2^-64; neighbours differ by one client added or removed, which changes no other client's coin: `clients` and
    `cohort` are declared, and public, and give the probability and the denominator for any clients that are there.
    """

    relation: ClassVar = NeighboringRelation.ADD_OR_REMOVE_ONE

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
class FixedSize(Sampler):
    """A uniformly random set of exactly `cohort` clients.

    Guarantee: every set of that size is equally likely, but for ties of probability below clients^2 / 2^65; neighbours
    differ by one client replaced, which can change the sum by two clip bounds, and the event says so.
    """

    relation: ClassVar = NeighboringRelation.REPLACE_ONE

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cohort != int(self.cohort):
            raise ConfigError(field="cohort", value=self.cohort, remedy="a fixed-size cohort is a whole number")

    def event(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian of half the multiplier (the sensitivity is 2C) on a sample without replacement."""
        gaussian = GaussianDpEvent(noise_multiplier / apart(self.relation))
        if self.cohort == self.clients:
            return gaussian
        return SampledWithoutReplacementDpEvent(self.clients, int(self.cohort), gaussian)

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        order = np.argsort(stream.bits(self.clients), kind="stable")
        return np.sort(order[: int(self.cohort)])


@dataclass(frozen=True, kw_only=True)
class Everyone(Sampler):
    """Every client takes part in every round.

    Guarantee: there is no amplification by sampling, and none is claimed; neighbours differ by one client that
    contributes nothing and keeps its number: how many there are is public.
    """

    relation: ClassVar = NeighboringRelation.REPLACE_SPECIAL

    cohort: float = math.inf  # all clients

    def __post_init__(self) -> None:
        if self.cohort == math.inf:
            object.__setattr__(self, "cohort", float(self.clients))
        if self.cohort != self.clients:
            raise ConfigError(field="cohort", value=self.cohort, remedy=f"everyone means {self.clients} clients")
        super().__post_init__()

    def event(self, noise_multiplier: float) -> DpEvent:
        """A plain Gaussian."""
        return GaussianDpEvent(noise_multiplier)

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        return np.arange(self.clients)


@dataclass(frozen=True, kw_only=True)
class Cyclic(Sampler):
    """Clients take turns: the client at place p takes part in the rounds t with t = p modulo `groups`.

    A place is public, and the client's own: a line of a declared roster, or a number made of its name (`named_places`).
    As a position among those who are there, one absent client would move all after it to other groups.

    Guarantee: two participations of one client are exactly `groups` rounds apart for any other clients, which is what
    correlated noise relies on; nothing is random, so there is no amplification by sampling and none is claimed.
    Neighbours differ by one client that contributes nothing; one that is absent contributes nothing in its own rounds.
    Cohorts may differ in size; the denominator is the same in all rounds.
    """

    relation: ClassVar = NeighboringRelation.REPLACE_SPECIAL

    def __post_init__(self) -> None:
        if self.cohort != self.clients / self.groups:
            remedy = f"clients take turns in whole groups: give {self.clients} divided by a whole number"
            raise ConfigError(field="cohort", value=self.cohort, remedy=remedy)
        super().__post_init__()

    @property
    def groups(self) -> int:
        """The number of groups, of which one takes part in each round."""
        return max(1, round(self.clients / max(1.0, self.cohort)))

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


@dataclass(frozen=True, kw_only=True)
class ThirdPartySampling:
    """The sampling of a plan by a registered sampler (`incrowd.types.Sampler`)."""

    name: str

    @property
    def __name__(self) -> str:
        """The name in statements."""
        return f"third-party sampler {self.name}"

    def __call__(self, *, clients: int, cohort: float) -> "ThirdPartySampler":
        """The sampler of a round."""
        return ThirdPartySampler(name=self.name, clients=clients, cohort=cohort)


@dataclass(frozen=True, kw_only=True)
class ThirdPartySampler(Sampler):
    """A registered sampler over so many clients, with the plan's expected cohort: the public denominator.

    Guarantee: a cohort has existing clients, once each, as many as its event states. Its event has the noise that the
    plan draws: the sampler states probabilities alone, and these are not verified (`incrowd.testing.check_sampler`).
    It is refused if it gives another cohort for the same stream and round: it may look at more than these, say at the
    clients that answered.
    """

    name: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _extensions.found("samplers", self.name, field="sampling")

    @cached_property
    def _sampler(self) -> Any:
        return _extensions.found("samplers", self.name, field="sampling")

    @property
    def relation(self) -> NeighboringRelation:
        """See `Sampler.relation`."""
        return NeighboringRelation(self._sampler.relation)

    def event(self, noise_multiplier: float) -> DpEvent:
        """See `Sampler.event`."""
        event = self._sampler.event(noise_multiplier, clients=self.clients, cohort=self.cohort)
        gaussian, sizes = GaussianDpEvent(noise_multiplier / apart(self.relation)), None
        if isinstance(event, SampledWithoutReplacementDpEvent):
            sizes = event.source_dataset_size, event.sample_size
        stated = event.event if isinstance(event, PoissonSampledDpEvent | SampledWithoutReplacementDpEvent) else event
        if canonical(stated) != canonical(gaussian) or sizes not in (None, (self.clients, self.cohort)):
            remedy = (
                f"its event has to be {gaussian}, alone or on a sample of {self.cohort:g} of {self.clients} clients"
            )
            raise ConfigError(field="sampling", value=self.name, remedy=remedy)
        return event

    def sample(self, stream: Stream, *, round: int) -> Integers:
        """See `Sampler.sample`."""
        key = stream.bits(4).tobytes()
        tried = "sampling", self.name, (self.clients, self.cohort)
        cohort = self._drawn(key, round)
        _extensions.check_unchanged(tried, self._drawn(_PROBE, 0), field="sampling")
        if not np.array_equal(cohort, self._drawn(key, round)):
            raise ConfigError(field="sampling", value=self.name, remedy=_extensions.REMEMBERS)
        return cohort

    def _drawn(self, key: bytes, round: int) -> Integers:
        found = self._sampler.sample(KeyedStream(key), clients=self.clients, cohort=self.cohort, round=round)
        cohort = np.array(found)  # never the sampler's own buffer
        fixed = isinstance(self.event(1.0), SampledWithoutReplacementDpEvent)
        if (
            cohort.ndim != 1
            or (cohort.size and not np.issubdtype(cohort.dtype, np.integer))
            or not np.array_equal(np.unique(cohort), cohort)
            or ((cohort < 0) | (cohort >= self.clients)).any()
            or (fixed and cohort.size != self.cohort)
        ):
            remedy = "return the numbers of existing clients, rising and once each, as many as its event states"
            raise ConfigError(field="sampling", value=self.name, remedy=remedy)
        return cohort.astype(np.int64)


def named_places(names: Sequence[str]) -> Integers:
    """A public place for each name: 48 bits of its SHA-256, which no other name changes."""
    digests = (hashlib.sha256(f"incrowd place: {name}".encode()).digest() for name in names)
    return np.array([int.from_bytes(digest[:6]) for digest in digests], np.int64)


def fewest(declared: int) -> int:
    """The fewest that a declared number allows, nine tenths of it, so that it can be rounded up to two digits."""
    return -(-9 * declared // 10)


def check_declared(declared: int, *, held: int, field: str, what: str) -> None:
    """Refuse a declared number that is not what it is declared for.

    Guarantee: the refusal does not say how many there are, nor whether they are too few or too many. Data sets between
    `fewest` and the declared number are treated alike. The refusal itself depends on private data: it is for their
    owner, and comes before anything is spent.
    """
    if not fewest(declared) <= held <= declared:
        raise ConfigError(
            field=field,
            value=declared,
            remedy=f"{what} are fewer or more than that allows, which is from {fewest(declared)} to {declared}; how "
            "many is for their owner alone to see: declare a number that they never exceed, rounded up to two digits",
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """A number of equal rounds: their cohort and the multiplier of their noise.

    Before calibration the noise multipliers of a schedule are relative: calibration scales all of them by one factor.
    """

    rounds: int
    cohort: float
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds)
        _validate.positive(cohort=self.cohort, noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True)
class Schedule:
    """The rounds of a run, as steps of equal rounds; equal steps side by side become one."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if not self.steps:
            raise ConfigError(field="steps", value=self.steps, remedy="give at least one round")
        merged: list[Step] = []
        for step in self.steps:
            if merged and replace(merged[-1], rounds=step.rounds) == step:
                merged[-1] = replace(step, rounds=merged[-1].rounds + step.rounds)
            else:
                merged.append(step)
        object.__setattr__(self, "steps", tuple(merged))

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return sum(step.rounds for step in self.steps)

    @property
    def communications(self) -> float:
        """How many contributions are expected over all rounds."""
        return sum(step.rounds * step.cohort for step in self.steps)

    def at(self, round: int) -> Step:
        """The step that a round (from 0) belongs to."""
        place = round
        for step in self.steps:
            if 0 <= place < step.rounds:
                return step
            place -= step.rounds
        raise ConfigError(field="round", value=round, remedy=f"give a round from 0 to {self.rounds - 1}")

    def scaled(self, factor: float) -> "Schedule":
        """The same schedule with every noise multiplier times a factor."""
        return Schedule(tuple(replace(step, noise_multiplier=factor * step.noise_multiplier) for step in self.steps))


def constant(*, rounds: int, cohort: float) -> Schedule:
    """The same cohort and noise in every round."""
    return Schedule((Step(rounds=rounds, cohort=cohort),))


def growing(*, rounds: int, first_cohort: float, last_cohort: float, steps: int = 5) -> Schedule:
    """A cohort m_t that grows while noise_t^2 / m_t stays constant (Geyer, Klein, Nabi 2017, section 3).

    Early updates need few clients to point the right way and late ones need many; at a constant ratio the distortion of
    the mean changes only through m_t. Cohorts are whole numbers on a geometric scale; rounds are split as evenly as
    possible.
    """
    _validate.count(rounds=rounds, steps=steps)
    _validate.positive(first_cohort=first_cohort, last_cohort=last_cohort)
    levels = min(rounds, steps)
    cohorts = np.round(np.geomspace(first_cohort, last_cohort, levels)).clip(min=1)
    lengths = [len(part) for part in np.array_split(np.arange(rounds), levels)]
    return Schedule(
        tuple(
            Step(rounds=length, cohort=float(cohort), noise_multiplier=math.sqrt(cohort / cohorts[-1]))
            for length, cohort in zip(lengths, cohorts, strict=True)
        )
    )


def preceded(schedule: Schedule, *, share: float) -> Schedule:
    """The schedule after one more round, with the first cohort, that gets a share of the total precision: of the sum of
    1 / z_t^2 over all rounds.
    """
    _validate.fraction(share=share)
    said = sum(step.rounds / step.noise_multiplier**2 for step in schedule.steps)
    noise = math.sqrt((1 - share) / (share * said))
    return Schedule((Step(rounds=1, cohort=schedule.at(0).cohort, noise_multiplier=noise), *schedule.steps))
