"""What a simulation may see of a round's contributions. Nothing here is private."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from incrowd._random import Floats


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """How alike the clients' contributions are, before clipping (Geyer, Klein, Nabi 2017, section 3). Simulation only.

    `between_client_variance` is their V_c: each weight's variance over the cohort, averaged over the weights.
    `update_scale` is their U_s: each weight's squared mean over the cohort, averaged over the weights. `norms` are the
    smallest, the quartiles and the largest of the contributions' L2 norms, `fraction_clipped` is the share of them
    above the bound, and `noise_to_signal` the norm of the noise over that of the sum without it, as far as the release
    lets it be seen: None where the noise hides all of it.
    """

    between_client_variance: float
    update_scale: float
    norms: tuple[float, float, float, float, float]
    fraction_clipped: float = 0.0
    noise_to_signal: float | None = None


def noise_to_signal(mean: Floats, noise_std_of_mean: float) -> float | None:
    """The norm of the noise on a released mean over the norm of what it hides; an estimate from the release alone."""
    noise = noise_std_of_mean**2 * mean.size
    signal = float(mean @ mean) - noise
    return math.sqrt(noise / signal) if signal > 0 else None


class Seen(Protocol):
    """Contributions that an engine still has."""

    def norms(self) -> Floats:
        """The L2 norm of each, in one column."""
        ...

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add each of them times its factor (in one column); a factor of 0 adds nothing, not even of NaN."""
        ...


class Watch:
    """Sees every contribution once, on its way to the sum.

    V_c needs no second pass: the variances of all weights add up to the mean squared norm minus the squared norm of the
    mean.
    """

    def __init__(self, size: int) -> None:
        self._total = np.zeros(size)
        self._norms: list[Floats] = []

    def see(self, chunk: Seen) -> None:
        """Take note of the contributions of a chunk; those that are not finite are left out."""
        norms = chunk.norms()[:, 0]
        finite = np.isfinite(norms)
        chunk.add_to(self._total, finite[:, None].astype(np.float64))
        self._norms.append(norms[finite])

    def diagnostics(self, *, fraction_clipped: float = 0.0, noise_to_signal: float | None = None) -> Diagnostics:
        """What was seen, and what the release adds to it; zeros when nothing was."""
        norms = np.concatenate([np.empty(0), *self._norms])
        if norms.size == 0:
            nothing = Diagnostics(between_client_variance=0.0, update_scale=0.0, norms=(0.0,) * 5)
            return replace(nothing, noise_to_signal=noise_to_signal)
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
