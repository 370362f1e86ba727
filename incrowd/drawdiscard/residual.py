"""The spam test: an answer less its parent has to look like an honest device's step and noise.

An answer descends from an instance that the server knows, its parent: the ticket names it. What remains of the answer
when the parent is taken off is the noise that the specification asks for and a step that the clip bounds, and nothing
else: whoever shifts, replays, averages or invents weights leaves another residual. See `residual_limits`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from incrowd import _validate
from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.residual_learnt import Learnt
from incrowd.drawdiscard.residual_limits import ResidualLimits, fixed_limits
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism

PLAUSIBLE = 16.0
"""Weights up to this are exact enough in float32 for every specification that `check_rounding` lets through."""

ROUNDING = 2.0**-5
"""The error of a weight's last place may be so large, in units of the noise's scale."""

FIXED_PART = 0.92
"""So much of the wanted share of honest answers the fixed limits may turn away; the rest is for what is learnt."""

ResidualState = dict[str, NDArray[np.float64]]


def least_gamma(mechanism: Mechanism) -> float:
    """The smallest steps whose noise float32 weights of up to `PLAUSIBLE` show.

    Rounding adds an error of up to 2^-24 times the weight to every residual. Up to a 32nd of the noise's scale that
    raises mean |r| and mean r^2 by less than a fiftieth of their standard deviation, even with 100,000 weights.
    """
    return PLAUSIBLE * 2.0**-24 / ROUNDING / mechanism.noise_scale


def check_rounding(mechanism: Mechanism, *, gamma: float) -> None:
    """Refuse a noise that float32 could not show (see `least_gamma`), or that no pool has room for: `ConfigError`."""
    _validate.positive(gamma=gamma)
    least = least_gamma(mechanism)
    if gamma < least:
        remedy = f"float32 weights cannot show so little noise: give at least {least:.2g}, or a smaller epsilon"
        raise ConfigError(field="gamma", value=gamma, remedy=remedy)
    if gamma * mechanism.noise_scale > 1e20:
        raise ConfigError(field="gamma", value=gamma, remedy="no pool has room for such steps: give a gamma nearer 1")


class ResidualTest:
    """Whether an honest device may have sent an answer, given its parent.

    Guarantee: of honest answers at most the wanted share is turned away, whatever their steps within the clip, and
    nearly that share where there is noise alone; however instances are merged, and whatever gamma. The same calls have
    the same answers. Restored from its state it goes on bit for bit.

    Edge cases: not safe to share between threads: callers hold a lock. Noise ``none`` is refused (`ConfigError`): there
    would be nothing to tell answers by. What is not finite is turned away.
    """

    def __init__(self, mechanism: Mechanism, limits: ResidualLimits, *, learnt: Learnt | None = None) -> None:
        self.mechanism, self.limits, self.learnt = mechanism, limits, learnt
        self._shape, self._scale = (mechanism.size,), mechanism.noise_scale

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        *,
        turned_away: float = 0.01,
        learns: bool = True,
        randomness: Randomness | None = None,
    ) -> "ResidualTest":
        """The test of a specification's answers that turns away at most this share of the honest ones.

        What is secret of it (see `residual_learnt.Learnt`) is from `randomness`; the operating system's by default.
        """
        _validate.fraction(turned_away=turned_away)
        limits = fixed_limits(mechanism, share=FIXED_PART * turned_away)
        if not learns:
            return cls(mechanism, limits)
        share, secret = (1 - FIXED_PART) * turned_away, randomness or SystemRandomness()
        learnt = Learnt(mechanism, share=share, randomness=secret)
        return cls(mechanism, limits, learnt=learnt)

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this rate."""
        if answer.shape != self._shape or parent.shape != self._shape:
            raise DataError(f"answer and parent are {answer.shape} and {parent.shape}, not {self._shape[0]} weights")
        with np.errstate(all="ignore"):  # what is not a number fails every limit
            residual = np.subtract(parent, answer, dtype=np.float64) * (1 / (gamma * self._scale))
            sizes, count = np.abs(residual), len(residual)
            mean, square = float(sizes.sum()) / count, float(np.einsum("i,i->", residual, residual)) / count
            most = float(sizes.max())
        limits = self.limits
        within = limits.low <= mean <= limits.high and limits.low_square <= square <= limits.high_square
        if not (within and most <= limits.most):
            return False
        return self.learnt is None or self.learnt.usual(residual, (mean, square))

    def state(self) -> ResidualState:
        """What was learnt: all that `restore` needs."""
        return {} if self.learnt is None else self.learnt.state()

    def restore(self, state: Mapping[str, NDArray[np.float64]]) -> None:
        """Go on from a state.

        Edge cases: what is no state of such a test raises `DataError`, and nothing changes.
        """
        if self.learnt is not None:
            self.learnt.restore(state)
        elif state:
            raise DataError(f"this test learns nothing, and the state has {', '.join(sorted(state))}")
