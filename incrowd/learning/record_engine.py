"""Our engine for record-level training: gradients of many records at once, clipped one by one.

How gradients are computed follows from the model: see `incrowd.learning.gradients`.
"""

import copy

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from incrowd._random import Stream
from incrowd.learning.arithmetic import ieee
from incrowd.learning.dropout import refuse_dropout
from incrowd.learning.execution import Execution
from incrowd.learning.gradients.ahead import MadeAhead
from incrowd.learning.gradients.sums import NoisedSums
from incrowd.learning.gradients.ways import GradientWays
from incrowd.learning.losses import CROSS_ENTROPY, Loss
from incrowd.learning.models import Model
from incrowd.learning.own_code import OwnCode
from incrowd.learning.records import Reader, Records, StepNoise, Trained
from incrowd.learning.trial import tried, tried_with_tokens
from incrowd.privacy.mechanism.steps import RecordTraining
from incrowd.settings.descent import Descent

EXECUTION = Execution()
"""On the CPU."""


class BatchedRecords:
    """Trains a model on the records of a silo, a physical batch at a time.

    Guarantee: as `RecordEngine`. What a record adds to a step's sum is, bit for bit, a function of the record, the
    weights and the settings: the others of its batch, and its place among them, change nothing. So one record moves the
    sum by at most ``training.sensitivity``, the rounding of the sum included. The module that the model was made of is
    never written to.

    Edge cases: where a processor rounds the rows of a product by their place, which is tried out for the model's shapes
    before the first step, records are taken one after the other. Records that the model cannot take, and labels that
    the loss does not fit: refused at once. Without records every step is noise alone.
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
        self.model = model
        self.records = records.to(torch.device(execution.device))
        self.descent = descent
        self.loss = loss
        refuse_dropout(model.module, whose="record")
        tried(model, records.features, records.labels, loss, each_alone=True, what="records")
        tried_with_tokens(model, records.features, what="records")
        self._own = OwnCode(model.module, loss)
        self.execution = execution
        there = (
            None if execution.device == "cpu" else torch.empty(model.size, dtype=torch.float32, device=execution.device)
        )
        self._place = there  # a rehearsal has the same, and what is noted for it
        self._ways = GradientWays(model, loss, records, execution)
        self._ahead = MadeAhead.of(model, self.records)
        ahead = self._ahead
        self._rest = None if ahead is None else GradientWays(ahead.model, loss, ahead.like, execution)

    @property
    def size(self) -> int:
        """See `RecordEngine.size`."""
        return self.model.size

    @property
    def held(self) -> int:
        """See `RecordEngine.held`."""
        return len(self.records)

    def rehearsal(self, records: int) -> "BatchedRecords":
        """See `RecordEngine.rehearsal`; the records are zeros, and so are their labels."""
        engine = copy.copy(self)
        engine.records = self.records.made_up(records)
        engine._ahead = None if self._ahead is None else self._ahead.of_others(engine.records)
        return engine

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """See `RecordEngine.train`."""
        with ieee(self.records.device.type), self._own.unchanged():
            return self._train(weights, training, noise=noise, batches=batches)

    def _train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        now = self._place_of(self.model.flat(weights))
        sums = self._sums(now, training)
        walk = _Walk(self.descent, now)
        for noised in sums.steps(training, noise=noise, batches=batches):
            walk.step(noised, training.expected_batch)
        return Trained(weights=now.cpu(), dropped=sums.dropped)

    def _place_of(self, weights: Tensor) -> Tensor:
        """The weights in memory that training may write to: on an accelerator always the same."""
        if self._place is None:
            return weights.clone()
        return self._place.copy_(weights)  # pragma: no cover - where there is one

    def _sums(self, weights: Tensor, training: RecordTraining) -> NoisedSums:
        if self._ahead is not None and self._rest is not None and self._ahead.worth(training, self.execution):
            gradients, take = self._rest.gradients(weights, training), self._ahead.take
        else:
            gradients = self._ways.gradients(weights, training)
            take = Reader(self.records, gradients.rows).take
        return NoisedSums(gradients, take, records=len(self.records))


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
