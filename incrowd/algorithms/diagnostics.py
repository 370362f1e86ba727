"""Figures of a round's single contributions, for simulations alone: they are not private."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from incrowd._random import Floats


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """The likeness of the clients' contributions before clipping (Geyer, Klein, Nabi 2017, section 3).

    `between_client_variance` is their V_c: the variance over the cohort, averaged over the weights. `update_scale` is
    their U_s: the squared mean over the cohort, averaged over the weights. `norms` are the minimum, the quartiles and
    the maximum of the L2 norms. `fraction_clipped` is the share of norms above the bound. `noise_to_signal` is the norm
    of the noise over the norm of the sum, estimated from the release; None if the noise hides the sum.
    """

    between_client_variance: float
    update_scale: float
    norms: tuple[float, float, float, float, float]
    fraction_clipped: float = 0.0
    noise_to_signal: float | None = None


def noise_to_signal(mean: Floats, noise_std_of_mean: float) -> float | None:
    """The norm of the noise on a released mean over the norm of the mean without it, estimated from the release."""
    noise = noise_std_of_mean**2 * mean.size
    signal = float(mean @ mean) - noise
    return math.sqrt(noise / signal) if signal > 0 else None


class Seen(Protocol):
    """Contributions on their way to the sum."""

    def norms(self) -> Floats:
        """The L2 norm of each, in one column."""
        ...

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add each contribution times its factor (in one column); a factor of 0 adds nothing, not even NaN."""
        ...


class Watch:
    """Collects the figures of every finite contribution in one pass.

    The variances of all weights add up to the mean squared norm minus the squared norm of the mean.
    """

    def __init__(self, size: int) -> None:
        self._total = np.zeros(size)
        self._norms: list[Floats] = []

    def see(self, chunk: Seen) -> None:
        """Add a chunk's contributions."""
        norms = chunk.norms()[:, 0]
        finite = np.isfinite(norms)
        chunk.add_to(self._total, finite[:, None].astype(np.float64))
        self._norms.append(norms[finite])

    def diagnostics(self, *, fraction_clipped: float = 0.0, noise_to_signal: float | None = None) -> Diagnostics:
        """The figures; zeros without contributions."""
        norms = np.concatenate([np.empty(0), *self._norms])
        if norms.size == 0:
            norms = np.zeros(1)
        mean = self._total / norms.size
        squared_mean = float(mean @ mean)
        variance = max(0.0, float(np.mean(norms**2)) - squared_mean)
        smallest, lower, median, upper, largest = np.quantile(norms, [0, 0.25, 0.5, 0.75, 1])
        return Diagnostics(
            between_client_variance=variance / mean.size,
            update_scale=squared_mean / mean.size,
            norms=(float(smallest), float(lower), float(median), float(upper), float(largest)),
            fraction_clipped=fraction_clipped,
            noise_to_signal=noise_to_signal,
        )
