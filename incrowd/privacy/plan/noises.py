"""The noises of one round, as a plan states them: the charge pays for these, and for no others."""

import math
from dataclasses import dataclass

from incrowd.errors import ConfigError
from incrowd.privacy.ledger.tally import Draws, Receipt
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipping import Clip, QuantileClip
from incrowd.privacy.mechanism.correlated import CorrelatedNoise, NoiseState
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole
from incrowd.privacy.mechanism.shared import SharedNoise
from incrowd.privacy.plan.plan import Plan


@dataclass(frozen=True, kw_only=True)
class RoundNoise:
    """The noise of one round in which this clip was used: on the sum or on each client's part of it, and on the bits of
    an adaptive clip. Of `shared` noise each of so many `listed` parties adds a share.
    """

    round: int
    clip: Clip
    noise: GaussianNoise | CorrelatedNoise
    clients: int
    local: bool = False
    bits: GaussianNoise | None = None
    shared: SharedNoise | None = None
    listed: int = 0

    @classmethod
    def of(cls, plan: Plan, number: int, clip: Clip, *, listed: int = 0) -> "RoundNoise":
        """The noise that a plan states. A quantile's bits take their part of it."""
        return cls(
            round=number,
            clip=clip,
            noise=plan.noise(number, clip),
            clients=plan.config.members,
            local=plan.noise_by == "party",
            # A bit counts as -1/2 or +1/2: one client changes the sum by at most 1/2 (Andrew et al. 2021).
            bits=GaussianNoise(noise_multiplier=2 * clip.bit_noise, clip_norm=0.5)
            if isinstance(clip, QuantileClip)
            else None,
            shared=plan.shared(number, clip),
            listed=listed,
        )

    @property
    def draws(self) -> Draws:
        """The draws that the charge of the round pays for."""
        if self.shared is not None:
            return ((self.shared.share(self.listed), self.listed),)
        bits = () if self.bits is None else ((self.bits, 1),)
        return ((self.noise, self.clients if self.local else 1), *bits)

    def check(self, size: int) -> None:
        """Refuse noise that fits no grid for sums of so many numbers, before it is paid for."""
        if self.shared is not None and isinstance(self.noise, GaussianNoise):
            self.shared.share(self.listed)
            fine = self.noise.step(size, contributions_bound=self.clients)
            self.shared.fine(min(fine, grid.contribution_step(self.clip.clip_norm, contributions_bound=self.clients)))
        elif isinstance(self.noise, CorrelatedNoise):
            self.noise.scale(size)
        else:
            step = self.noise.step(size, contributions_bound=1 if self.local else self.clients)
            largest = (grid.REACH * self.noise.noise_multiplier + 1) * 1.01 * self.noise.clip_norm / step
            if self.local and self.clients * largest >= 2.0**63:
                remedy = "the noise of so many clients does not fit 64 bits: choose a smaller noise multiplier"
                raise ConfigError(field="clients", value=self.clients, remedy=remedy)
        if self.bits is not None:
            self.bits.step(1, contributions_bound=self.clients)

    def added(
        self, total: Whole, *, receipt: Receipt, memory: NoiseState | None
    ) -> tuple[Whole, float, NoiseState | None]:
        """The sum that leaves the server, its noise's deviation, and what correlated noise has to remember.

        Local noise is in the sum already, that of as many clients as should answer, and so are shares of noise.
        """
        if self.shared is not None:
            return total, self.shared.released_std(self.listed), None
        at = "noise", self.round
        if isinstance(self.noise, CorrelatedNoise):
            if memory is None or memory.round != self.round:
                remedy = "hand every round the carry of the release before it"
                raise ConfigError(field="carry", value=None if memory is None else memory.round, remedy=remedy)
            noised, after = self.noise.add(total, state=memory, receipt=receipt, at=at)
            return noised, self.noise.scale(memory.size)[1], after
        std = self.noise.noise_multiplier * self.noise.clip_norm
        if self.local:
            return total, std * math.sqrt(self.clients), None
        return self.noise.add(total, receipt=receipt, at=at, contributions_bound=self.clients), std, None
