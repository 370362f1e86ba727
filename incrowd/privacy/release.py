"""The one way from private contributions to a released number: clip -> sum -> charge -> noise.

A `PrivateRound` holds the running sum and does not show it. What can be had from it is one `Release`, and only after
the ledger has put the round's event on disk.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.errors import ConfigError, DataError, LedgerMismatch
from incrowd.privacy.clipping import Clip, MedianClip, QuantileClip, ScalingClip, clip_rows, part_norms
from incrowd.privacy.ledger import Ledger
from incrowd.privacy.noise import GaussianNoise
from incrowd.privacy.plan import Plan


class Chunk(Protocol):
    """Contributions that a batched engine keeps where its arrays live; only norms and sums cross over."""

    def norms(self, parts: tuple[int, ...] | None) -> Floats:
        """The L2 norm of each part of each contribution: a row a contribution, a column a part."""
        ...

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution, its parts times their factors; a factor of 0 adds nothing, not even of NaN."""
        ...

    def rows(self) -> NDArray[np.floating[Any]]:
        """The contributions themselves, one a row."""
        ...


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a simulation may look at, because no promise depends on it. Not private."""

    contributions: int
    dropped: int
    unclipped: int


@dataclass(frozen=True, kw_only=True)
class Release:
    """What leaves the server after one round: public from here on.

    `observed` is simulation only: it is None unless the randomness was seeded.
    """

    round: int
    mean: Floats
    clip_norm: float
    noise_std: float
    next_clip: Clip | MedianClip
    observed: Observed | None


class PrivateRun:
    """All rounds of one plan, over contributions of one size, paid from one ledger.

    Guarantee: the whole plan is reserved in the ledger before the first round; a round can be released once, in the
    plan's order, with the sampler, noise and denominator that the plan priced. Under seeded randomness a round that a
    crash cut off after its charge may be repeated, because it repeats the very same noise; under the operating system's
    it may not.

    Edge cases: a ledger without room for the plan refuses here, before anything is trained or spent.
    """

    def __init__(self, plan: Plan, *, ledger: Ledger, randomness: Randomness, size: int, label: str = "run") -> None:
        _validate.count(size=size)
        if ledger.relation is not plan.relation:
            raise LedgerMismatch(
                f"the plan's neighbouring relation is {plan.relation.name}, the ledger's is {ledger.relation.name}: "
                "open a ledger of the plan's relation"
            )
        self.plan = plan
        self.size = size
        self.randomness = randomness
        self._ledger = ledger
        self._reservation = ledger.reserve(plan.runs, label=label)

    @property
    def next_round(self) -> int:
        """The first round that has not been charged yet."""
        return self._ledger.reservation(self._reservation.id).charged

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients of a round. Private: they are told, and nobody else is."""
        return self.plan.round(number).sampler.draw(self.randomness.stream("sampling", number), round=number)

    def round(self, number: int, *, clip: Clip | MedianClip | None = None) -> "PrivateRound":
        """An empty sum for one round; `clip` is the previous release's `next_clip` (at first the plan's own)."""
        return PrivateRound(self, number, clip=self.plan.config.clip if clip is None else clip)

    def charge(self, number: int) -> None:
        """Write the round's event to the ledger; returns once it is on disk."""
        charged = self.next_round
        if number < charged and self.randomness.simulated:
            return
        if number != charged:
            raise ConfigError(
                field="round", value=number, remedy=f"the next round that the plan can pay for is {charged}"
            )
        event = self.plan.round(number).event
        self._ledger.charge(event, reservation=self._reservation.id, note={"round": number})


class PrivateRound:
    """One round's sum, on its way to being released.

    Guarantee: the sum is clipped contributions only, each at most once as given; the denominator is the plan's expected
    cohort and the noise is that of the bound that clipped, however many contributions came in; the event is on disk
    before the noise is drawn; afterwards the sum is gone.

    Edge cases: no contributions at all give noise; one that is not finite counts as zero; a second release, or a
    contribution after the release, is refused.
    """

    def __init__(self, run: PrivateRun, number: int, *, clip: Clip | MedianClip) -> None:
        self._run = run
        self._number = number
        self._plan = run.plan.round(number)
        self._clip = clip
        self._waiting: list[NDArray[Any]] = []
        self._total: Floats | None = np.zeros(run.size)
        self._contributions = self._dropped = self._unclipped = 0

    def add(self, rows: NDArray[Any]) -> None:
        """Take contributions in: one vector, or one a row."""
        rows = np.atleast_2d(rows)
        if rows.shape[1:] != (self._run.size,):
            raise DataError(f"a contribution of {rows.shape[1:]} numbers does not fit a run over {self._run.size}")
        if isinstance(self._clip, MedianClip):
            self._open_total()
            self._waiting.append(rows)
        else:
            self._take(self._clip, rows)

    def add_chunk(self, chunk: Chunk) -> None:
        """Take contributions in from a batched engine: only their norms and their scaled sum are computed."""
        clip = self._clip
        if not isinstance(clip, ScalingClip):
            self.add(chunk.rows())
            return
        norms = chunk.norms(clip.parts)
        lengths: Floats = np.hypot.reduce(norms, axis=1)
        finite = np.isfinite(lengths)
        factors = np.where(finite[:, None], clip.factors(np.where(finite[:, None], norms, 0.0)), 0.0)
        unclipped = finite & (lengths <= clip.clip_norm)
        self._count(len(norms), int((~finite).sum()), int(unclipped.sum()))
        chunk.add_to(self._open_total(), factors)

    def release(self) -> Release:
        """Charge the round, add its noise and give the mean away."""
        clip = self._settle()
        total = self._open_total()
        multiplier = self._plan.noise_multiplier
        if isinstance(clip, QuantileClip):
            multiplier = clip.update_multiplier(multiplier)
        noise = GaussianNoise(noise_multiplier=multiplier, clip_norm=clip.clip_norm)
        self._run.charge(self._number)
        self._total = None
        clients = self._plan.sampler.clients
        noised = noise.add(
            total, stream=self._run.randomness.stream("noise", self._number), contributions_bound=clients
        )
        observed = Observed(contributions=self._contributions, dropped=self._dropped, unclipped=self._unclipped)
        return Release(
            round=self._number,
            mean=noised / self._plan.sampler.expected_cohort,
            clip_norm=clip.clip_norm,
            noise_std=multiplier * clip.clip_norm,
            next_clip=self._next_clip(clip),
            observed=observed if self._run.randomness.simulated else None,
        )

    def _take(self, clip: Clip, rows: NDArray[Any]) -> None:
        clipped = clip_rows(clip, rows)
        self._count(len(rows), int(clipped.dropped.sum()), int(clipped.unclipped.sum()))
        self._open_total()[:] += clipped.rows.sum(axis=0)

    def _settle(self) -> Clip:
        """The clip of the round; a median is known only now, when all norms are."""
        if not isinstance(self._clip, MedianClip):
            return self._clip
        norms = [part_norms(rows.astype(np.float64), None)[:, 0] for rows in self._waiting]
        clip = self._clip.fit(np.concatenate([np.empty(0), *norms]))
        for rows in self._waiting:
            self._take(clip, rows)
        self._waiting = []
        return clip

    def _next_clip(self, clip: Clip) -> Clip | MedianClip:
        """The next round's clip; a quantile moves by the released fraction of contributions that were not clipped."""
        if not isinstance(clip, QuantileClip):
            return self._clip
        # A contribution's bit counts as -1/2 or +1/2: one client changes the sum by at most 1/2 (Andrew et al. 2021).
        bits = np.array([self._unclipped - (self._contributions - self._dropped) / 2])
        noise = GaussianNoise(noise_multiplier=2 * clip.bit_noise, clip_norm=0.5)
        stream = self._run.randomness.stream("clip bit", self._number)
        noised = noise.add(bits, stream=stream, contributions_bound=self._plan.sampler.clients)
        return clip.updated(float(noised[0]) / self._plan.sampler.expected_cohort + 0.5)

    def _open_total(self) -> Floats:
        if self._total is None:
            raise ConfigError(field="round", value=self._number, remedy="it has been released; open the next round")
        return self._total

    def _count(self, contributions: int, dropped: int, unclipped: int) -> None:
        self._contributions += contributions
        self._dropped += dropped
        self._unclipped += unclipped
