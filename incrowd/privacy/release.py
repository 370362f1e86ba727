"""The one way from private contributions to a released number: clip -> sum -> charge -> noise.

A `PrivateRound` holds the running sum and does not show it. What can be had from it is one `Release`, and only after
the ledger has put the round's event on disk.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Floats, Randomness
from incrowd.errors import ConfigError, LedgerMismatch
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipped_sum import ClippedSum, Cohort, Observed
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, QuantileClip
from incrowd.privacy.mechanism.correlated import NoiseState
from incrowd.privacy.mechanism.noise import GaussianNoise
from incrowd.privacy.plan.promise import Carry, Pending, Promise


@dataclass(frozen=True, kw_only=True)
class Release:
    """What leaves the server after one round: public from here on, but for `observed`.

    `carry` is for the next round. `observed` is simulation only: it is None unless the randomness was seeded. What
    correlated noise remembers is no part of it (`PrivateRound.noise_state`).
    """

    round: int
    mean: Floats
    clip_norm: float
    noise_std: float
    carry: Carry
    observed: Observed | None


class PrivateRun:
    """All rounds of one plan, over contributions of one size, paid from one ledger.

    Guarantee: the whole plan is reserved in the ledger before the first round; a round can be released once, in the
    plan's order, with the sampler, noise and denominator that the plan priced. Under seeded randomness a round that a
    crash cut off after its charge may be repeated, because it repeats the very same noise; under the operating system's
    it may not.

    Edge cases: a ledger without room for the plan refuses here, before anything is trained or spent.
    """

    def __init__(self, plan: Promise, *, ledger: Ledger, randomness: Randomness, size: int, label: str = "run") -> None:
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

    def start(self) -> Carry:
        """What the first round is handed."""
        return self.plan.start(self.size)

    def noise_state(self) -> NoiseState | None:
        """What correlated noise remembers before the first round. Private."""
        return self.plan.noise_state(self.size)

    def cohort(self, number: int) -> NDArray[np.int64]:
        """The clients of a round. Private: they are told, and nobody else is."""
        return self.plan.round(number).sampler.draw(self.randomness.stream("sampling", number), round=number)

    def round(self, number: int, *, carry: Carry | None = None, noise: NoiseState | None = None) -> "PrivateRound":
        """An empty sum for one round; `carry` is the previous release's, `noise` the previous round's `noise_state`
        (by default those of the first round).
        """
        self.plan.round(number)  # refuses a round that is not planned
        carry = self.start() if carry is None else carry
        return PrivateRound(self, number, carry=carry, noise=self.noise_state() if noise is None else noise)

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

    Guarantee: the denominator is the plan's expected cohort and the noise is that of the bound that clipped, however
    many contributions came in; the event is on disk before the noise is drawn; afterwards the sum is gone.

    Edge cases: no contributions at all give noise; a second release, or a contribution after the release, is refused.
    After the last round nothing is remembered of its noise.
    """

    def __init__(self, run: PrivateRun, number: int, *, carry: Carry, noise: NoiseState | None) -> None:
        self._run = run
        self._number = number
        self._carry = carry
        self._noise = noise
        self._noise_after: NoiseState | None = None
        self._sum = ClippedSum(run.size, carry.clip)

    def add(self, rows: NDArray[Any]) -> None:
        """Take contributions in: one vector, or one a row."""
        self._sum.add(rows)

    def add_cohort(self, cohort: Cohort) -> None:
        """Take a whole cohort in from a batched engine, which may clip and add up where its arrays live."""
        self._sum.add_cohort(cohort)

    @property
    def noise_state(self) -> NoiseState | None:
        """What correlated noise remembers after the release, for the next round. Private."""
        return self._noise_after

    def release(self) -> Release:
        """Charge the round, add its noise and give the mean away."""
        run, number = self._run, self._number
        self._sum.check_open()
        clip = self._sum.settle()
        run.charge(number)
        total = self._sum.close()
        pending = Pending(round=number, total=total, clip=clip, contributions=self._sum.observed.contributions)
        hidden = run.plan.hide(pending, noise=self._noise, randomness=run.randomness)
        self._noise_after = hidden.noise if number + 1 < run.plan.rounds else None
        return Release(
            round=number,
            mean=hidden.total / run.plan.round(number).sampler.expected_cohort,
            clip_norm=clip.clip_norm,
            noise_std=hidden.std,
            carry=Carry(clip=self._next_clip(clip)),
            observed=self._sum.observed if run.randomness.simulated else None,
        )

    def _next_clip(self, clip: Clip) -> Clip | MedianClip:
        """The next round's clip; a quantile moves by the released fraction of contributions that were not clipped."""
        if not isinstance(clip, QuantileClip):
            return self._carry.clip
        # A contribution's bit counts as -1/2 or +1/2: one client changes the sum by at most 1/2 (Andrew et al. 2021).
        seen = self._sum.observed
        bits = np.array([seen.unclipped - (seen.contributions - seen.dropped) / 2])
        noise = GaussianNoise(noise_multiplier=2 * clip.bit_noise, clip_norm=0.5)
        stream = self._run.randomness.stream("clip bit", self._number)
        sampler = self._run.plan.round(self._number).sampler
        noised = noise.add(bits, stream=stream, contributions_bound=sampler.clients)
        return clip.updated(float(noised[0]) / sampler.expected_cohort + 0.5)
