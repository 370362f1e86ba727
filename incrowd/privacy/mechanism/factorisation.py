"""How noise is best correlated over rounds when every client takes part now and then: Toeplitz matrix factorisations.

The server publishes running sums A x of the rounds' sums x. With a lower triangular Toeplitz matrix C (its first
column c_0 = 1, c_1, c_2, ... says everything) it releases x + C^-1 z for independent noise z, which is a function of C
x + z: the promise is that of noise z under the sensitivity of C x, and the error of a running sum is that of A C^-1 z.
A good C lets each round's noise take back a part of the earlier ones. Two families stream over rounds in little
memory: few bands (Choquette-Choo et al. 2023) and a sum of few decaying exponentials, BLT (Dvijotham et al. 2024;
McMahan et al. 2024).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from incrowd import _validate
from incrowd._random import Floats
from incrowd.errors import ConfigError

NoiseMemory = tuple[Floats, ...]


@dataclass(frozen=True, kw_only=True)
class Participation:
    """How often one client may take part: its rounds are at least min_separation apart.

    Guarantee: any pattern of at most `most` rounds out of `rounds` with that spacing is covered, not only regular ones.
    """

    rounds: int
    min_separation: int

    def __post_init__(self) -> None:
        _validate.count(rounds=self.rounds, min_separation=self.min_separation)

    @property
    def most(self) -> int:
        """The largest number of rounds that one client can take part in."""
        return math.ceil(self.rounds / self.min_separation)


class StrategyMatrix(Protocol):
    """A lower triangular Toeplitz matrix C with ones on its diagonal, and how to divide by it one round at a time."""

    def column(self, rounds: int) -> Floats:
        """The first column of C: 1, then numbers from 0 to 1 that never rise."""
        ...

    def start(self, size: int) -> NoiseMemory:
        """What to remember before the first round."""
        ...

    def echo(self, memory: NoiseMemory, size: int) -> Floats:
        """What the earlier rounds' noise n contributes to C n in this round: the sum of c_j times the noise j rounds
        ago.
        """
        ...

    def remember(self, memory: NoiseMemory, noise: Floats) -> NoiseMemory:
        """The memory after this round's noise."""
        ...

    def rounding(self, rounds: int) -> float:
        """How far floating point may take an echo from its true value, relative to the largest noise value."""
        ...


@dataclass(frozen=True, kw_only=True)
class Banded:
    """C of a few bands; coefficients are c_0 = 1, c_1, ... and 0 after them. Remembers the noise of the last rounds.

    Edge cases: one band is independent noise; coefficients that rise or are negative are refused, because the worst
    pattern of participation would be unknown.
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        _validate.number(**{f"coefficients[{i}]": value for i, value in enumerate(self.coefficients)})
        falling = all(a >= b >= 0 for a, b in zip(self.coefficients, self.coefficients[1:], strict=False))
        if self.coefficients[:1] != (1.0,) or not falling:
            raise ConfigError(
                field="coefficients", value=self.coefficients, remedy="start with 1, then fall to 0 or above"
            )

    def column(self, rounds: int) -> Floats:
        """See `StrategyMatrix.column`."""
        column = np.zeros(rounds)
        column[: len(self.coefficients)] = self.coefficients[:rounds]
        return column

    def start(self, size: int) -> NoiseMemory:
        """See `StrategyMatrix.start`: nothing."""
        return ()

    def echo(self, memory: NoiseMemory, size: int) -> Floats:
        """See `StrategyMatrix.echo`; the memory holds the latest noise first."""
        return _combination(self.coefficients[1:], memory, size)

    def remember(self, memory: NoiseMemory, noise: Floats) -> NoiseMemory:
        """See `StrategyMatrix.remember`."""
        return (noise, *memory)[: len(self.coefficients) - 1]

    def rounding(self, rounds: int) -> float:
        """See `StrategyMatrix.rounding`: a sum of products (Higham 2002, section 3.1), with room to spare."""
        return 2.0**-52 * len(self.coefficients) * sum(self.coefficients[1:])


@dataclass(frozen=True, kw_only=True)
class Blt:
    """C with c_t = sum of weights[i] * decays[i]^(t - 1): a buffered linear Toeplitz matrix. Remembers a vector a
    decay.

    Edge cases: weights below 0 or above 1 in all, and decays outside of [0, 1), are refused, because the worst pattern
    of participation would be unknown.
    """

    weights: tuple[float, ...]
    decays: tuple[float, ...]

    def __post_init__(self) -> None:
        _validate.non_negative(**{f"weights[{i}]": value for i, value in enumerate(self.weights)})
        _validate.non_negative(**{f"decays[{i}]": value for i, value in enumerate(self.decays)})
        if len(self.weights) != len(self.decays):
            raise ConfigError(field="decays", value=self.decays, remedy=f"give one for each of {self.weights}")
        if sum(self.weights) > 1:
            raise ConfigError(field="weights", value=self.weights, remedy="let them add up to at most 1")
        if max(self.decays, default=0) >= 1:
            raise ConfigError(field="decays", value=self.decays, remedy="give numbers below 1")

    def column(self, rounds: int) -> Floats:
        """See `StrategyMatrix.column`."""
        powers = np.arange(rounds - 1)[:, None]
        return np.concatenate([[1.0], np.asarray(self.decays) ** powers @ np.asarray(self.weights)])

    def start(self, size: int) -> NoiseMemory:
        """See `StrategyMatrix.start`: a zero vector for each decay."""
        return tuple(np.zeros(size) for _ in self.decays)

    def echo(self, memory: NoiseMemory, size: int) -> Floats:
        """See `StrategyMatrix.echo`; the memory holds the decayed sum of all earlier noise for each decay."""
        return _combination(self.weights, memory, size)

    def remember(self, memory: NoiseMemory, noise: Floats) -> NoiseMemory:
        """See `StrategyMatrix.remember`."""
        return tuple(decay * held + noise for decay, held in zip(self.decays, memory, strict=True))

    def rounding(self, rounds: int) -> float:
        """See `StrategyMatrix.rounding`: a buffer holds up to `length` noise values and as many rounding errors of its
        size.
        """
        lengths = [min(rounds, 1 / (1 - decay)) for decay in self.decays]
        buffers = zip(self.weights, lengths, strict=True)
        return 2.0**-52 * sum(weight * length * (length + len(lengths) + 1) for weight, length in buffers)


def sensitivity(column: Floats, participation: Participation) -> float:
    """The L2 norm of the most that one client with contributions of norm 1 can change C x.

    For a column that is not negative and never rises the worst pattern starts in the first round and is as dense as
    allowed (Kalinin and Lampert 2024, theorem 2); the worst contributions then all point the same way. Rounds after
    the last do not count: the matrix ends there.
    """
    return float(np.linalg.norm(_worst(column, participation)))


def mean_squared_error(column: Floats, participation: Participation) -> float:
    """The mean over rounds of the variance of one number of A C^-1 z, for a noise multiplier and a clip bound of 1.

    A adds up: the server's model is the sum of the releases, and all entries of A's columns below the diagonal are 1.
    """
    effect = np.cumsum(inverse(column))
    times = np.arange(participation.rounds, 0, -1)  # the t-th diagonal of A C^-1 has that many entries
    return float(times @ effect**2) / participation.rounds * sensitivity(column, participation) ** 2


def improvement(column: Floats, participation: Participation) -> float:
    """How many times smaller the typical error (root mean square) is than with independent noise at the same cost."""
    independent = np.zeros(participation.rounds)
    independent[0] = 1
    errors = [mean_squared_error(c, participation) for c in (independent, column)]
    return math.sqrt(errors[0] / errors[1])


def inverse(column: Floats) -> Floats:
    """The first column of C^-1."""
    result = np.zeros(len(column))
    result[0] = 1
    for t in range(1, len(column)):
        result[t] = -(column[1 : t + 1] @ result[:t][::-1])
    return result


def square_root(rounds: int) -> Floats:
    """The first column of the matrix whose square adds up: the coefficients of (1 - x)^(-1/2), good for one
    participation.
    """
    t = np.arange(1, rounds)
    return np.concatenate([[1.0], np.cumprod((2 * t - 1) / (2 * t))])


def optimal_banded(participation: Participation, *, bands: int) -> Banded:
    """The bands with (nearly) the least mean squared error, found from the closed form `square_root`.

    Guarantee: never worse than `square_root` cut off after its bands. The search repeats itself on one machine, but
    not to the last bit on all: keep the coefficients, not the recipe.
    """
    _validate.count(bands=bands)
    bands = min(bands, participation.rounds)

    def from_ratios(ratios: Floats) -> tuple[Floats, Callable[[Floats], Floats]]:
        coefficients = np.concatenate([[1.0], np.cumprod(ratios)])

        def pull(slope: Floats) -> Floats:  # a ratio scales all coefficients after it
            return np.cumsum((slope[:bands] * coefficients)[:0:-1])[::-1] / ratios

        return _padded(coefficients, participation.rounds), pull

    start = square_root(bands)
    ratios = _minimise(from_ratios, start[1:] / start[:-1], participation, bounds=(1e-6, 1.0))
    return Banded(coefficients=tuple(np.concatenate([[1.0], np.cumprod(ratios)]).tolist()))


def optimal_blt(participation: Participation, *, buffers: int) -> Blt:
    """The buffers with (nearly) the least mean squared error, found from decays spread evenly over the time scales.

    Guarantee: as `optimal_banded`, never worse than its start.
    """
    _validate.count(buffers=buffers)
    powers = np.arange(participation.rounds - 1)[:, None]

    def unpack(logits: Floats) -> tuple[Floats, Floats]:
        shares = np.exp(logits[:buffers])
        return shares / (1 + shares.sum()), 1 / (1 + np.exp(-logits[buffers:]))

    def from_logits(logits: Floats) -> tuple[Floats, Callable[[Floats], Floats]]:
        weights, decays = unpack(logits)
        decayed = decays**powers

        def pull(slope: Floats) -> Floats:
            by_weight = slope[1:] @ decayed
            by_decay = slope[1:] @ (powers * decayed) / decays * weights
            return np.concatenate([weights * (by_weight - weights @ by_weight), by_decay * decays * (1 - decays)])

        return np.concatenate([[1.0], decayed @ weights]), pull

    spans = np.geomspace(2, max(3, participation.rounds), buffers + 1)[:-1]
    weights = 0.5 * spans**-0.5 / (spans**-0.5).sum()
    start = np.concatenate([np.log(weights / 0.5), np.log(spans - 1)])
    best, decays = unpack(_minimise(from_logits, start, participation, bounds=(-30.0, 30.0)))
    return Blt(weights=tuple(best.tolist()), decays=tuple(decays.tolist()))


Parametrised = Callable[[Floats], tuple[Floats, Callable[[Floats], Floats]]]
"""From parameters to a column, and from the slope by the column to the slope by the parameters."""


def _minimise(
    column_of: Parametrised,
    start: Floats,
    participation: Participation,
    *,
    bounds: tuple[float, float],
) -> Floats:
    from scipy.optimize import minimize

    if start.size == 0:
        return start

    def target(parameters: Floats) -> tuple[float, Floats]:
        column, pull = column_of(parameters)
        value, slope = _log_error(column, participation)
        return value, pull(slope)

    options = {"maxiter": 1000}
    minimum = minimize(target, start, jac=True, method="L-BFGS-B", bounds=[bounds] * start.size, options=options)
    return min(start, np.asarray(minimum.x), key=lambda x: mean_squared_error(column_of(x)[0], participation))


def _log_error(column: Floats, participation: Participation) -> tuple[float, Floats]:
    """The logarithm of the mean squared error, up to a constant, and its slope by the column."""
    rounds = participation.rounds
    undo = inverse(column)
    effect = np.cumsum(undo)
    weighted = effect * np.arange(rounds, 0, -1)
    error = weighted @ effect
    by_effect = np.convolve(effect, undo)[:rounds]  # d effect / d c_s is minus this, s rounds later
    error_slope = -2 * np.correlate(weighted, by_effect, "full")[rounds - 1 :]

    worst = _worst(column, participation)
    square_slope = np.zeros(rounds)
    for start in range(0, rounds, participation.min_separation):
        square_slope[: rounds - start] += 2 * worst[start:]
    square = worst @ worst
    return math.log(error) + math.log(square), error_slope / error + square_slope / square


def _worst(column: Floats, participation: Participation) -> Floats:
    total = np.zeros(participation.rounds)
    for start in range(0, participation.rounds, participation.min_separation):
        total[start:] += column[: participation.rounds - start]
    return total


def _padded(coefficients: Floats, rounds: int) -> Floats:
    return np.concatenate([coefficients, np.zeros(rounds - len(coefficients))])


def _combination(factors: tuple[float, ...], vectors: NoiseMemory, size: int) -> Floats:
    total = np.zeros(size)
    for factor, vector in zip(factors, vectors, strict=False):
        total += factor * vector
    return total
