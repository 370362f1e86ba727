"""Our engine for DP-SGD: the noisy steps of a round over the records of a silo."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from incrowd._random import Stream
from incrowd.data.examples import Inputs
from incrowd.learning.dpsgd.gradients import RecordGradients
from incrowd.learning.dpsgd.records import Records, StepNoise, Trained, poisson_batches
from incrowd.learning.dpsgd.selection import GradientSelection
from incrowd.learning.execution import Execution, ieee
from incrowd.learning.losses import CROSS_ENTROPY, Loss
from incrowd.learning.models import Model
from incrowd.learning.modules import refuse_dropout, remembering_nothing
from incrowd.learning.trial import OwnCode, tried, tried_with_tokens
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent

EXECUTION = Execution()
"""On the CPU."""


class BatchedRecords:
    """Trains a model on the records of a silo, a physical batch at a time: see `RecordEngine`.

    Guarantee: those of `incrowd.learning.dpsgd`. The module of the model is never written to.
    """

    def __init__(
        self,
        model: Model,
        records: Records,
        descent: Descent,
        *,
        loss: Loss = CROSS_ENTROPY,
        execution: Execution = EXECUTION,
    ) -> None:
        self.model, self.descent, self.loss, self.execution = model, descent, loss, execution
        self.records = records.to(torch.device(execution.device))
        refuse_dropout(model.module)
        tried(model, records.features, records.labels, loss, each_alone=True, what="records")
        tried_with_tokens(model, records.features, what="records")
        self._own = OwnCode(model.module, loss)
        self._selection = GradientSelection(model, loss, records, execution)

    @property
    def size(self) -> int:
        """See `RecordEngine.size`."""
        return self.model.size

    @property
    def third_party(self) -> str:
        """See `RecordEngine.third_party`."""
        return ", ".join(self._own.names)

    @property
    def held(self) -> int:
        """See `RecordEngine.held`."""
        return len(self.records)

    def rehearsal(self, records: int) -> "BatchedRecords":
        """See `RecordEngine.rehearsal`; the records are zeros, and so are their labels."""
        engine = copy.copy(self)
        engine.records = self.records.made_up(records)
        return engine

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """See `RecordEngine.train`."""
        with self._at(weights, training) as (now, sums):
            walk = _Walk(self.descent, now)
            for noised in sums.steps(training, noise=noise, batches=batches):
                walk.step(noised, training.expected_batch)
            return Trained(weights=now.cpu(), dropped=sums.dropped)

    def clipped_sum(self, weights: ArrayLike | Tensor, training: RecordTraining, *, batches: Stream) -> Tensor:
        """The clipped sum of one step's batch at these weights, without noise: private."""
        one = replace(training, steps=1)
        with self._at(weights, one) as (_, sums):
            [total] = sums.steps(one, noise=_as_it_is, batches=batches)
            return total

    @contextmanager
    def _at(self, weights: ArrayLike | Tensor, training: RecordTraining) -> Iterator[tuple[Tensor, "ClippedSums"]]:
        """A copy of the weights, and the sums at that copy."""
        device = self.records.device
        with ieee(device.type), self._own.unchanged():
            now = self.model.flat(weights).to(device, copy=True)
            sums = ClippedSums(self._selection.gradients(now, training), self.records.take, records=self.held)
            module = sums.gradients.module or nn.Identity()
            with remembering_nothing(module, device, whose="record"):
                yield now, sums


class ClippedSums:
    """The noised clipped sums of a round's steps. `take` gives records' features and labels by their numbers.

    Guarantee: every gradient that enters a sum has a norm of at most `clip_norm`. One that is not finite does not
    enter, and is counted in `dropped`. Only the result of `noise` leaves, which is called once a step.
    """

    def __init__(
        self, gradients: RecordGradients, take: Callable[[Tensor], tuple[Inputs, Tensor]], *, records: int
    ) -> None:
        self.gradients, self.take, self.records = gradients, take, records
        self.dropped = 0

    def steps(self, training: RecordTraining, *, noise: StepNoise, batches: Stream) -> Iterator[Tensor]:
        """The noised sum of each step; move the weights before you take the next."""
        gradients, clip = self.gradients, FixedClip(clip_norm=training.clip_norm)
        for batch in poisson_batches(self.records, training, batches=batches):
            gradients.begin(len(batch))
            for begin in range(0, len(batch), gradients.rows):
                self._add(torch.from_numpy(batch[begin : begin + gradients.rows]), clip)
            yield noise(gradients.total)

    def _add(self, rows: Tensor, clip: FixedClip) -> None:
        norms = self.gradients.norms(*self.take(rows))
        lengths = norms.cpu().numpy()
        finite = np.isfinite(lengths)
        factors = clip.factors(np.where(finite, lengths, 0.0)) * finite
        self.gradients.add(torch.from_numpy(factors).to(norms.device))
        self.dropped += len(lengths) - int(finite.sum())


def _as_it_is(total: Tensor) -> Tensor:
    return total.double().cpu().clone()


class _Walk:
    """Steps of stochastic gradient descent, in place."""

    def __init__(self, descent: Descent, weights: Tensor) -> None:
        self.descent = descent
        self.weights = weights
        self.velocity = torch.zeros_like(weights) if descent.momentum else None

    def step(self, noised: Tensor, expected_batch: float) -> None:
        """One step along the noised sum of gradients, divided by the public expected batch."""
        descent, gradient = self.descent, noised.to(self.weights.dtype)
        if self.velocity is None:
            if descent.weight_decay:
                self.weights.mul_(1 - descent.learning_rate * descent.weight_decay)
            self.weights.add_(gradient, alpha=-descent.learning_rate / expected_batch)
            return
        self.velocity.mul_(descent.momentum).add_(gradient, alpha=1 / expected_batch)
        self.velocity.add_(self.weights, alpha=descent.weight_decay)
        self.weights.add_(self.velocity, alpha=-descent.learning_rate)
