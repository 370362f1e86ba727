"""Attack one contribution of a draw-and-discard device, with the shipped device code.

Neighbours are any two tables, so the two gradients are opposite and far beyond the bound. Every contribution passes the
real path: bound, whole steps, charge, noise.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from incrowd._random import Floats, SeededRandomness
from incrowd.audit.bounds import Check, Finding
from incrowd.audit.canaries import coins
from incrowd.audit.checks import ALARM, size_of_noise
from incrowd.audit.contributions import on_the_grid
from incrowd.drawdiscard.specification import Specification
from incrowd.errors import ConfigError, IncrowdError
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.device import RELATION, Contribution, Mechanism
from incrowd.privacy.mechanism.grid import Whole
from incrowd.privacy.mechanism.whole_noise import PARTS, SEED_BITS, most_along, random_words, seed_of

_FAR = 1e3
"""A gradient is this many bounds long, so that only the bound shortens it."""

_NUMBERS = 4_000_000
"""An audit draws at most this many numbers."""

_FEW, _WEIGHTS = 8, 40
"""Sizes of contributions whose noise does not depend on it; a direction has more weights than a seed has bits."""

_LAPLACE_KURTOSIS = 6.0

_TABLES = "two tables, as unlike as can be, told apart by"


def audit_specification(asked: Specification, *, trials: int, seed: int) -> tuple[list[Finding], list[Check]]:
    """Attack one contribution of a device that answers a specification.

    Guarantee: gradients and ledgers are synthetic; no ledger is opened. Each check fails on a right device once in a
    million audits.

    Edge cases: a specification without noise is a `ConfigError`; a refused contribution fails the audit.
    """
    if asked.noise == "none":
        remedy = "it is for simulations, and no device answers it: give one with noise"
        raise ConfigError(field="noise", value="none", remedy=remedy)
    mechanism, attack = _small(asked.mechanism), _named_directions if asked.noise == "direction" else _added_noise
    prices = list(_prices(asked, mechanism))
    try:
        finding, checks = attack(mechanism, trials=trials, seed=seed)
    except IncrowdError as error:
        return [], [Check.refused("a contribution", error), *prices]
    return [finding], [*checks, *prices]


def _small(mechanism: Mechanism) -> Mechanism:
    """The mechanism, with fewer numbers where that changes neither their noise nor the price."""
    if mechanism.noise == "direction":
        return replace(mechanism, size=_WEIGHTS)
    same = mechanism.privacy == "feature" or mechanism.bound == "norm"
    return replace(mechanism, size=min(mechanism.size, _FEW)) if same else mechanism


def _added_noise(mechanism: Mechanism, *, trials: int, seed: int) -> tuple[Finding, list[Check]]:
    """Attack additive noise; the adversary knows both gradients.

    Its score is the log-likelihood ratio of the stated noise.
    """
    size, clip, laplace = mechanism.size, mechanism.clip, mechanism.noise == "laplace"
    gradient = np.full(size, _FAR * clip) if mechanism.bound == "element" else np.eye(1, size)[0] * _FAR * clip
    inside, released, _ = _released(mechanism, gradient, seed=seed, trials=max(16, min(trials, _NUMBERS // size)))
    answers, bounded = np.array([each.values for each in released]), np.clip(gradient, -clip, clip)
    noise = (answers - np.where(inside[:, None], bounded, -bounded)) / np.sqrt(mechanism.noise_variance)
    feature = mechanism.privacy == "feature"
    finding = Finding.of(
        _log_likely(mechanism, answers - bounded) - _log_likely(mechanism, answers + bounded),
        inside,
        claimed=mechanism.epsilon,
        delta=mechanism.delta or 0.0,
        gaussian=mechanism.noise == "gaussian",
        unit="contribution",
        attack=f"{_TABLES} {'a number of ' if feature else ''}one contribution",
        note="the server, who draws, and who listens on the way see this",
    )
    longest = max(_length(mechanism, row) for row in _odd(size, clip))
    again = 1 - len(np.unique(np.rint(noise * 2**20), axis=0)) / len(noise)
    return finding, [
        size_of_noise("noise of a contribution", noise.ravel(), kurtosis=_LAPLACE_KURTOSIS if laplace else 3.0),
        Check(
            "longest gradient that enters",
            f"{longest:.6f} bounds",
            "at most 1",
            holds=longest <= 1 + (0 if laplace else 1e-9),
            note="exact, in whole steps" if laplace else "",
        ),
        on_the_grid("what a contribution is made of", released),
        Check("noise that comes again", f"{again:.0%} of the contributions", "none", holds=again < 0.01 or size == 1),
    ]


def _log_likely(mechanism: Mechanism, noise: Floats) -> Floats:
    """The log-likelihood of noise, up to a constant; privacy per feature looks at the first number alone."""
    seen = noise[..., : 1 if mechanism.privacy == "feature" else mechanism.size]
    if mechanism.noise == "laplace":
        return np.asarray(-np.abs(seen).sum(axis=-1) / mechanism.noise_scale)
    return np.asarray(-(seen**2).sum(axis=-1) / (2 * mechanism.noise_scale**2))


def _released(
    mechanism: Mechanism, gradient: Floats, *, seed: int, trials: int
) -> tuple[NDArray[np.bool_], list[Whole], list[int]]:
    """Contributions with the gradient where a coin says so and else with its opposite, and their ledger positions."""
    randomness, positions = SeededRandomness(seed=seed), list[int]()
    inside = coins(randomness, trials)
    ledger = Ledger.in_memory(budget=Budget(epsilon=1e9, delta=0.5), relation=RELATION)

    def charge(its: Mechanism) -> Receipt:
        note = {"per": its.privacy}
        receipt = ledger.charge(its.event(its.privacy), pays_for=its.pays_for, randomness=randomness, note=note)
        positions.append(receipt.entry.position)
        return receipt

    released = [Contribution(mechanism, gradient if first else -gradient).release(charge=charge) for first in inside]
    return inside, released, positions


def _named_directions(mechanism: Mechanism, *, trials: int, seed: int) -> tuple[Finding, list[Check]]:
    """Attack a device that sends random directions.

    The adversary sees the named seed and knows all directions that the device drew, hence also which of them points
    most along either gradient.
    """
    choice, randomness = mechanism.choice, SeededRandomness(seed=seed)
    gradient = SeededRandomness(seed=0).stream("gradient").normals(_WEIGHTS)
    inside, released, positions = _released(mechanism, gradient, seed=seed, trials=trials)
    seeds = np.array([seed_of((each.steps > 0).astype(np.uint8)) for each in released])
    sizes = np.unique(np.abs(np.array([each.steps for each in released])))
    tables = [choice.bounded(one).astype(np.float64) for one in (gradient, -gradient)]
    most = np.empty((2, len(positions)), np.int64)
    for place, position in enumerate(positions):
        word = random_words(randomness.stream("noise", position), choice.candidates)
        tossed = np.array([word() % 2**SEED_BITS for _ in range(choice.candidates)], np.int64)
        most[:, place] = [tossed[most_along(tossed, table)] for table in tables]
    first, second = seeds == most[0], seeds == most[1]
    finding = Finding.of(
        choice.loss / PARTS * (first.astype(np.float64) - second),
        inside,
        claimed=mechanism.epsilon,
        delta=0.0,
        gaussian=False,
        unit="contribution",
        attack=f"{_TABLES} one contribution and all directions that were tossed",
        note="a server sees less: which directions were tossed never leaves the device; so do pools",
    )
    named = int(np.where(inside, first, second).sum())
    low, high = binom.cdf(named, len(seeds), choice.honest), binom.sf(named - 1, len(seeds), choice.honest)
    again = 1 - len(np.unique(seeds)) / len(seeds)
    return finding, [
        Check(
            "how often the direction most along is named",
            f"{named / len(seeds):.4f}",
            f"{choice.honest:.4f}",
            holds=bool(min(low, high) > ALARM / 2),
            note="more often would cost more",
        ),
        Check(
            "size of the numbers of a contribution",
            ", ".join(f"{size} steps" for size in sizes[:3].tolist()),
            f"{choice.length} steps",
            holds=sizes.tolist() == [choice.length],
        ),
        Check(
            "directions that come again",
            f"{again:.1%} of the contributions",
            "hardly any",
            holds=again < 0.01 + len(seeds) / 2**SEED_BITS,
        ),
    ]


def _prices(asked: Specification, mechanism: Mechanism) -> Iterator[Check]:
    """Recompute the price from noise and bound in whole steps, exactly; Gaussian noise has no such price."""
    if mechanism.noise == "gaussian":
        return
    if mechanism.noise == "direction":
        lost = mechanism.choice.loss / PARTS
    else:
        whole = mechanism.whole
        apart = 2 * whole.bound * (mechanism.size if not whole.joint and mechanism.privacy == "model" else 1)
        lost = apart / whole.scale
    measured, stated = f"{lost:.6f}, from whole numbers", f"{mechanism.epsilon:.6f}"
    yield Check("price of a contribution", measured, stated, holds=lost <= mechanism.epsilon)
    repeated, alone = asked.mechanism, asked.repeats
    if mechanism.privacy == "feature":
        charged = 1 / repeated.event("feature").noise_multiplier
        owed = min(alone, repeated.size) * mechanism.epsilon
        name = "price of a column that is told several times"
        yield Check(name, f"{charged:.4f} for {alone} times", f"{owed:.4f}", holds=charged >= owed * (1 - 1e-9))


def _odd(size: int, clip: float) -> Iterator[Floats]:
    """Hostile gradients."""
    stream = SeededRandomness(seed=0).stream("audit")
    yield from (
        np.zeros(size),
        stream.normals(size) * clip / size,
        stream.normals(size) * 1e6 * clip,
        np.full(size, np.finfo(np.float64).max),
        np.full(size, np.nan),
        np.full(size, np.inf),
        np.where(np.arange(size) % 2, 1e300, -1e-300),
        np.eye(1, size)[0] * clip * (1 + 1e-12),
        np.full(size, clip / size * (1 + 1e-12)),
    )


def _length(mechanism: Mechanism, row: Floats) -> float:
    """The length of a bounded gradient, in bounds."""
    bounded = mechanism.bounded(row)
    if mechanism.noise == "laplace":
        whole = mechanism.whole
        sizes = np.abs(bounded)
        return float(sizes.sum() if whole.joint else sizes.max()) / whole.bound
    if mechanism.bound == "element":
        return float(np.abs(bounded).max() / mechanism.clip)
    return float(np.linalg.norm(bounded) / mechanism.clip)
