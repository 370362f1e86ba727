"""The test of answers that are directions: an answer less its parent is one of the million there are, or it is not.

Nothing is estimated. An honest answer is its parent, moved by the same public length in every weight, along signs that
follow from the first 20 of them (`incrowd.privacy.mechanism.whole_noise`), to the last bit of float32. So whoever makes
answers of their own can do no more than to name a direction, as everybody does.

And not the same one again and again, which would take a model there as straight as nothing else does. An honest device
names a direction only if it tossed it, among N of a million: that bounds how often any of them comes up. What many
directions share is followed, as the residual test follows it (`residual_learnt`): no answer may lie much further along
that than others do.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from incrowd import _validate
from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.residual import ResidualTest
from incrowd.drawdiscard.residual_learnt import Learnt
from incrowd.errors import ConfigError, DataError
from incrowd.privacy.mechanism.device import Mechanism
from incrowd.privacy.mechanism.whole_noise import SEED_BITS, seed_of, sign_bits

MEMORY = 4096
"""The seeds of so many answers are remembered."""

NAMED_PART = 0.3
"""So much of the share of honest answers that may be turned away is for seeds that come up too often."""

TestState = Mapping[str, NDArray[Any]]


class DirectionTest:
    """Whether an answer is a direction's, given its parent.

    Guarantee: nothing passes but directions, each at most `most` times among the last `MEMORY` that did; where all
    devices are honest, whatever their gradients, hardly any of their answers comes up as often. What is learnt of their
    projections turns away at most the rest of the wanted share of directions that have nothing in common. Restored from
    its state it goes on bit for bit.

    Edge cases: where a weight is so large that float32 cannot show a step, the direction has to be the one with +1
    there. What is not finite is turned away. Of a handful of weights there are few directions, and each may come
    often.
    """

    def __init__(
        self, mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None
    ) -> None:
        _validate.fraction(turned_away=turned_away)
        if mechanism.noise != "direction":
            raise ConfigError(field="noise", value=mechanism.noise, remedy="only directions can be told apart so")
        self._shape, choice = (mechanism.size,), mechanism.choice
        self._step, self._length = choice.step, float(choice.length)
        chance = min(1.0, choice.candidates / 2.0 ** min(SEED_BITS, mechanism.size))
        self.most = int(binom.isf(NAMED_PART * turned_away, MEMORY, chance)) + 1
        share = (1 - NAMED_PART) * turned_away
        self._learnt = Learnt(mechanism, share=share, randomness=randomness or SystemRandomness())
        self._scale = mechanism.noise_scale
        self._lately, self._taken, self._counts = np.full(MEMORY, -1, np.int64), 0, Counter[int]()

    def accepts(self, answer: Instance, parent: Instance, gamma: float) -> bool:
        """Whether an honest device may have made this answer of its parent, with steps of this rate."""
        if answer.shape != self._shape or parent.shape != self._shape:
            raise DataError(f"answer and parent are {answer.shape} and {parent.shape}, not {self._shape[0]} weights")
        seed = named_seed(answer, parent, (gamma * self._step) * self._length)  # as `outbox.stepped` has it
        if seed < 0 or self._counts[seed] >= self.most:
            return False
        if not self._learnt.usual(np.subtract(parent, answer, dtype=np.float64) * (1 / (gamma * self._scale))):
            return False
        self._remember(seed)
        return True

    def state(self) -> dict[str, NDArray[Any]]:
        """The seeds of the last answers, and what was learnt of them: all that `restore` needs."""
        return self._learnt.state() | self._named_state()

    def restore(self, state: TestState) -> None:
        """Go on from a state.

        Edge cases: what is no state of such a test raises `DataError`, and nothing changes.
        """
        own = self._named_state()
        alike = all(
            name in state and state[name].shape == array.shape and state[name].dtype == array.dtype
            for name, array in own.items()
        )
        if not alike or not ((state["named"] >= -1) & (state["named"] < 2**SEED_BITS)).all() or state["taken"][0] < 0:
            raise DataError(f"this is no state of a test of directions: it has {', '.join(sorted(state))}")
        self._learnt.restore({name: array for name, array in state.items() if name not in own})
        self._lately[:], self._taken = state["named"], int(state["taken"][0])
        self._counts = Counter(self._lately[self._lately >= 0].tolist())

    def _named_state(self) -> dict[str, NDArray[Any]]:
        return {"named": self._lately.copy(), "taken": np.array([self._taken], np.int64)}

    def _remember(self, seed: int) -> None:
        place = self._taken % MEMORY
        before = int(self._lately[place])
        if before >= 0:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        self._lately[place] = seed
        self._counts[seed] += 1
        self._taken += 1


def named_seed(answer: Instance, parent: Instance, length: float) -> int:
    """The seed of the direction along which an answer is so long a step from its parent; -1 where there is none."""
    wide = parent.astype(np.float64)
    with np.errstate(all="ignore"):  # what is not finite equals nothing
        below, above = (wide - length).astype(np.float32), (wide + length).astype(np.float32)
    seed = seed_of((answer == below).view(np.uint8))
    signs = sign_bits(np.array([seed], np.int64), len(answer))[0].view(np.bool_)
    return seed if (answer == np.where(signs, below, above)).all() and np.isfinite(answer).all() else -1


AnswerTest = ResidualTest | DirectionTest
"""What a desk asks whether an honest device may have made an answer."""


def answer_test(mechanism: Mechanism, *, turned_away: float = 0.01, randomness: Randomness | None = None) -> AnswerTest:
    """The test of a mechanism's answers; see `ResidualTest` for what `turned_away` and `randomness` are."""
    if mechanism.noise == "direction":
        return DirectionTest(mechanism, turned_away=turned_away, randomness=randomness)
    return ResidualTest.of(mechanism, turned_away=turned_away, randomness=randomness)
