"""Statistical checks: each gives the probability of a sample at least this odd, so that fixed seeds keep tests steady.

A check that accepts the right scale must reject two thirds and three halves of it: `rejects_wrong_scale`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from incrowd._random import Floats

Check = Callable[[Floats], float]

ODD = 1e-9
"""A sample less probable than this is taken as a fault. The operating system's noise cannot be seeded: so rarely that a
thousand checks a run still fail by chance only once in a million runs."""


def ks(distribution: str, *, scale: float = 1.0) -> Check:
    """Kolmogorov and Smirnov's check of a centred distribution of scipy.stats ("norm", "laplace")."""
    return lambda sample: float(stats.kstest(sample, distribution, args=(0.0, scale)).pvalue)


def moments(*, variance: float, kurtosis: float, eighth: float) -> Check:
    """The worst of mean, variance and fourth moment, each in its standard error; two-sided, times three.

    `kurtosis` and `eighth` are the standardised fourth and eighth moments of the right distribution.
    """

    def check(sample: Floats) -> float:
        standard = sample / np.sqrt(variance)
        root = np.sqrt(len(sample))
        errors = [
            np.mean(standard) * root,
            (np.mean(standard**2) - 1) * root / np.sqrt(kurtosis - 1),
            (np.mean(standard**4) - kurtosis) * root / np.sqrt(eighth - kurtosis**2),
        ]
        return float(min(1.0, 3 * min(2 * stats.norm.sf(abs(error)) for error in errors)))

    return check


NORMAL_MOMENTS = moments(variance=1, kurtosis=3, eighth=105)
LAPLACE_MOMENTS = moments(variance=2, kurtosis=6, eighth=2520)


def chi_square(counts: NDArray[np.int64], probabilities: Floats) -> float:
    """Pearson's check of counts against probabilities that add up to 1."""
    return float(stats.chisquare(counts, probabilities / probabilities.sum() * counts.sum()).pvalue)


def fair(heads: int, tosses: int, *, chance: float = 0.5) -> float:
    """The exact check of a number of heads."""
    return float(stats.binomtest(heads, tosses, chance).pvalue)


def uncorrelated(first: Floats, second: Floats) -> float:
    """The check that two samples with finite variance do not go together."""
    return float(2 * stats.norm.sf(abs(np.corrcoef(first, second)[0, 1]) * np.sqrt(len(first))))


def rejects_wrong_scale(check: Check, sample: Floats) -> bool:
    """Whether the check accepts the sample, and would not if its scale were 2/3 or 3/2 of what it is."""
    return check(sample) > ODD and check(sample * 2 / 3) < ODD and check(sample * 3 / 2) < ODD
