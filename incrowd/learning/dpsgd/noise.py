"""The noise of one step of record-level training on tensors: of a round that is paid for, or fast, for simulations."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats, Randomness
from incrowd.errors import ConfigError
from incrowd.learning.dpsgd.records import StepNoise
from incrowd.privacy.mechanism.noise import RecordTraining


def on_tensors(noised: Callable[[Floats], Floats]) -> StepNoise:
    """A function that adds noise to a flat float64 array, for an engine's tensors."""

    def hide(total: Tensor) -> Tensor:
        return torch.from_numpy(noised(total.double().cpu().numpy())).to(total.device)

    return hide


class FastNoise:
    """Gaussian noise in float32 from torch's generator, a small part of a step's time. For simulations only.

    Guarantee: the same seed and indices give the same noise, on one kind of device; torch's global generator is neither
    read nor changed.

    Edge cases: randomness that is not simulated is refused, because the low bits of this noise tell the sum.
    """

    def __init__(self, training: RecordTraining, seed: int) -> None:
        self.std = training.noise_multiplier * training.sensitivity
        self._seed = seed
        self._generator: torch.Generator | None = None

    @classmethod
    def of(cls, training: RecordTraining, randomness: Randomness, *indices: int) -> "FastNoise":
        """The noise of a round (and silo, say)."""
        if not randomness.simulated:
            raise ConfigError(
                field="randomness", value=type(randomness).__name__, remedy="simulate, or use the noise of a RecordRun"
            )
        return cls(training, int(randomness.stream("noise", *indices).bits(1)[0] >> np.uint64(1)))

    def __call__(self, total: Tensor) -> Tensor:
        """The sum with noise on it."""
        if self._generator is None:
            self._generator = torch.Generator(total.device).manual_seed(self._seed)
        noise = torch.empty_like(total, dtype=torch.float32).normal_(generator=self._generator)
        return noise.mul_(self.std).add_(total)
