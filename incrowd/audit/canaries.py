"""Simulated federations whose clients are canaries, for membership attacks.

Each canary sends the longest update that the clip lets pass, in its own direction, and a coin decides whether it takes
part. Updates pass the real path of a round: plan, sampler, clip, grid, sum, charge, noise. Orthogonal canaries are
independent trials. The adversary knows everything but the coins and sees every release. Its score is the log-likelihood
ratio of the stated mechanism, the optimal test (Neyman and Pearson).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import hadamard

from incrowd._random import Floats, Randomness, SeededRandomness
from incrowd.errors import ConfigError
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, ElementwiseClip, MedianClip, PerLayerClip
from incrowd.privacy.mechanism.grid import Whole, contribution_step
from incrowd.privacy.mechanism.shared import SharedNoise
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.sampling import Everyone, FixedSize, Poisson
from incrowd.privacy.release import PrivateRound, PrivateRun, Release

MOST = 256
"""A federation has at most this many canaries: more would cost more memory than they save time."""

FAR = 100.0
"""A canary's contribution is this many bounds long, so that only the clip shortens it."""

_SIGNS = 32
"""Under an elementwise clip there are at least this many numbers for each canary."""


Numbers = Sequence[int] | NDArray[np.int64]


def send(opened: PrivateRound, plan: Plan, drawn: NDArray[np.int64], rows: Floats, *, clients: Numbers) -> None:
    """Add the contributions of some clients of a round; if parties share the noise, all others send zeros."""
    if plan.noise_by == "parties":
        opened.listing(len(drawn))
        silent = np.setdiff1d(drawn, clients)
        if len(silent):
            opened.add(np.zeros((len(silent), rows.shape[1])), clients=silent)
    if len(clients):
        opened.add(rows, clients=clients)


def shared_in(plan: Plan, number: int = 0) -> SharedNoise:
    """The noise that parties share in a round."""
    clip = plan.config.clip
    shared = None if isinstance(clip, MedianClip) else plan.shared(number, clip)
    if shared is None:
        raise ConfigError(field="noise_by", value=plan.noise_by, remedy='give a plan of "parties"')
    return shared


@dataclass(kw_only=True)
class Colluders:
    """The colluders of a simulated plan: the last parties of its roster, whose parts the adversary knows."""

    plan: Plan
    randomness: Randomness
    size: int

    def __post_init__(self) -> None:
        ledger = Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation)
        self._run = PrivateRun(self.plan, ledger=ledger, randomness=self.randomness, size=self.size, label="colluders")

    def less(self, release: Release) -> Release:
        """Take the colluders' parts, zeros with their shares, off a release."""
        config, plan = self.plan.config, self.plan
        assert not isinstance(config.clip, MedianClip)  # noqa: S101 - such a plan shares no noise
        shared, (parties, colluders) = shared_in(plan, release.round), config.sharing
        share = shared.share(parties)
        receipt = self._run.charge(release.round, config.clip, listed=parties)
        records = plan.unit == "record"
        step = (
            plan.training().grid_step(self.size)
            if records
            else contribution_step(release.clip_norm, contributions_bound=config.members)
        )
        zeros = Whole(steps=np.zeros(self.size, np.int64), step=step)
        steps = release.total.steps.copy()
        for party in range(parties - colluders, parties):
            at = "noise", release.round, party
            steps -= share.add(zeros, receipt=receipt, at=at, contributions_bound=1).steps
        std = shares_std(plan, release.round, parties - colluders)
        return replace(release, total=Whole(steps=steps, step=shared.step), noise_std=std)


def shares_std(plan: Plan, number: int, parties: int, *, listed: int | None = None) -> float:
    """The stated noise of some parties' shares with their rounding, if this many (or all) parties are listed."""
    shared, (everyone, colluders) = shared_in(plan, number), plan.config.sharing
    honest = (everyone if listed is None else listed) - colluders
    share = plan.round(number).noise_multiplier * shared.noise.clip_norm / math.sqrt(honest)
    return math.sqrt(parties) * math.hypot(share, shared.step / math.sqrt(12))


@dataclass(frozen=True, kw_only=True, eq=False)
class Play:
    """One federation: which canaries were inside, and the adversary's score of each.

    `noise` is each release without its contributions, in stated deviations, [rounds, numbers]; `taken` counts how often
    each canary was drawn.
    """

    inside: NDArray[np.bool_]
    scores: Floats
    noise: Floats
    cohorts: NDArray[np.int64]
    taken: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class CanaryGame:
    """The game against one plan; with `colluding`, the adversary also knows the shares of the colluders' noise."""

    plan: Plan
    colluding: bool = False

    @cached_property
    def clip(self) -> Clip | MedianClip:
        """The clip that bounds the canaries."""
        return self.plan.config.clip

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """The sizes of the separately bounded parts."""
        if isinstance(self.clip, PerLayerClip):
            return tuple(self.clip.parts)
        return (self.clip.size,) if isinstance(self.clip, ElementwiseClip) else (self.canaries,)

    @cached_property
    def canaries(self) -> int:
        """The number of canaries; one, if each client adds its noise."""
        clients = self.plan.round(0).sampler.clients - self.colluders
        if self.plan.noise_by == "party":
            return 1
        if isinstance(self.clip, ElementwiseClip):
            return power_of_two(min(clients, MOST, self.clip.size // _SIGNS))
        room = min(self.clip.parts) if isinstance(self.clip, PerLayerClip) else MOST
        return min(clients, room, MOST)

    @property
    def colluders(self) -> int:
        """The number of parties that may collude."""
        return self.plan.config.sharing[1] if self.plan.noise_by == "parties" else 0

    @cached_property
    def reach(self) -> float:
        """The length of a clipped canary, in L2 bounds; rows of signs leave a few numbers zero."""
        if not isinstance(self.clip, ElementwiseClip):
            return 1.0
        return math.sqrt(np.count_nonzero(self.directions[0]) / self.clip.size)

    @cached_property
    def replaces(self) -> bool:
        """Whether neighbours replace a value: canaries outside then send the opposite."""
        return self.plan.relation is Relation.REPLACE_ONE

    @cached_property
    def directions(self) -> Floats:
        """The contribution of each canary, far beyond the bound, [canaries, numbers]."""
        if isinstance(self.clip, ElementwiseClip):
            return FAR * self.clip.limit * sign_rows(self.canaries, self.clip.size)
        bounds = self.clip.clip_norms if isinstance(self.clip, PerLayerClip) else (1.0,)
        rows = np.zeros((self.canaries, sum(self.parts)))
        begin = 0
        for size, bound in zip(self.parts, bounds, strict=True):
            rows[np.arange(self.canaries), begin + np.arange(self.canaries)] = FAR * bound
            begin += size
        return rows

    def play(self, seed: int) -> Play:
        """Play once."""
        randomness = SeededRandomness(seed=seed)
        inside = randomness.stream("canaries").bits(self.canaries) % np.uint64(2) == 1
        seen = Adversary(self, inside)
        for release, cohort in self.releases(randomness, inside, ledger=self.ledger()):
            seen.see(release, cohort)
        return seen.play()

    def ledger(self) -> Ledger:
        """A ledger in memory with the plan's budget."""
        return Ledger.in_memory(budget=self.plan.budget, relation=self.plan.relation)

    def releases(
        self, randomness: Randomness, inside: NDArray[np.bool_], *, ledger: Ledger
    ) -> Iterator[tuple[Release, NDArray[np.int64]]]:
        """Every round's release and cohort."""
        plan = self.plan
        size = self.directions.shape[1]
        private = PrivateRun(plan, ledger=ledger, randomness=randomness, size=size, label="audit")
        known = Colluders(plan=plan, randomness=randomness, size=size) if self.colluding else None
        carry = private.start()
        for number in range(plan.rounds):
            opened = private.round(number, carry=carry)
            drawn = private.cohort(number)
            rows, sends = self.contributions(drawn, inside)
            send(opened, plan, drawn, rows, clients=sends)
            release = opened.release()
            carry = opened.after
            yield release if known is None else known.less(release), drawn

    def contributions(self, drawn: NDArray[np.int64], inside: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.int64]]:
        """The contributions of a cohort's canaries, one a row, and their numbers."""
        there = drawn[drawn < self.canaries]
        sends = there if self.replaces else there[inside[there]]
        return self.directions[sends] * np.where(inside[sends], 1.0, -1.0)[:, None], sends

    def ratio(self, seen: Floats, noise: float, number: int) -> Floats:
        """The log-likelihood ratio of each canary's projection in a round, in lengths of canaries."""
        prob = participation(self.plan, number)
        inside = log_mixed(seen, 1.0, noise, prob)
        return inside - log_mixed(seen, -1.0, noise, prob) if self.replaces else inside


class Adversary:
    """An adversary who knows all but the coins, and sees one release after the other."""

    def __init__(self, game: CanaryGame, inside: NDArray[np.bool_]) -> None:
        self._game, self._inside = game, inside
        self._llr = np.zeros(game.canaries)
        self._taken = np.zeros(game.canaries, dtype=np.int64)
        self._cohorts: list[int] = []
        self._noise: list[Floats] = []
        self._unit = game.directions / np.linalg.norm(game.directions, axis=1, keepdims=True)

    def see(self, release: Release, drawn: NDArray[np.int64]) -> None:
        """See one more release and its cohort."""
        game = self._game
        there = drawn[drawn < game.canaries]
        signs = np.where(self._inside, 1.0, -1.0 if game.replaces else 0.0)
        took_part = np.zeros(game.canaries)
        took_part[there] = 1.0
        bound, std = release.clip_norm * game.reach, self._std(release)
        left = release.total.values
        self._noise.append((left - bound * (signs * took_part) @ self._unit) / std)
        self._cohorts.append(drawn.size)
        self._taken[there] += 1
        if game.plan.config.groups is None:
            self._llr += game.ratio(self._unit @ left / bound, std / bound, release.round)

    def play(self) -> Play:
        """Score the canaries."""
        noise = np.array(self._noise)
        scores = self._llr
        if self._game.plan.config.groups is not None:
            noise, scores = self._whitened(noise)
        return Play(
            inside=self._inside,
            scores=scores,
            noise=noise,
            cohorts=np.array(self._cohorts),
            taken=self._taken,
        )

    def _std(self, release: Release) -> float:
        """The stated noise of a sum, or of the one client that is seen."""
        plan = self._game.plan
        if plan.noise_by == "party":
            return plan.round(release.round).noise_multiplier * release.clip_norm
        return release.noise_std

    def _whitened(self, noise: Floats) -> tuple[Floats, Floats]:
        """Undo the correlation: the fresh noise of each round, and the scores that it gives."""
        plan = self._game.plan
        its = plan.correlated
        assert its is not None  # noqa: S101 - asked before
        rounds, groups = plan.rounds, its.participation.min_separation
        column = its.strategy.column(rounds)
        strategy = np.array([[column[t - s] if s <= t else 0.0 for s in range(rounds)] for t in range(rounds)])
        fresh = strategy @ noise
        turns = np.arange(rounds)[:, None] % groups == np.arange(self._game.canaries) % groups
        _, std = its.scale(noise.shape[1])
        moved = strategy @ (turns * (its.clip_norm * self._game.reach / std))
        seen = fresh @ self._unit.T + moved * self._inside
        return fresh, np.asarray((seen * moved).sum(axis=0) - (moved**2).sum(axis=0) / 2)


def power_of_two(most: int) -> int:
    """The largest power of two that is not more, and at least 1."""
    return 1 << max(0, most.bit_length() - 1)


def sign_rows(rows: int, size: int) -> Floats:
    """Orthogonal rows of +1 and -1, a power of two of them, after Sylvester (1867), padded with zeros."""
    found = np.zeros((rows, size))
    times = size // rows
    found[:, : rows * times] = np.tile(hadamard(rows), times)
    return found


def participation(plan: Plan, number: int) -> float:
    """The probability that a canary is in a round."""
    sampler = plan.round(number).sampler
    if isinstance(sampler, Poisson | FixedSize):
        return sampler.expected_cohort / sampler.clients
    return 1.0 if isinstance(sampler, Everyone) else 1 / sampler.clients


def log_mixed(seen: Floats, moved: float, noise: float, prob: float) -> Floats:
    """The log-density of a projection over that of noise alone, if a canary takes part with this probability."""
    gain = (2 * moved * seen - moved**2) / (2 * noise**2)
    if prob == 1:
        return gain
    mixed: Floats = np.logaddexp(math.log1p(-prob), math.log(prob) + gain)
    return mixed
