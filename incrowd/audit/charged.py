"""What the ledger was charged, read by the auditor alone, beside what was done for it.

Nothing here asks a plan how much noise it adds: a plan that charges one noise and adds another is what is looked for.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import NoOpDpEvent, SampledWithoutReplacementDpEvent

from incrowd._random import Floats, Randomness, SeededRandomness, Stream
from incrowd.audit.checks import likeness, size_of_noise
from incrowd.audit.contributions import FirstRound
from incrowd.audit.finding import Check
from incrowd.audit.plays import CanaryGame, send
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose, event_from_json
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, MedianClip, QuantileClip
from incrowd.privacy.mechanism.correlated import sensitivity
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import PrivateRun, Release

_PARTY_ROUNDS = 20
"""Of so many rounds clients' own noise is compared."""

_PARTY_NUMBERS = 20_000
"""So many numbers of it are wanted."""

_RUNS = 200
"""So many first rounds show the noise of a clip's bits."""


@dataclass(frozen=True, kw_only=True)
class ChargedRound:
    """An event of a round: how probably a client takes part, and the noise, in clip bounds; 0 where it says nothing."""

    sampler: str
    chance: float
    multiplier: float

    @classmethod
    def of(cls, event: DpEvent, relation: Relation) -> "ChargedRound":
        """What an event says. Edge cases: one that no round of clients is charged with says so by its name."""
        twice = 2.0 if relation is Relation.REPLACE_ONE else 1.0  # two values of one client differ by two bounds
        if isinstance(event, GaussianDpEvent):
            return cls(sampler="everyone", chance=1.0, multiplier=twice * event.noise_multiplier)
        if isinstance(event, PoissonSampledDpEvent):
            its = event.event.noise_multiplier
            return cls(sampler="poisson", chance=event.sampling_probability, multiplier=its)
        if isinstance(event, SampledWithoutReplacementDpEvent):
            chance = event.sample_size / event.source_dataset_size
            return cls(sampler="fixed", chance=chance, multiplier=twice * event.event.noise_multiplier)
        return cls(
            sampler="turns" if isinstance(event, NoOpDpEvent) else type(event).__name__, chance=1.0, multiplier=0.0
        )

    def std(self, clip: Clip) -> float:
        """The noise on a sum, where this clip was used: a quantile's bits take their part of what was charged."""
        multiplier = self.multiplier
        if isinstance(clip, QuantileClip):
            rest = multiplier**-2 - (2 * clip.bit_noise) ** -2
            multiplier = rest**-0.5 if rest > 0 else math.inf
        return multiplier * clip.clip_norm


def charged_checks(plan: Plan, budget: Budget) -> list[Check]:
    """The noise, the cohorts and the price of all rounds, as the ledger has them."""
    game = CanaryGame(plan=plan)
    ledger, nobody = game.ledger(), np.zeros(game.canaries, np.bool_)
    releases = [release for release, _ in game.releases(SeededRandomness(seed=0), nobody, ledger=ledger)]
    entries = [entry.content() for entry in ledger.entries()]
    events = [event_from_json(content["event"]) for content in entries if "event" in content]
    rounds = [ChargedRound.of(event, plan.relation) for event in events]
    if len(rounds) != len(releases):
        measured, stated = f"{len(rounds)} on the ledger", f"{len(releases)}, as many as releases"
        return [Check(name="charges", measured=measured, stated=stated, holds=False)]
    return [_noise(game, rounds, releases), _cohorts(plan, rounds), _price(plan, events, budget)]


def _noise(game: CanaryGame, rounds: Sequence[ChargedRound], releases: Sequence[Release]) -> Check:
    """The noise that each release states is that of its charge."""
    plan = game.plan
    ratios = []
    for charged, release in zip(rounds, releases, strict=True):
        if plan.correlated is not None:
            column = plan.correlated.strategy.column(plan.rounds)
            moves = sensitivity(column, plan.correlated.participation)
            wanted = rounds[0].multiplier * moves * plan.correlated.clip_norm
        else:
            wanted = charged.std(_clip_of(game.clip, release.clip_norm))
        local = math.sqrt(plan.round(release.round).sampler.clients) if plan.noise_by == "party" else 1.0
        if plan.noise_by == "parties":  # all shares, of which those of the honest ones come to what is charged
            parties, colluders = plan.config.sharing
            wanted *= math.sqrt(parties / (parties - colluders))
            wanted = math.hypot(wanted, math.sqrt(parties / 12) * release.total.step)
        ratios.append(release.noise_std / local / wanted if wanted > 0 else 0.0)
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    return Check(
        name="noise that releases state",
        measured=f"{worst:.5f} of what was charged",
        stated="1",
        holds=abs(worst - 1) < 1e-3,
        note=f"{len(ratios)} rounds, each against its own event",
    )


def _clip_of(clip: Clip | MedianClip, bound: float) -> Clip:
    if isinstance(clip, MedianClip):
        return clip.fit(np.array([bound]))
    return replace(clip, clip_norm=bound) if isinstance(clip, QuantileClip) else clip


def _cohorts(plan: Plan, rounds: Sequence[ChargedRound]) -> Check:
    """Clients are drawn as often as was charged, and in the way that was."""
    kinds = {"Poisson": "poisson", "FixedSize": "fixed", "Everyone": "everyone"}
    off, said, done = 0.0, "", ""
    for number, charged in enumerate(rounds):
        if plan.config.groups is not None:
            continue  # turns are known, and priced as such, in one event for the whole run
        sampler = plan.round(number).sampler
        chance = sampler.expected_cohort / sampler.clients
        kind = "everyone" if chance == 1 else kinds[type(sampler).__name__]
        if kind != charged.sampler or abs(charged.chance - chance) > 1e-12:
            off, said, done = 1.0, f"{charged.sampler}, {charged.chance:.6g}", f"{kind}, {chance:.6g}"
    return Check(
        name="sampling that is charged", measured=done or "as drawn", stated=said or "as drawn", holds=off == 0
    )


def _price(plan: Plan, events: Sequence[DpEvent], budget: Budget) -> Check:
    """All that was charged, priced anew at the delta that was asked for, is no more than is stated and was wanted."""
    stated = min(plan.price.epsilon, budget.epsilon)
    runs = [(event, 1) for event in events]
    cost = price(compose(runs), delta=budget.delta, relation=plan.relation).epsilon
    return Check(
        name="price of what was charged",
        measured=f"{cost:.6g}",
        stated=f"{stated:.6g} at delta = {budget.delta:g}",
        holds=cost <= stated * (1 + 1e-6),
    )


def order_of_charge(plan: Plan) -> Check:
    """When a round's noise is drawn, its event is on the ledger."""
    first = FirstRound(plan=plan)
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    paid: list[int] = []

    def tell() -> None:
        paid.append(sum("event" in entry.content() for entry in ledger.entries()))

    run = PrivateRun(plan, ledger=ledger, randomness=_Overheard(first.seed, tell), size=first.size, label="audit")
    opened = run.round(0)
    cohort = run.cohort(0)[:1]
    send(opened, plan, run.cohort(0), np.zeros((len(cohort), first.size)), clients=cohort)
    opened.release()
    return Check(
        name="charges on the ledger when noise is drawn",
        measured=f"{min(paid, default=0)}",
        stated="1",
        holds=bool(paid) and min(paid) == 1,
    )


class _Overheard:
    """Seeded randomness that tells when noise is asked for."""

    simulated = True
    source = "audit"

    def __init__(self, seed: int, tell: Callable[[], None]) -> None:
        self._inner, self._tell = SeededRandomness(seed=seed), tell

    def stream(self, purpose: str, *indices: int) -> Stream:
        """See `Randomness.stream`."""
        if purpose in ("noise", "clip bit"):
            self._tell()
        return self._inner.stream(purpose, *indices)


def party_checks(plan: Plan, *, seed: int) -> list[Check]:
    """Where noise is local: the noise of one client is not that of another, nor that of its own next round.

    Under a seed a round may be looked at again; each time one client alone is there, so that what is released is what
    that client sends.
    """
    if plan.noise_by != "party":
        return []
    game = CanaryGame(plan=plan)
    ledger = game.ledger()
    size = FirstRound(plan=plan).size
    randomness = SeededRandomness(seed=seed)
    run = PrivateRun(plan, ledger=ledger, randomness=randomness, size=size, label="audit")
    rounds = min(plan.rounds, _PARTY_ROUNDS)
    clients = min(plan.round(0).sampler.clients, max(4, math.ceil(_PARTY_NUMBERS / size / rounds)), 400 // rounds)
    sent: dict[int, list[Floats]] = {client: [] for client in range(clients)}
    for number in range(rounds):
        for client, its in sent.items():
            opened = run.round(number)
            opened.add(np.zeros((1, size)), clients=[client])
            release = opened.release()
            its.append(release.total.values / (plan.round(number).noise_multiplier * release.clip_norm))
    noises = [np.concatenate(its) for its in sent.values()]
    found = [size_of_noise("noise that clients send", np.concatenate(noises))]
    pairs = [(one, other) for place, one in enumerate(noises) for other in noises[max(0, place - 3) : place]]
    return [*found, likeness(pairs, name="noise of two clients, alike by")] if pairs else found


def bit_checks(plan: Plan, *, seed: int) -> list[Check]:
    """Where a clip follows a quantile: the share that moves its bound has the noise that was paid for."""
    first = FirstRound(plan=plan)
    clip = first.clip
    if not isinstance(clip, QuantileClip):
        return []
    expected = plan.round(0).sampler.expected_cohort
    noises = []
    for number in range(_RUNS):
        randomness: Randomness = SeededRandomness(seed=seed * _RUNS + number)
        ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
        run = PrivateRun(plan, ledger=ledger, randomness=randomness, size=first.size, label="audit")
        cohort, opened = run.cohort(0), run.round(0)
        lengths = np.where(np.arange(len(cohort)) % 2 == 0, 100.0, 0.01) * clip.clip_norm  # every other one is clipped
        if len(cohort):
            opened.add(lengths[:, None] * np.eye(1, first.size), clients=cohort)
        after = opened.release().clip
        if not isinstance(after, QuantileClip):
            continue
        share = clip.quantile - math.log(after.clip_norm / clip.clip_norm) / clip.learning_rate
        if 1e-9 < share < 1 - 1e-9:  # beyond, the bound moved as far as it may
            sent = float((lengths < clip.clip_norm).sum()) - len(cohort) / 2
            noises.append(((share - 0.5) * expected - sent) / clip.bit_noise)
    if len(noises) < _RUNS // 2:
        return []  # so much noise that most of it is cut off: what is left says nothing of its size
    return [size_of_noise("noise of the clip's bits", np.array(noises))]
