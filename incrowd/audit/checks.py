"""Checks of noise, samples, price and ledger: each measures the mechanism, beside what the plan claims.

An auditor knows what the canaries sent and takes it off a release; the noise that is left shows its size in millions of
numbers within seconds. Checks of the ledger never ask the plan how much noise it adds: a plan may charge one noise and
add another.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import NoOpDpEvent, SampledWithoutReplacementDpEvent
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom, chi2, norm

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.audit.bounds import SURE, Check
from incrowd.audit.canaries import CanaryGame, Play, ledger_of, participation, run_of, send
from incrowd.audit.contributions import FirstRound
from incrowd.privacy.account.accounting import Budget, Relation, price
from incrowd.privacy.account.events import compose, event_from_json
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, MedianClip, PerLayerClip, QuantileClip
from incrowd.privacy.mechanism.correlated import sensitivity
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Poisson
from incrowd.privacy.release import Release

_NUMBERS, _LEDGERS, _COHORTS = 40_000, 100, 500
"""Noise of the operating system and cohorts that are looked at."""

_PARTY_ROUNDS, _PARTY_NUMBERS = 20, 20_000
"""The noise of clients is compared over this many rounds, and in at least this many numbers."""

_RUNS = 200
"""This many first rounds show the noise of a clip's bits."""

ALARM = (1 - SURE) / 4
"""The probability of a false alarm of a measurement, on either side."""

Steps = Mapping[tuple[float, float], int]
"""The number of releases with this sampling probability and noise multiplier."""


def noise_checks(game: CanaryGame, plays: Sequence[Play]) -> list[Check]:
    """Check the size of the noise in every part, and its independence between rounds and plays.

    Guarantee: a right pipeline fails each check once in a million audits at most.
    """
    noise = np.array([play.noise for play in plays])  # [plays, rounds, numbers]
    parts = np.split(noise, np.cumsum(game.parts)[:-1], axis=2)
    names = ["noise"] if len(parts) == 1 else [f"noise of part {place}" for place in range(len(parts))]
    found = [size_of_noise(name, part.ravel(), looks=len(parts)) for name, part in zip(names, parts, strict=True)]
    rounds = [(noise[:, first], noise[:, second]) for first, second in _pairs(noise.shape[1])]
    runs = [(noise[first], noise[second]) for first, second in _pairs(noise.shape[0])]
    for name, pairs in (("rounds", rounds), ("runs", runs)):
        if pairs:
            found.append(likeness(pairs, name=f"noise of two {name}, alike by"))
    return found


def sampling_checks(game: CanaryGame, plays: Sequence[Play]) -> list[Check]:
    """Check how often canaries were drawn and how large cohorts were, against the priced sampler."""
    plan = game.plan
    samplers = [plan.round(number).sampler for number in range(plan.rounds)]
    clients, name = samplers[0].clients, type(samplers[0]).__name__
    cohorts = np.array([play.cohorts for play in plays])
    expected = np.array([sampler.expected_cohort for sampler in samplers])
    probs = np.array([participation(plan, number) for number in range(plan.rounds)])
    if not isinstance(samplers[0], Poisson) or bool((probs == 1).all()):
        off = float(np.abs(cohorts - expected).max())
        stated = f"{name}, {_span(expected.min(), expected.max())}"
        return [Check("sizes of the cohorts", _span(cohorts.min(), cohorts.max()), stated, holds=off < 1)]
    variance = clients * probs * (1 - probs)
    taken, chances = sum(int(play.taken.sum()) for play in plays), game.canaries * len(plays)
    mean, spread = chances * probs.sum(), math.sqrt(chances * (probs * (1 - probs)).sum())
    deviations = (cohorts - expected) / np.sqrt(variance)
    reach = 12 + 40 / math.sqrt(deviations.size)  # a binomial has heavier tails than a normal where few are drawn
    ratio = float((deviations**2).mean())
    slack = reach * math.sqrt((2 + 1 / variance.min()) / deviations.size)
    return [
        Check(
            "how often a client is drawn",
            f"{taken / chances / plan.rounds:.4f} of the rounds",
            f"{probs.mean():.4f}",
            holds=bool(abs(taken - mean) / spread < norm.isf(ALARM) + 1),
            note=f"would see {2 * norm.isf(ALARM) * spread / mean:.1%} more or less",
        ),
        Check(
            "variance of the cohorts' sizes",
            f"{ratio:.3f} of what is stated",
            f"{name}: {variance.mean():.4g}",
            holds=abs(ratio - 1) < slack,
            note="a cohort of one size, priced as a Poisson sample, has none",
        ),
    ]


def least_epsilon(plan: Plan) -> float:
    """A lower bound of an adversary's epsilon at the plan's delta.

    Guarantee: never above the epsilon of the stated mechanism. Correlated noise is one Gaussian release. If neighbours
    replace a value, only full participation counts both values.
    """
    if plan.correlated is not None:
        return least_epsilon_of({(1.0, plan.correlated.noise_multiplier): 1}, plan.budget.delta)
    replaces = plan.relation is Relation.REPLACE_ONE
    steps: Counter[tuple[float, float]] = Counter()
    for number in range(plan.rounds):
        prob, noise = participation(plan, number), plan.round(number).noise_multiplier
        steps[prob, noise / 2 if replaces and prob == 1 else noise] += 1
    return least_epsilon_of(steps, plan.budget.delta)


def least_epsilon_of(steps: Steps, delta: float) -> float:
    """The bound for Gaussian releases of unit sensitivity."""
    each = [
        pld.from_gaussian_mechanism(
            noise, sampling_prob=prob, pessimistic_estimate=False, use_connect_dots=False
        ).self_compose(times)
        for (prob, noise), times in steps.items()
    ]
    return float(reduce(lambda one, other: one.compose(other), each).get_epsilon_for_delta(delta))


def size_of_noise(name: str, noise: Floats, *, looks: int = 1, kurtosis: float = 3.0) -> Check:
    """Check that numbers have the standard deviation 1, as one of some looks.

    The limits are exact for normal numbers, and wider than necessary for others.
    """
    count, alarm = noise.size, ALARM / looks
    ratio = float(np.sqrt((noise**2).mean()))
    if kurtosis == 3:
        low, high = (math.sqrt(float(limit) / count) for limit in (chi2.ppf(alarm, count), chi2.isf(alarm, count)))
    else:
        reach = float(norm.isf(alarm)) * math.sqrt((kurtosis - 1) / count) * (1 + 8 / math.sqrt(count))
        low, high = math.sqrt(max(0.0, 1 - reach)), math.sqrt(1 + 1.5 * reach)
    note = f"{count} numbers; would see {2 * (1 - low):.1%} less"
    return Check(name, f"{ratio:.4f} of what is stated", "1", holds=low <= ratio <= high, note=note)


def likeness(pairs: Sequence[tuple[Floats, Floats]], *, name: str) -> Check:
    """Check that pairs of noise are uncorrelated."""
    size = pairs[0][0].size
    worst = max((float((one * other).mean()) for one, other in pairs), key=abs)
    limit = float(norm.isf(ALARM / len(pairs))) * math.sqrt((1 + 8 / math.sqrt(size)) / size)
    measured = f"{worst:.4f} at most, of {len(pairs)} pairs"
    return Check(name, measured, "0", holds=abs(worst) <= limit, note=f"would see {2 * limit:.2g}")


def _span(low: float, high: float) -> str:
    return f"{low:g}" if low == high else f"{low:g}\u2013{high:g}"


def _pairs(count: int, most: int = 200) -> list[tuple[int, int]]:
    """Some pairs, neighbours first."""
    pairs = [(first, first + gap) for gap in range(1, count) for first in range(count - gap)]
    return pairs[:most]


def noise_in_earnest(plan: Plan) -> Check:
    """Check the size of unseeded noise: a cheat could add all noise only where randomness is seeded."""
    layered = isinstance(plan.config.clip, PerLayerClip | ElementwiseClip)
    size = FirstRound(plan=plan).size if layered else _NUMBERS
    noises: list[Floats] = []
    while len(noises) < _LEDGERS and size * len(noises) < _NUMBERS:
        run = run_of(plan, SystemRandomness(), size)
        opened, sends = run.round(0), [0] if plan.noise_by == "party" else []
        send(opened, plan, run.cohort(0), np.zeros((len(sends), size)), clients=sends)
        release = opened.release()
        local = plan.round(0).noise_multiplier * release.clip_norm
        noises.append(release.total.values / (local if plan.noise_by == "party" else release.noise_std))
    return size_of_noise("noise in earnest", np.concatenate(noises))


def every_client_alike(plan: Plan, *, seed: int) -> list[Check]:
    """Check how often every client is drawn: a cheat could draw only the canaries as priced.

    Full participation, and clients in turns, draw nothing: no check.
    """
    sampler = plan.round(0).sampler
    chance = sampler.expected_cohort / sampler.clients
    if chance == 1 or plan.config.groups is not None:
        return []
    alike = next((number for number in range(plan.rounds) if plan.round(number).sampler != sampler), plan.rounds)
    size, taken, drawn = FirstRound(plan=plan).size, np.zeros(sampler.clients, np.int64), 0
    while drawn < _COHORTS:
        run = run_of(plan, SeededRandomness(seed=seed * _COHORTS + drawn), size)
        for number in range(min(alike, _COHORTS - drawn)):
            taken[run.cohort(number)] += 1
            drawn += 1
    alarm = ALARM / sampler.clients
    low, high = (float(limit) for limit in (binom.ppf(alarm, drawn, chance), binom.isf(alarm, drawn, chance)))
    client = int(np.argmax(np.abs(taken - drawn * chance)))
    hidden = 1.3 * math.sqrt(0.25 / drawn)  # the difference that chance hides, at most, nine times out of ten
    return [
        Check(
            "draws of the client that is furthest off",
            f"{taken[client] / drawn:.4f} of {drawn} cohorts",
            f"{chance:.4f}",
            holds=bool(low <= taken[client] <= high),
            note=f"of {sampler.clients} clients; would see one off by {(high - low) / 2 / drawn + hidden:.2g}",
        )
    ]


class ChargedRound(NamedTuple):
    """The event of a round: a client's probability to take part, and the noise in bounds (0 if the event has none)."""

    sampler: str
    chance: float
    multiplier: float

    @classmethod
    def of(cls, event: DpEvent, relation: Relation) -> "ChargedRound":
        """Read an event; an unknown one is named."""
        twice = 2.0 if relation is Relation.REPLACE_ONE else 1.0  # two values of one client differ by two bounds
        if isinstance(event, GaussianDpEvent):
            return cls("everyone", 1.0, twice * event.noise_multiplier)
        if isinstance(event, PoissonSampledDpEvent):
            return cls("poisson", event.sampling_probability, event.event.noise_multiplier)
        if isinstance(event, SampledWithoutReplacementDpEvent):
            chance = event.sample_size / event.source_dataset_size
            return cls("fixed", chance, twice * event.event.noise_multiplier)
        return cls("turns" if isinstance(event, NoOpDpEvent) else type(event).__name__, 1.0, 0.0)

    def std(self, clip: Clip) -> float:
        """The noise on a sum under this clip; the bits of a quantile take part of the charge."""
        multiplier = self.multiplier
        if isinstance(clip, QuantileClip):
            rest = multiplier**-2 - (2 * clip.bit_noise) ** -2
            multiplier = rest**-0.5 if rest > 0 else math.inf
        return multiplier * clip.clip_norm


def ledger_checks(plan: Plan, budget: Budget) -> list[Check]:
    """Check the price of the plan, and noise, cohorts and price of all rounds as the ledger has them."""
    game, ledger = CanaryGame(plan=plan), ledger_of(plan)
    nobody = np.zeros(game.canaries, np.bool_)
    releases = [release for release, _ in game.releases(SeededRandomness(seed=0), nobody, ledger=ledger)]
    lost, stated, spent = least_epsilon(plan), plan.price.epsilon, ledger.spent().epsilon
    affordable = stated <= plan.budget.epsilon * (1 + 1e-9)
    found = [
        Check(
            "price",
            f"at least {lost:.4f}",
            f"{stated:.4f}",
            holds=lost <= stated * (1 + 1e-6) and affordable,
            note="the rounds of a canary, composed by an arithmetic of its own",
        ),
        Check(
            "what the ledger says after the last round",
            f"{spent:.4f}",
            f"{stated:.4f}",
            holds=spent >= lost * (1 - 1e-6),
        ),
    ]
    entries = [entry.content() for entry in ledger.entries()]
    events = [event_from_json(content["event"]) for content in entries if "event" in content]
    rounds = [ChargedRound.of(event, plan.relation) for event in events]
    if len(rounds) != len(releases):
        expected = f"{len(releases)}, as many as releases"
        return [*found, Check("charges", f"{len(rounds)} on the ledger", expected, holds=False)]
    return [*found, _charged_noise(game, rounds, releases), _cohorts(plan, rounds), _price(plan, events, budget)]


def _charged_noise(game: CanaryGame, rounds: Sequence[ChargedRound], releases: Sequence[Release]) -> Check:
    """Check that each release states the noise of its charge."""
    plan = game.plan
    ratios = []
    for charged, release in zip(rounds, releases, strict=True):
        if plan.correlated is not None:
            moves = sensitivity(plan.correlated.column, plan.correlated.groups)
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
    note = f"{len(ratios)} rounds, each against its own event"
    holds = abs(worst - 1) < 1e-3
    return Check("noise that releases state", f"{worst:.5f} of what was charged", "1", holds=holds, note=note)


def _clip_of(clip: Clip | MedianClip, bound: float) -> Clip:
    if isinstance(clip, MedianClip):
        return clip.fit(np.array([bound]))
    return replace(clip, clip_norm=bound) if isinstance(clip, QuantileClip) else clip


def _cohorts(plan: Plan, rounds: Sequence[ChargedRound]) -> Check:
    """Check that clients are drawn by the charged sampler; turns are priced in one event for the whole run."""
    kinds = {"Poisson": "poisson", "FixedSize": "fixed", "Everyone": "everyone"}
    drawn, stated = "as drawn", "as drawn"
    for number, charged in enumerate(rounds if plan.config.groups is None else ()):
        sampler = plan.round(number).sampler
        chance = sampler.expected_cohort / sampler.clients
        kind = "everyone" if chance == 1 else kinds[type(sampler).__name__]
        if kind != charged.sampler or abs(charged.chance - chance) > 1e-12:
            drawn, stated = f"{kind}, {chance:.6g}", f"{charged.sampler}, {charged.chance:.6g}"
    return Check("sampling that is charged", drawn, stated, holds=drawn == stated)


def _price(plan: Plan, events: Sequence[DpEvent], budget: Budget) -> Check:
    """Price all charges anew at the budget's delta: no more than is stated and allowed."""
    most = min(plan.price.epsilon, budget.epsilon)
    cost = price(compose([(event, 1) for event in events]), delta=budget.delta, relation=plan.relation).epsilon
    stated = f"{most:.6g} at delta = {budget.delta:g}"
    return Check("price of what was charged", f"{cost:.6g}", stated, holds=cost <= most * (1 + 1e-6))


def party_checks(plan: Plan, *, seed: int) -> list[Check]:
    """Check that local noise is independent between clients and between rounds.

    A seeded round may run again: each time with one client alone, whose noised contribution is then the release.
    """
    if plan.noise_by != "party":
        return []
    size = FirstRound(plan=plan).size
    run = run_of(plan, SeededRandomness(seed=seed), size)
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
    """Check the noise on the share that moves the bound of a quantile clip."""
    clip, size = plan.config.clip, FirstRound(plan=plan).size
    if not isinstance(clip, QuantileClip):
        return []
    expected = plan.round(0).sampler.expected_cohort
    noises = []
    for number in range(_RUNS):
        run = run_of(plan, SeededRandomness(seed=seed * _RUNS + number), size)
        cohort, opened = run.cohort(0), run.round(0)
        lengths = np.where(np.arange(len(cohort)) % 2 == 0, 100.0, 0.01) * clip.clip_norm  # every other one is clipped
        if len(cohort):
            opened.add(lengths[:, None] * np.eye(1, size), clients=cohort)
        after = opened.release().clip
        if not isinstance(after, QuantileClip):
            continue
        share = clip.quantile - math.log(after.clip_norm / clip.clip_norm) / clip.learning_rate
        if 1e-9 < share < 1 - 1e-9:  # beyond, the bound moved as far as it may
            sent = float((lengths < clip.clip_norm).sum()) - len(cohort) / 2
            noises.append(((share - 0.5) * expected - sent) / clip.bit_noise)
    if len(noises) < _RUNS // 2:
        return []  # most of the noise is cut off: the rest does not show its size
    return [size_of_noise("noise of the clip's bits", np.array(noises))]
