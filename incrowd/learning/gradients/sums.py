"""Clipped sums of records' gradients, step after step: the one loop of DP-SGD, whoever computes the gradients."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats, Stream
from incrowd.data.inputs import Inputs
from incrowd.learning.deltas import halved_squares
from incrowd.learning.records import StepNoise, poisson_batches
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.steps import RecordTraining


class RecordGradients(Protocol):
    """The clipped sum of records' gradients, at weights that change from step to step."""

    @property
    def total(self) -> Tensor:
        """The sum so far, a vector. Private."""
        ...

    @property
    def rows(self) -> int:
        """How many records it works on at once, at most."""
        ...

    def begin(self, records: int) -> None:
        """Begin a sum anew, of the gradients of so many records."""
        ...

    def norms(self, features: Inputs, labels: Tensor) -> Floats:
        """The L2 norms of the gradients of these records' losses, in float64; not finite where a gradient is not."""
        ...

    def add(self, factors: Tensor) -> None:
        """Add the gradients just measured, times their factors; a factor of 0 leaves one out, whatever it holds."""
        ...


class NoisedSums:
    """The noised sums of a round's steps. `read` takes numbers of records and gives their features and labels.

    Guarantee: every gradient that enters a sum has a norm of at most `clip_norm`; one that is not finite does not, and
    is counted in `dropped`. What leaves is what `noise` gave, called once a step.

    Edge cases: a step without records is one of noise alone.
    """

    def __init__(
        self, gradients: RecordGradients, read: Callable[[Tensor], tuple[Inputs, Tensor]], *, records: int
    ) -> None:
        self.gradients = gradients
        self.read = read
        self.records = records
        self.dropped = 0

    def steps(self, training: RecordTraining, *, noise: StepNoise, batches: Stream) -> Iterator[Tensor]:
        """The noised sum of each step; move the weights before you take the next."""
        gradients, clip = self.gradients, FixedClip(clip_norm=training.clip_norm)
        device = gradients.total.device
        for batch in poisson_batches(self.records, training, batches=batches):
            gradients.begin(len(batch))
            for begin in range(0, len(batch), gradients.rows):
                rows = torch.from_numpy(batch[begin : begin + gradients.rows])
                self._add(rows.to(device), clip)
            yield noise(gradients.total)

    def _add(self, rows: Tensor, clip: FixedClip) -> None:
        norms = self.gradients.norms(*self.read(rows))
        finite = np.isfinite(norms)
        factors = clip.factors(np.where(finite, norms, 0.0)) * finite
        self.gradients.add(torch.from_numpy(factors).to(rows.device))
        self.dropped += len(norms) - int(finite.sum())


class Formed:
    """A clipped sum, in float64, of gradients that are there as numbers.

    Guarantee: what a record adds follows from its gradient and its factor alone, bit for bit.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.total = torch.zeros(sum(sizes), dtype=torch.float64, device=device)
        self.places = self.total.split_with_sizes(list(sizes))
        self._gradients: Sequence[Tensor] = []
        self._here = device.type == "cpu"
        self._work: type[_ByTorch] = _InLoops if device.type == "cpu" else _ByTorch

    def squares(self, gradients: Sequence[Tensor]) -> Tensor:
        """The squared norms of the gradients of some records, given by parameter: [records, size of it] each."""
        self._gradients = gradients
        squares = torch.zeros(len(gradients[0]), dtype=torch.float64, device=self.total.device)
        for gradient in gradients:
            self._work.add_squares(gradient, squares)
        return squares

    def norms(self, gradients: Sequence[Tensor]) -> Floats:
        """The norms of these gradients."""
        norms: Floats = self.squares(gradients).sqrt_().cpu().numpy()
        return norms

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`.

        Edge cases: the gradients are not kept, but on an accelerator, which may repeat this by itself in their memory.
        """
        gradients = self._gradients
        if self._here:
            self._gradients = []
        for gradient, place in zip(gradients, self.places, strict=True):
            self._work.add_rows(gradient, factors, place)


class _ByTorch:
    """What `incrowd.learning.gradients.loops` does, wherever torch computes."""

    @staticmethod
    def add_squares(gradient: Tensor, squares: Tensor) -> None:
        """Add the squared norm of each row to its number."""
        squares += halved_squares(gradient)

    @staticmethod
    def add_rows(gradient: Tensor, factors: Tensor, place: Tensor) -> None:
        """Add the rows, times their factors, but those whose factor is 0."""
        kept = torch.where((factors != 0)[:, None], gradient, 0.0)  # zero times infinity is not zero
        place.addmv_(kept.double().t(), factors)


class _InLoops(_ByTorch):
    """The same in one pass over memory, on a CPU."""

    @staticmethod
    def add_squares(gradient: Tensor, squares: Tensor) -> None:
        """See `_ByTorch.add_squares`."""
        from incrowd.learning.gradients import loops  # numba takes a while to start

        loops.add_squares(gradient.numpy(), squares.numpy())

    @staticmethod
    def add_rows(gradient: Tensor, factors: Tensor, place: Tensor) -> None:
        """See `_ByTorch.add_rows`."""
        from incrowd.learning.gradients import loops

        loops.add_rows(gradient.numpy(), factors.numpy(), place.numpy())
