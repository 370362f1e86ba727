"""Canaries among the real clients of a federation, while it learns what it would learn (Andrew et al. 2023).

The first clients of the plan are canaries, a tenth of them, each in or out by a coin; all others train on their own
examples, with the settings' own model, engine, clip, noise and server, from the first round to the last. Canaries have
random directions at right angles in the space of the weights, and contribute as others do.

Three adversaries guess who is in: one who knows all other clients and every release, which the promise is about; one
who sees every release and knows the canaries' directions alone; and one who sees the published model.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.stats import norm

from incrowd._random import Floats, Integers, SeededRandomness
from incrowd.audit.checks import ALARM, likeness, size_of_noise
from incrowd.audit.finding import Check, Finding
from incrowd.audit.pipeline import slow_sum
from incrowd.audit.plays import FAR, MOST, Adversary, CanaryGame, Play, power_of_two, sign_rows
from incrowd.audit.scored import claim_of, guessed, scored
from incrowd.errors import ConfigError
from incrowd.federated.evaluate import score
from incrowd.federated.fedavg import FedAvg, State
from incrowd.learning.cohort import EngineTrainer
from incrowd.privacy.mechanism.clipping import ElementwiseClip, MedianClip, PerLayerClip
from incrowd.privacy.release import Release
from incrowd.runs.client_work import ClientWork

SHARE = 10
"""One client in so many is a canary: so few that the others learn as they would."""

_NUMBERS = 2**24
"""So many numbers have the directions of a federation's canaries at most."""

_PAIRS = 200
"""So many pairs of rounds are held against each other."""


@dataclass(frozen=True, kw_only=True)
class MixedGame(CanaryGame):
    """The game of canaries among others: contributions have `size` numbers, and directions are drawn from `seed`."""

    size: int
    seed: int

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The sizes of the parts that have a bound of their own."""
        return tuple(self.clip.parts) if isinstance(self.clip, PerLayerClip) else (self.size,)

    @cached_property
    def canaries(self) -> int:
        """How many there are. Edge cases: of few clients one; of a large model no more than there is memory for."""
        clients = self.plan.round(0).sampler.clients
        most = max(1, min(clients // SHARE, *self.parts, MOST, _NUMBERS // self.size))
        return power_of_two(most) if isinstance(self.clip, ElementwiseClip) else most

    @cached_property
    def directions(self) -> Floats:
        """What each canary sends, far beyond the bound, at right angles in every part that has one."""
        stream = SeededRandomness(seed=self.seed).stream("canary directions")
        if isinstance(self.clip, ElementwiseClip):
            flips = np.where(stream.bits(self.size) % np.uint64(2) == 1, 1.0, -1.0)
            return FAR * self.clip.limit * flips * sign_rows(self.canaries, self.size)
        bounds = self.clip.clip_norms if isinstance(self.clip, PerLayerClip) else (1.0,)
        parts = []
        for part, bound in zip(self.parts, bounds, strict=True):
            drawn = stream.normals(part * self.canaries).reshape(part, self.canaries)
            parts.append(FAR * bound * np.linalg.qr(drawn)[0].T)
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixed:
    """One federation with canaries in it: what who knows all others thinks, what who knows the directions alone thinks
    after every release, and after the published model; and how good that is. `along` is how much of each round's noise
    lies in the direction of what the real clients sent, in standard deviations.
    """

    play: Play
    along: Floats
    by_releases: Floats
    by_model: Floats
    accuracy: float | None


def canaries_among(work: ClientWork, *, federations: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Hide canaries in so many trainings of a federation, and guess who of them is in.

    Guarantee: no ledger is opened. The first finding is a bound as that of a federation of canaries is: whoever knows
    the other clients can take off what they sent, however they react to canaries. The others guess in all federations
    together, which is one run of as many coins: nothing is assumed of how canaries and clients interfere.

    Edge cases: only public data are trained on; where clients noise for themselves nobody hides among others, and a
    median's bound depends on all of them: a `ConfigError`.
    """
    check_among(work)
    game = MixedGame(plan=work.plan, size=work.model.size, seed=seed)
    mixed = [_federation(work, game, seed=seed * 1_000_003 + number) for number in range(federations)]
    plays = [one.play for one in mixed]
    inside = np.concatenate([play.inside for play in plays])
    scores = np.concatenate([play.scores for play in plays])
    note = _note(game, mixed)
    found = [
        scored(
            work.plan,
            scores[inside],
            scores[~inside],
            attack="one canary among real clients, who are known, by all releases",
            note=note,
        )
    ]
    for name, each in (
        ("all releases", [one.by_releases for one in mixed]),
        ("the published model alone", [one.by_model for one in mixed]),
    ):
        attack = f"canaries among real clients, who are not known, by {name}"
        found.append(guessed(claim_of(work.plan), np.concatenate(each), inside, attack=attack, note=note))
    return found, [*_noise(plays), _along(mixed)]


def check_among(work: ClientWork) -> None:
    """Refuse settings whose canaries cannot be hidden among real clients (`ConfigError`)."""
    if not work.data.public:
        remedy = "canaries are hidden among clients who train, and nothing pays for that: only public data may be used"
        raise ConfigError(field="data.public", value=False, remedy=remedy)
    if work.plan.place == "local":
        remedy = "where clients noise for themselves nobody hides among others: leave it out"
        raise ConfigError(field="among", value="privacy.place = local", remedy=remedy)
    if isinstance(work.plan.start(1).clip, MedianClip):
        remedy = "a median's bound follows all clients, and what it tells is in no figure: leave it out"
        raise ConfigError(field="among", value="privacy.clip = median", remedy=remedy)


def _federation(work: ClientWork, game: MixedGame, *, seed: int) -> Mixed:
    """One training, from the first round to the last."""
    game = replace(game, seed=seed)
    randomness = SeededRandomness(seed=seed)
    inside = randomness.stream("canaries").bits(game.canaries) % np.uint64(2) == 1
    algorithm = replace(work, randomness=randomness, trainers=None).algorithm(game.ledger(), label="audit")
    knowing, looking = Adversary(game, inside), _Onlooker(game)
    first = state = algorithm.init()
    sums: list[Floats] = []
    for number in range(work.plan.rounds):
        drawn = algorithm.private.cohort(number)
        release, others, state = _round(work, game, algorithm, state, inside=inside)
        knowing.see(release, drawn, others=others)
        looking.see(release)
        sums.append(others)
    published, play, test = state.published, knowing.play(), work.data.test
    return Mixed(
        play=play,
        along=np.array([cosines(noise[None], total)[0] * np.linalg.norm(noise) for noise, total in _each(play, sums)]),
        by_releases=looking.scores,
        by_model=cosines(game.directions, published - first.weights),
        accuracy=None if test is None else score(work.model, published, test, loss=work.loss).accuracy,
    )


def _round(
    work: ClientWork, game: MixedGame, algorithm: FedAvg, state: State, *, inside: np.ndarray
) -> tuple[Release, Floats, State]:
    """A round with canaries in it, and what the real clients sent, added up slowly by the auditor."""
    private, engine = algorithm.private, algorithm.engine
    opened = private.round(state.round, carry=state.carry)
    trainer = EngineTrainer(engine, state.weights, randomness=private.randomness)

    def real(cohort: Integers) -> Integers:
        return engine.present(cohort[cohort >= game.canaries])

    opened.ask(trainer, present=real)
    drawn = private.cohort(state.round)
    rows, sends = game.contributions(drawn, inside)
    if len(sends):
        opened.add(rows, clients=sends)
    release = opened.release()
    others = slow_sum(trainer, real(drawn), work, number=state.round, clip=state.carry.clip)
    after = state.after(release, server=work.config.server, rounds=work.plan.rounds, carry=opened.after)
    return release, others, after


def _each(play: Play, sums: Sequence[Floats]) -> Iterator[tuple[Floats, Floats]]:
    return zip(play.noise, sums, strict=True)


class _Onlooker:
    """An adversary who knows the canaries' directions and sees releases: what lies along a direction, beside what lies
    along any other, as directions tell that no canary has.
    """

    def __init__(self, game: MixedGame) -> None:
        self._game = game
        self.scores = np.zeros(game.canaries)

    def see(self, release: Release) -> None:
        """One more release."""
        total = release.total.values
        bound = release.clip_norm * self._game.reach
        spread = float(np.linalg.norm(total)) / np.sqrt(total.size)
        if spread > 0:
            along = cosines(self._game.directions, total) * np.linalg.norm(total)
            self.scores += self._game.ratio(along / bound, spread / bound, release.round)


def cosines(directions: Floats, vector: Floats) -> Floats:
    """How far a vector goes along each direction. Edge cases: one of no length goes nowhere."""
    length = float(np.linalg.norm(vector))
    found: Floats = directions @ vector / np.linalg.norm(directions, axis=1)
    return found / length if length > 0 else np.zeros(len(directions))


def _note(game: MixedGame, mixed: Sequence[Mixed]) -> str:
    real = game.plan.round(0).sampler.clients - game.canaries
    known = [one.accuracy for one in mixed if one.accuracy is not None]
    learned = f", which learn to {np.mean(known):.1%} of public test examples" if known else ""
    return f"{len(mixed)} federations of {game.canaries} canaries and {real} real clients{learned}"


def _noise(plays: Sequence[Play]) -> list[Check]:
    """What is left of every release of every training without what went in: the stated noise, and nothing else."""
    noise = np.array([play.noise for play in plays])
    rounds = noise.shape[1]
    pairs = [(noise[0, late], noise[0, early]) for late in range(rounds) for early in range(late)][:_PAIRS]
    each = [
        size_of_noise(f"noise of whole trainings, round {number}", noise[:, number].ravel(), looks=rounds)
        for number in range(rounds)
    ]
    found = [
        size_of_noise("noise of whole trainings", noise.ravel()),
        next((one for one in each if not one.holds), each[-1]),
    ]
    return [*found, likeness(pairs, name="noise of two rounds of a training, alike by")] if pairs else found


def _along(mixed: Sequence[Mixed]) -> Check:
    """Nothing of what the real clients sent is left in any round: not a second helping, nor one that was cut short."""
    along = np.array([one.along for one in mixed])
    scores = np.abs(along.sum(axis=0)) / math.sqrt(len(along))
    limit = 1.2 * float(norm.isf(ALARM / scores.size))
    return Check(
        name="what is left of the real clients in any round",
        measured=f"{scores.max():.2f} standard deviations",
        stated="0",
        holds=bool(scores.max() <= limit),
        note=f"each contribution clipped by itself, slowly; would see {2 * limit / math.sqrt(len(along)):.2g}",
    )
