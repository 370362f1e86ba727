"""What adversaries make of a pool: who looks at its instances, and who sees only the average that is published.

Each view is a score of every game: the larger, the more it speaks for the first table. Nobody has to find the best one
for a lower bound to hold.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from incrowd._random import Floats
from incrowd.audit.device_plays import DevicePlay
from incrowd.audit.finding import Finding
from incrowd.audit.pool_plays import PoolGame, PoolSeen
from incrowd.audit.scored import Claim, bounded
from incrowd.drawdiscard.pool import stable_variance
from incrowd.errors import AccountingError, ConfigError
from incrowd.privacy.account.adversaries import Opportunity

MOST_OTHERS = 20
"""So many others answer before and after the device at most: all instances have moved on by then in a small pool."""

LATER_DELTA = 1e-2
"""The delta at which the bound of a later look at one instance is held against an attack."""

_NEARLY_ALL = 1 - 1e-9
"""No instance is so alone that but for one other it would be impossible."""

ONLY_SEEN = "what was found is only observed: the promise against this adversary is the whole epsilon of a contribution"


@dataclass(frozen=True, kw_only=True)
class View:
    """One adversary: what it sees and how it scores.

    `modelled` says what the model of Pihur et al. (2018) gives for it, which is no promise, and `claimed` and `delta`
    what is promised; None where that is the device's own promise.
    """

    attack: str
    score: Callable[[PoolGame, PoolSeen], Floats]
    note: str
    modelled: float | None = None
    claimed: float | None = None
    delta: float | None = None


def pool_findings(game: PoolGame, play: DevicePlay, *, seed: int) -> list[Finding]:
    """What who looks at the pool, or at the published average, finds out about one contribution.

    Guarantee: as every lower bound of an audit, against the promise of one contribution, which holds whoever looks.

    Edge cases: a pool of one instance shows what a device sends to who looks before and after.
    """
    views = list(_views(game))
    scores: list[list[Floats]] = [[] for _ in views]
    coins: list[NDArray[np.bool_]] = []
    for seen, inside in game.seen(play, seed=seed):
        coins.append(inside)
        for column, view in zip(scores, views, strict=True):
            column.append(view.score(game, seen))
    inside = np.concatenate(coins)
    return [_found(game, view, np.concatenate(column), inside) for view, column in zip(views, scores, strict=True)]


def _found(game: PoolGame, view: View, scores: Floats, inside: NDArray[np.bool_]) -> Finding:
    device = game.device
    claimed = device.claimed if view.claimed is None else view.claimed
    delta = device.delta if view.delta is None else view.delta
    claim = Claim(unit="contribution", epsilon=claimed, delta=delta)
    return bounded(claim, scores[inside], scores[~inside], attack=view.attack, note=view.note, modelled=view.modelled)


def _views(game: PoolGame) -> Iterator[View]:
    asked, others = game.device.specification, game.others
    k, epsilon = asked.instances, game.device.claimed
    same = asked.tail is None and asked.falls_every is None
    papers = asked.merge == 1 and asked.noise == "laplace" and same
    expected = (k - 1) / (2 * k) * epsilon if papers and k > 1 else None
    yield View(
        attack=f"two tables told apart by the {k} instances right before and right after the answer",
        score=_before_and_after,
        note=ONLY_SEEN,
    )
    yield View(
        attack=f"two tables told apart by the {k} instances right after the answer, at one moment",
        score=at_one_moment,
        note=f"{ONLY_SEEN}; the paper's figure is an expectation over the server's coins",
        modelled=expected,
    )
    yield View(
        attack=f"two tables told apart by the {k} instances before the answer and {others} answers later",
        score=_before_and_later,
        note=ONLY_SEEN,
    )
    bound = _later_bound(game) if papers else None
    yield View(
        attack=f"two tables told apart by one instance that is drawn {others} answers later",
        score=_one_instance,
        note=ONLY_SEEN if bound is None else "the bound holds where answers overwrite, one after the other",
        claimed=bound,
        delta=None if bound is None else LATER_DELTA,
    )
    yield View(
        attack="two tables told apart by the average that is published before and after the answer",
        score=lambda game, seen: _moved(game, seen.averages[1] - seen.averages[0]),
        note=ONLY_SEEN,
    )
    yield View(
        attack=f"two tables told apart by the average that is published, before the answer and {others} answers later",
        score=lambda game, seen: _moved(game, seen.averages[2] - seen.averages[0]),
        note=ONLY_SEEN,
    )


def _later_bound(game: PoolGame) -> float | None:
    """What one instance tells after the others at most; None where that is beyond what can be computed."""
    try:
        seen = Opportunity(instances=game.instances, epsilon_per_update=game.device.claimed, updates_since=game.others)
        return seen.epsilon(LATER_DELTA)
    except (AccountingError, ConfigError):
        return None


def _before_and_after(game: PoolGame, seen: PoolSeen) -> Floats:
    """Only one instance is another one: it was made of one of those before, each as probably. Nobody knows better."""
    merge, row = game.device.specification.merge, seen.entered
    arrived = (seen.after[row] - (1 - merge) * seen.before[row]) / merge
    noise = (seen.before - arrived) / game.device.specification.gamma
    return _ratio(game, noise[:, None])


def at_one_moment(game: PoolGame, seen: PoolSeen) -> Floats:
    """Any instance may have been made of any other. Where answers are merged, what an instance was is not known, and
    the others' mean stands for it.
    """
    asked, k = game.device.specification, game.instances
    if k == 1:
        return _moved(game, seen.after.mean(axis=0))
    held, merge = seen.after, asked.merge
    if merge == 1:
        return _newest(game, (held[:, None] - held[None]) / asked.gamma)
    rest = (held.sum(axis=0) - held) / (k - 1)  # without the instance itself
    noise = (rest[None] * (1 - merge) + merge * held[:, None] - held[None]) / (merge * asked.gamma)
    own = game.device.mechanism.noise_variance
    unknown = stable_variance(k, asked.gamma**2 * own, merge=merge) * (1 + 1 / (k - 1))
    variance = own + unknown * ((1 - merge) / (merge * asked.gamma)) ** 2
    return _ratio(game, noise, apart=True, variance=variance)


def _newest(game: PoolGame, noise: Floats) -> Floats:
    """The ratio, where any instance may be the new one, [parents, children, games, numbers]: each as probably as the
    others are without it.

    An instance that others descend from is no new one. The probability of a pool is taken to be that of each of its
    instances given all others, and that one is near another by a step without any table, of half the weight, because
    relatives may be further away than one step.
    """
    device, own = game.device, np.arange(len(noise))
    near = device.log_likely(noise) / 2
    near[own, own] = -np.inf
    all_others = logsumexp(near, axis=0)
    share = np.minimum(np.exp(near - all_others), _NEARLY_ALL)
    without = all_others + np.log1p(-share)  # [left out, instance, games]
    without[own, own] = 0.0
    rest = without.sum(axis=1)

    def of(gradient: Floats) -> Floats:
        each = device.log_likely(noise - gradient) + rest
        each[own, own] = -np.inf
        return np.asarray(logsumexp(each, axis=(0, 1)))

    first, second = device.sent
    return of(first) - of(second)


def _before_and_later(game: PoolGame, seen: PoolSeen) -> Floats:
    """What is new was made of what was there before, or of another new one; merged ones are looked at by their mean."""
    if game.device.specification.merge < 1:
        return _moved(game, (seen.later - seen.before).mean(axis=0))
    changed = np.any(seen.later != seen.before, axis=(1, 2))
    parents = np.concatenate([seen.later[changed], seen.before])
    noise = (parents[:, None] - seen.later[changed][None]) / game.device.specification.gamma
    return _ratio(game, noise, apart=True)


def _one_instance(game: PoolGame, seen: PoolSeen) -> Floats:
    """It descends from one of those before, by about as many answers as each instance got; or is near them all."""
    asked, row = game.device.specification, seen.later[seen.one]
    if asked.merge < 1:
        return _moved(game, row - seen.before.mean(axis=0))
    noise = (seen.before - row) / asked.gamma
    variance = game.device.mechanism.noise_variance * (1 + game.others / game.instances)
    return _ratio(game, noise[:, None], variance=variance)


def _moved(game: PoolGame, difference: Floats) -> Floats:
    """How far the weights went where the first table takes them."""
    looked_at = game.device.looked_at
    return np.asarray(-(difference[..., :looked_at] @ game.device.sent[0][:looked_at]))


def _ratio(game: PoolGame, noise: Floats, *, apart: bool = False, variance: float | None = None) -> Floats:
    """How much more probable the first table makes it that one of the steps from parents to children,
    [parents, children, games, numbers], is the device's.

    A child is taken for a given parent's by how probable its step is without any table. With `apart` the first parents
    are the children themselves, and none is its own.
    """
    device = game.device

    def likely(noise: Floats) -> Floats:
        if variance is None:
            return device.log_likely(noise)
        return np.asarray(-(noise[..., : device.looked_at] ** 2).sum(axis=-1) / (2 * variance))

    first, second = device.sent
    nothing = likely(noise)
    own = np.arange(noise.shape[1])
    if apart:
        nothing[own, own] = -np.inf
    parent = logsumexp(nothing, axis=0, keepdims=True)

    def of(gradient: Floats) -> Floats:
        each = likely(noise - gradient) - parent
        if apart:
            each[own, own] = -np.inf
        return np.asarray(logsumexp(each, axis=(0, 1)))

    return of(first) - of(second)
