"""The test of answers that are directions: an answer less its parent is one of the million there are, or it is not.

Nothing is estimated. An honest answer is its parent, moved by the same public length in every weight, along signs that
follow from the first 20 of them (`incrowd.privacy.mechanism.signs`), to the last bit of float32. So no honest answer is
ever turned away, and whoever makes answers of their own can do no more than to name a direction, as everybody does.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from incrowd._random import Randomness
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.residual import ResidualTest
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.signs import SEED_BITS, SignBits, seed_of, sign_bits

TestState = Mapping[str, NDArray[Any]]


class AnswerTest(Protocol):
    """What a desk asks of an answer."""

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this rate."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """What was learnt: all that `restore` needs."""
        ...

    def restore(self, state: TestState) -> None:
        """Go on from a state."""
        ...


def answer_test(mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None) -> AnswerTest:
    """The test of a mechanism's answers; see `ResidualTest` for what `turned_away` and `randomness` are."""
    if mechanism.noise == "direction":
        return DirectionTest(mechanism)
    return ResidualTest.of(mechanism, turned_away=turned_away, randomness=randomness)


class DirectionTest:
    """Whether an answer is a direction's, given its parent.

    Guarantee: every honest answer passes, and no other but those that name one of the directions. Nothing is learnt.

    Edge cases: where a weight is so large that float32 cannot show a step, the direction has to be the one with +1
    there. What is not finite is turned away.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        if mechanism.noise != "direction":
            raise ConfigError(field="noise", value=mechanism.noise, remedy="only directions can be told apart so")
        self._shape, choice = (mechanism.size,), mechanism.choice
        self._step, self._length = choice.step, float(choice.length)
        self._descends = _fastest()

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this rate."""
        if answer.shape != self._shape or parent.shape != self._shape:
            raise DataError(f"answer and parent are {answer.shape} and {parent.shape}, not {self._shape[0]} weights")
        return bool(self._descends(answer, parent, (gamma * self._step) * self._length))  # as `outbox.stepped` has it

    def state(self) -> dict[str, NDArray[Any]]:
        """Nothing."""
        return {}

    def restore(self, state: TestState) -> None:
        """Go on from a state.

        Edge cases: one that is not empty is of another test (`DataError`).
        """
        if state:
            raise DataError(f"this test learns nothing, and the state has {', '.join(sorted(state))}")


def descends(answer: Instance, parent: Instance, length: float) -> bool:
    """Whether an answer is its parent less so long a step along one of the directions; the twin of compiled code."""
    wide = parent.astype(np.float64)
    with np.errstate(all="ignore"):  # what is not finite equals nothing
        below, above = (wide - length).astype(np.float32), (wide + length).astype(np.float32)
    bits: SignBits = (answer == below).astype(np.uint8)
    if not ((bits == 1) | (answer == above)).all() or not np.isfinite(answer).all():
        return False
    return bool((sign_bits(np.array([seed_of(bits)], np.int64), len(bits))[0] == bits).all())


def _fastest() -> Callable[[Instance, Instance, float], bool]:
    try:
        from incrowd.drawdiscard.direction_kernel import descends as compiled
    except ImportError:  # numba is not installed
        return descends
    return compiled


__all__ = ["SEED_BITS", "AnswerTest", "DirectionTest", "answer_test", "descends"]
