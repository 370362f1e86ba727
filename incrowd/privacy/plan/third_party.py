"""Third-party clips and samplers as parts of a plan: incrowd holds each to its bound, and statements name it.

A plan has the name of an extension, never its code: the form of a plan stays plain data, and a machine without the
extension refuses it.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent

from incrowd import _extensions, _validate
from incrowd._random import Floats, Integers, KeyedStream, Stream
from incrowd.errors import ConfigError
from incrowd.privacy.account.events import canonical
from incrowd.privacy.mechanism.clipping import FixedClip

_PROBE = bytes(32)
"""The public key of the stream with which a sampler is tried."""


@dataclass(frozen=True, kw_only=True)
class ThirdPartyClip:
    """A registered clip function (`incrowd.types.ClipFunction`) with its bound.

    Guarantee: `incrowd.privacy.mechanism.clipping.clip_rows` measures every row that the function returns, and scales
    it down to `clip_norm`. The function sees one contribution at a time, as a copy. If it returns other numbers than
    before for the same synthetic contribution, it is refused: it may remember contributions.
    """

    private: ClassVar[bool] = True
    name: str
    clip_norm: float

    def __post_init__(self) -> None:
        FixedClip(clip_norm=self.clip_norm)  # which refuses impossible bounds
        self._check()

    def clip(self, rows: Floats) -> Floats:
        """See `Clip.clip`."""
        clipped = [self._row(row) for row in rows]
        self._check()
        return np.stack(clipped) if clipped else rows

    def _row(self, row: Floats) -> Floats:
        function = _extensions.found("clips", self.name, field="clip")
        clipped: Floats = np.array(function(row[None].copy(), self.clip_norm), dtype=np.float64)  # never its own buffer
        if clipped.shape != (1, row.size):
            raise ConfigError(field="clip", value=self.name, remedy="return as many rows and numbers as it is given")
        return clipped.reshape(-1)

    def _check(self) -> None:
        made_up = 3 * self.clip_norm * np.linspace(-1, 1, 8)
        _unchanged(("clip", self.name, self.clip_norm), self._row(made_up), field="clip", name=self.name)


@dataclass(frozen=True, kw_only=True)
class ThirdPartySampling:
    """The sampling of a plan by a registered sampler (`incrowd.types.Sampler`)."""

    name: str

    @property
    def __name__(self) -> str:
        """The name in statements."""
        return f"third-party sampler {self.name}"


@dataclass(frozen=True, kw_only=True)
class ThirdPartySampler:
    """A registered sampler over so many clients, with the plan's expected cohort: the public denominator.

    Guarantee: a cohort has existing clients, once each, as many as its event states. Its event has the noise that the
    plan draws: the sampler states probabilities alone, and these are not verified (`incrowd.testing.check_sampler`).
    It is refused if it gives another cohort for the same stream and round: it may look at more than these, say at the
    clients that answered.
    """

    name: str
    clients: int
    cohort: float

    def __post_init__(self) -> None:
        _validate.count(clients=self.clients)
        _validate.positive(cohort=self.cohort)
        _validate.at_most(self.clients, "the number of clients", cohort=self.cohort)
        _extensions.found("samplers", self.name, field="sampling")

    @cached_property
    def _sampler(self) -> Any:
        return _extensions.found("samplers", self.name, field="sampling")

    @property
    def relation(self) -> NeighboringRelation:
        """See `Sampler.relation`."""
        return NeighboringRelation(self._sampler.relation)

    @property
    def sensitivity_in_clips(self) -> int:
        """See `Sampler.sensitivity_in_clips`."""
        return 2 if self.relation is NeighboringRelation.REPLACE_ONE else 1

    @property
    def expected_cohort(self) -> float:
        """See `Sampler.expected_cohort`."""
        return float(self.cohort)

    def event(self, noise_multiplier: float) -> DpEvent:
        """See `Sampler.event`."""
        event = self._sampler.event(noise_multiplier, clients=self.clients, cohort=self.cohort)
        gaussian, sizes = GaussianDpEvent(noise_multiplier / self.sensitivity_in_clips), None
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
        _unchanged(tried, self._drawn(_PROBE, 0), field="sampling", name=self.name)
        if not np.array_equal(cohort, self._drawn(key, round)):
            raise ConfigError(field="sampling", value=self.name, remedy=_REMEMBERS)
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


_REMEMBERS = "it gives another result for the same input: let it depend on its arguments alone"
_FIRST: dict[tuple[str, str, Any], Any] = {}


def _unchanged(key: tuple[str, str, Any], found: Floats | Integers, *, field: str, name: str) -> None:
    """Refuse code whose result for a synthetic input is not what it was when this process first tried it."""
    if not np.array_equal(_FIRST.setdefault(key, found), found, equal_nan=True):
        raise ConfigError(field=field, value=name, remedy=_REMEMBERS)
