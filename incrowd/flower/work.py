"""What a node does in a round: its clients' part of the sum, clipped and in whole steps of the public grid."""

import math
from dataclasses import dataclass, replace
from functools import partial

from incrowd._random import Randomness
from incrowd.errors import ConfigError
from incrowd.flower.offer import Offer
from incrowd.flower.wire import Expected, PartyAnswer, Place, Request, SentWeights
from incrowd.learning import CohortEngine
from incrowd.learning.engine import EngineTrainer
from incrowd.learning.mean_query import VectorTrainer
from incrowd.learning.scoring import Scorer
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import ClippedSum
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, QuantileClip, ScalingClip
from incrowd.privacy.mechanism.grid import GaussianNoise, Whole, largest_norm
from incrowd.privacy.plan import forms


@dataclass(frozen=True, kw_only=True)
class RoundTask:
    """A round of an offer as nodes see it: its clip, and the step and the length of what they send."""

    offer: Offer
    round: int
    clip: Clip

    @classmethod
    def of(cls, offer: Offer, request: Request) -> "RoundTask":
        """What is asked. Edge cases: a clip that is not the plan's is refused: nobody has priced it."""
        clip, told = offer.clip, request.clip
        form = forms.to_json(forms.RoundForm(plan=offer.fingerprint, round=request.place.round, clip=clip))["clip"]
        if told != form and isinstance(clip, QuantileClip):  # its bound moves, and nothing else of it
            clip = replace(clip, clip_norm=told.get("clip_norm", math.nan))
            form["clip_norm"] = clip.clip_norm
        if told != form:
            raise ConfigError(field="clip", value=told.get("kind"), remedy=f"the plan's is {clip}")
        return cls.stated(offer, request.place.round, clip)

    @classmethod
    def stated(cls, offer: Offer, number: int, clip: Clip | MedianClip | None) -> "RoundTask":
        """A round with this clip. Edge cases: a median is refused: its norms are nowhere together."""
        offer.plan.round(number)
        if offer.plan.noise_by == "parties":
            remedy = 'parties over Flower do not mask what they send yet: use "server" or "party"'
            raise ConfigError(field="noise_by", value="parties", remedy=remedy)
        if clip is None or isinstance(clip, MedianClip):
            remedy = "the norms of a cohort are not known where clients train elsewhere: use another clip"
            raise ConfigError(field="clip", value=type(clip).__name__, remedy=remedy)
        return cls(offer=offer, round=number, clip=clip)

    @property
    def noise(self) -> GaussianNoise | None:
        """What each client adds for itself, where noise is local."""
        return self.offer.plan.party_noise(self.round, self.clip)

    @property
    def clients(self) -> int:
        """The public number of clients."""
        return self.offer.plan.round(self.round).sampler.clients

    @property
    def step(self) -> float:
        """The step of what is sent: public, so it is not sent along."""
        if self.noise is not None:
            return self.noise.step(self.offer.size, contributions_bound=1)
        if isinstance(self.clip, ScalingClip):
            return grid.coarse_step(self.clip.clip_norm)
        return grid.contribution_step(self.clip.clip_norm, contributions_bound=self.clients)

    def expected(self, place: Place, *, contributions: int) -> Expected:
        """What an answer to a request for so many contributions can be at most."""
        bound = self.clip.clip_norm
        if self.noise is not None:  # noise of d numbers is longer than sqrt(d) + t deviations once in e^(t^2 / 2) times
            bound *= 2 + 1.01 * self.noise.noise_multiplier * (math.sqrt(self.offer.size) + grid.REACH)
        largest = largest_norm(bound, contributions_bound=contributions) / self.step
        return Expected(place=place, size=self.offer.size, contributions=contributions, largest=largest)


def part(
    task: RoundTask,
    request: Request,
    *,
    place: Place,
    engine: CohortEngine,
    randomness: Randomness,
    receipt: Receipt | None,
) -> PartyAnswer:
    """Train the clients of a request, or have them score its weights, and add up what they contribute; a receipt pays
    for noise that is local.

    Guarantee: bit for bit what the engine adds up on one machine for the same clients, weights and randomness.

    Edge cases: local noise without a receipt is refused.
    """
    clip, noise = task.clip, task.noise
    total = ClippedSum(task.offer.size, clip, contributions_bound=task.clients)
    cohort = trainer_of(task.offer, engine, request.weights, randomness=randomness).cohort(
        request.clients, round=task.round
    )
    if noise is None and isinstance(clip, ScalingClip):
        total.add_summed(clip, cohort)
    else:
        for chunk in cohort.chunks():
            for row, client in zip(chunk.rows(), chunk.clients, strict=True):
                if noise is None:
                    total.add(row[None])
                else:
                    hidden = partial(_hidden, noise, receipt=_paid(receipt), at=(task.round, client))
                    total.add_noised(clip, row, hidden)
    seen = total.observed
    return PartyAnswer(place=place, steps=total.close().on(task.step), unclipped=seen.unclipped, dropped=seen.dropped)


def trainer_of(
    offer: Offer, engine: CohortEngine, weights: SentWeights, *, randomness: Randomness
) -> EngineTrainer | VectorTrainer:
    """What the clients of an engine do for an offer: train from these weights, or score them.

    Edge cases: what is measured does not fit their labels: `ConfigError`.
    """
    if offer.scoring is None:
        return EngineTrainer(engine, weights, randomness=randomness)
    return Scorer(model=engine.model, data=engine.data, scoring=offer.scoring, loss=engine.loss).trainer(weights)


def _paid(receipt: Receipt | None) -> Receipt:
    if receipt is None:
        raise ConfigError(
            field="receipt", value=None, remedy="noise that is local has to be paid for: charge the round"
        )
    return receipt


def _hidden(noise: GaussianNoise, contribution: Whole, *, receipt: Receipt, at: tuple[int, int]) -> Whole:
    return noise.add(contribution, receipt=receipt, at=("noise", *at), contributions_bound=1)
