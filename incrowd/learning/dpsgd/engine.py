"""Our engine for DP-SGD: the noisy steps of a round over the records of a silo."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from incrowd._random import Floats, Integers, Stream
from incrowd.data.examples import Inputs
from incrowd.errors import ConfigError
from incrowd.learning.dpsgd.gradients import RecordGradients
from incrowd.learning.dpsgd.selection import GradientSelection
from incrowd.learning.execution import Execution, ieee
from incrowd.learning.inputs import ClientTensors, Stored, chosen
from incrowd.learning.losses import CROSS_ENTROPY, Loss
from incrowd.learning.models import Model
from incrowd.learning.modules import refuse_dropout, remembering_nothing
from incrowd.learning.trial import OwnCode, tried, tried_with_tokens
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import RecordTraining
from incrowd.settings import Descent

StepNoise = Callable[[Tensor], Tensor]
"""Takes the clipped sum of one step, which a ledger was charged for, and gives it back with noise on it."""


class Records(Stored):
    """The records of one silo. Private, their number included."""

    def made_up(self, count: int) -> "Records":
        """So many records of zeros, of the same types and shape: nothing of these is in them."""
        return Records(**self.zeros(count))

    @classmethod
    def of(cls, data: ClientTensors, client: int) -> "Records":
        """The examples of one client as a silo's records, a copy."""
        rows = data.rows(client)
        features, labels = chosen(data.features, rows), data.labels.index_select(0, rows)
        return cls(features=features, labels=labels, scale=data.scale, offset=data.offset)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The noised weights, and the number of gradients that were not finite, which never leaves the silo."""

    weights: Tensor
    dropped: int

    def update(self, start: NDArray[np.float32]) -> Floats:
        """The trained weights minus the weights at the start."""
        moved: Floats = self.weights.numpy().astype(np.float64) - start
        return moved


class BatchedRecords:
    """Trains a model on the records of a silo, a physical batch at a time.

    Guarantee: those of `incrowd.learning.dpsgd`. The module of the model is never written to.

    Edge cases: an empty batch is a step of noise alone; more than `most_records` records are refused.
    """

    def __init__(
        self,
        model: Model,
        records: Records,
        descent: Descent,
        *,
        loss: Loss = CROSS_ENTROPY,
        execution: Execution | None = None,
    ) -> None:
        self.model, self.descent, self.loss = model, descent, loss
        self.execution = execution or Execution()
        self.records = records.to(torch.device(self.execution.device))
        refuse_dropout(model.module)
        tried(model, records.features, records.labels, loss, each_alone=True, what="records")
        tried_with_tokens(model, records.features, what="records")
        self._own = OwnCode(model.module, loss)
        self._selection = GradientSelection(model, loss, records, self.execution)

    @property
    def size(self) -> int:
        """How many weights are trained."""
        return self.model.size

    @property
    def third_party(self) -> str:
        """The loss that is not incrowd's, in words; empty without one."""
        return ", ".join(self._own.names)

    @property
    def held(self) -> int:
        """How many records there are. Private."""
        return len(self.records)

    def rehearsal(self, records: int) -> "BatchedRecords":
        """A copy of the engine on so many zeros, which reads no real record and does not touch this engine."""
        engine = copy.copy(self)
        engine.records = self.records.made_up(records)
        return engine

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """Take all steps of a round from these weights, with batches drawn from this stream."""
        with self._at(weights, training) as (now, sums):
            velocity = torch.zeros_like(now)
            for noised in sums.steps(training, noise=noise, batches=batches):
                _step(self.descent, now, velocity, noised.to(now.dtype), training.expected_batch)
            return Trained(weights=now.cpu(), dropped=sums.dropped)

    def clipped_sum(self, weights: ArrayLike | Tensor, training: RecordTraining, *, batches: Stream) -> Tensor:
        """The clipped sum of one step's batch at these weights, without noise: private."""
        one = replace(training, steps=1)
        with self._at(weights, one) as (_, sums):
            [total] = sums.steps(one, noise=lambda total: total.double().cpu().clone(), batches=batches)
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


def _step(descent: Descent, weights: Tensor, velocity: Tensor, noised: Tensor, expected_batch: float) -> None:
    """Take one step in place along the noised sum of gradients, divided by the public expected batch."""
    if descent.momentum:
        velocity.mul_(descent.momentum).add_(noised, alpha=1 / expected_batch)
        velocity.add_(weights, alpha=descent.weight_decay)
        weights.add_(velocity, alpha=-descent.learning_rate)
        return
    if descent.weight_decay:
        weights.mul_(1 - descent.learning_rate * descent.weight_decay)
    weights.add_(noised, alpha=-descent.learning_rate / expected_batch)


def poisson_batches(records: int, training: RecordTraining, *, batches: Stream) -> Iterator[Integers]:
    """The numbers of the records in each step's batch, in rising order. Private. More than `most_records` are refused.

    Guarantee: each record is in each batch independently with `sampling_prob`, rounded down to a multiple of 2^-80.
    """
    if records > training.most_records:
        remedy = "the silo holds more records: give a larger bound"
        raise ConfigError(field="most_records", value=training.most_records, remedy=remedy)
    for _ in range(training.steps):
        yield _poisson(records, training.sampling_prob, batches)


def _poisson(records: int, sampling_prob: float, stream: Stream) -> Integers:
    """The records whose 80 random bits are below sampling_prob * 2^80. The low 64 are drawn where the high 16 tie."""
    if sampling_prob == 1:
        return np.arange(records)
    high, low = divmod(int(sampling_prob * 2**80), 2**64)
    coarse = stream.bits(-(-records // 4)).view(np.uint16)[:records]
    near = np.flatnonzero(coarse <= high)
    tied = coarse[near] == high
    below = stream.bits(int(tied.sum())) < np.uint64(low)
    taken = ~tied
    taken[tied] = below
    rows: Integers = near[taken]
    return rows


def on_tensors(noised: Callable[[Floats], Floats]) -> StepNoise:
    """A function that adds noise to a flat float64 array, for an engine's tensors."""

    def hide(total: Tensor) -> Tensor:
        return torch.from_numpy(noised(total.double().cpu().numpy())).to(total.device)

    return hide
