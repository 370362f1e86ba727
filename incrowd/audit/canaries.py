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
from scipy.linalg import hadamard, toeplitz

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


def ledger_of(plan: Plan) -> Ledger:
    """A ledger in memory with the plan's budget."""
    return Ledger.in_memory(budget=plan.budget, relation=plan.relation)


def run_of(plan: Plan, randomness: Randomness, size: int, *, ledger: Ledger | None = None) -> PrivateRun:
    """A run of a plan, on a ledger in memory unless one is given."""
    ledger = ledger_of(plan) if ledger is None else ledger
    return PrivateRun(plan, ledger=ledger, randomness=randomness, size=size, label="audit")


def coins(randomness: Randomness, count: int) -> NDArray[np.bool_]:
    """Fair coins, which say who is inside."""
    found: NDArray[np.bool_] = randomness.stream("canaries").bits(count) % np.uint64(2) == 1
    return found


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


class Colluders:
    """The colluders of a simulated plan: the last parties of its roster, whose parts the adversary knows."""

    def __init__(self, plan: Plan, randomness: Randomness, size: int) -> None:
        self.plan, self.size, self._run = plan, size, run_of(plan, randomness, size)

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
            return 1 << max(0, min(clients, MOST, self.clip.size // _SIGNS).bit_length() - 1)  # a power of two
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

    @cached_property
    def unit(self) -> Floats:
        """The direction of each canary, at length 1."""
        found: Floats = self.directions / np.linalg.norm(self.directions, axis=1, keepdims=True)
        return found

    def play(self, seed: int) -> Play:
        """Play once: the adversary knows all but the coins, and sees all releases."""
        randomness = SeededRandomness(seed=seed)
        inside = coins(randomness, self.canaries)
        releases, cohorts = zip(*self.releases(randomness, inside, ledger=ledger_of(self.plan)), strict=True)
        took = np.array([np.isin(np.arange(self.canaries), drawn) for drawn in cohorts])  # [rounds, canaries]
        bounds = np.array([release.clip_norm * self.reach for release in releases])
        stds = np.array([self._std(release) for release in releases])
        seen = np.array([release.total.values for release in releases])
        signs = np.where(inside, 1.0, -1.0 if self.replaces else 0.0)
        noise = (seen - bounds[:, None] * (signs * took) @ self.unit) / stds[:, None]
        if self.plan.correlated is None:
            along = seen @ self.unit.T / bounds[:, None]
            each = [self._ratio(along[number], stds[number] / bounds[number], number) for number in range(len(seen))]
            scores = np.sum(each, axis=0)
        else:
            noise, scores = self._whitened(noise, inside)
        return Play(
            inside=inside,
            scores=scores,
            noise=noise,
            cohorts=np.array([drawn.size for drawn in cohorts]),
            taken=took.sum(axis=0),
        )

    def releases(
        self, randomness: Randomness, inside: NDArray[np.bool_], *, ledger: Ledger
    ) -> Iterator[tuple[Release, NDArray[np.int64]]]:
        """Every round's release and cohort."""
        plan = self.plan
        size = self.directions.shape[1]
        private = run_of(plan, randomness, size, ledger=ledger)
        known = Colluders(plan, randomness, size) if self.colluding else None
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

    def _ratio(self, seen: Floats, noise: float, number: int) -> Floats:
        """The log-likelihood ratio of each canary's projection in a round, in lengths of canaries."""
        prob = participation(self.plan, number)
        inside = log_mixed(seen, 1.0, noise, prob)
        return inside - log_mixed(seen, -1.0, noise, prob) if self.replaces else inside

    def _std(self, release: Release) -> float:
        """The stated noise of a sum, or of the one client that is seen."""
        if self.plan.noise_by == "party":
            return self.plan.round(release.round).noise_multiplier * release.clip_norm
        return release.noise_std

    def _whitened(self, noise: Floats, inside: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Undo the correlation: the fresh noise of each round, and the scores that it gives."""
        its, rounds = self.plan.correlated, self.plan.rounds
        assert its is not None  # noqa: S101 - asked before
        strategy = strategy_of(self.plan, rounds)
        fresh = strategy @ noise
        groups = its.groups
        turns = np.arange(rounds)[:, None] % groups == np.arange(self.canaries) % groups
        _, std = its.scale(noise.shape[1])
        moved = strategy @ (turns * (its.clip_norm * self.reach / std))
        seen = fresh @ self.unit.T + moved * inside
        return fresh, np.asarray((seen * moved).sum(axis=0) - (moved**2).sum(axis=0) / 2)


def strategy_of(plan: Plan, rounds: int) -> Floats:
    """The matrix that undoes the correlation of the noise of the first rounds."""
    assert plan.correlated is not None  # noqa: S101 - asked before
    return np.asarray(toeplitz(plan.correlated.column[:rounds], np.zeros(rounds)))


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
