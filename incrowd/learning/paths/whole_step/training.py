"""The path: one client after the other, each full batch with the compiled step."""

import logging
import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.data.inputs import Inputs
from incrowd.errors import ConfigError, IncrowdError
from incrowd.learning.arithmetic import ieee
from incrowd.learning.batches import side_by_side
from incrowd.learning.compiling.attention import AttentionWeights, written_out
from incrowd.learning.compiling.function import compiled
from incrowd.learning.compiling.remembered import remembered
from incrowd.learning.compiling.unrolled import unroll
from incrowd.learning.compiling.worth import compiler_there, pays
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.dropout import has_dropout
from incrowd.learning.inputs import meant, noise
from incrowd.learning.modules import remembering_nothing, trainable, working_copy
from incrowd.learning.paths.autograd import batches_of
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.paths.whole_step.step import ModuleStep, plain_step
from incrowd.learning.store import Store
from incrowd.learning.threads import one_thread
from incrowd.settings.local import Local

_log = logging.getLogger(__name__)
_CACHE, _FEW = 8 * 2**20, 8  # contributions are measured and added up a few at a time, which leaves the caches alone
_FAILURES = (IncrowdError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError)
_CLOSE = 1e-3  # of the length of a step: so far rounding may take a compiled one from the plain one


def make(task: TrainingTask) -> "WholeStep | None":
    """The path, if it pays to compile (see `worth`) and if torch can.

    Guarantee: of the examples only shapes, types and each client's own number of them are read. What cannot be
    compiled costs nothing but the attempt, and why is logged once.

    Edge cases: there are no batches of a fixed size, or there is dropout at work, whose masks a client draws itself:
    left to another path, as is a module that remembers anything.
    """
    if task.on_accelerator or task.local.batch_size is None or has_dropout(task.model.module):
        return None
    if task.execution.compile == "never" or not compiler_there():
        return None
    full: NDArray[np.int64] = np.diff(task.data.offsets) // task.local.batch_size * task.local.epochs
    with one_thread(), ieee(), torch.no_grad():
        try:
            attempt = _Attempt(task)
            takes = pays(task.execution, full, attempt.plainly)
            if not takes.any():
                return None
            attempt.compile()
        except _FAILURES as error:
            reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
            _log.warning("steps of %s are not compiled: %s", type(task.model.module).__name__, reason)
            return None
    return WholeStep(task, attempt, takes)


class _Attempt:
    """A step of a task's module, plain and compiled, tried out on a made-up batch."""

    def __init__(self, task: TrainingTask) -> None:
        self.local, self._task = task.local, task
        self.module = working_copy(task.model.module, task.device)
        unroll(self.module)
        named = trainable(self.module)
        self.weights = [parameter.detach().clone() for _, parameter in named]
        self.plain = plain_step(self.module, [name for name, _ in named], task.loss, task.local)
        self.compiled: ModuleStep = self.plain
        self._batch = _made_up(task)

    def plainly(self) -> list[Tensor]:
        """What the plain step makes of the weights."""
        return self._stepped(self.plain)

    def compile(self) -> None:
        """Compile the step. Edge cases: one that computes something else, or that remembers anything, is an error."""
        before, task = remembered(self.module), self._task
        if torch._dynamo.config.disable:
            raise ConfigError(field="TORCHDYNAMO_DISABLE", value=1, remedy="leave it out to have torch compile")
        with remembering_nothing(self.module, task.device, whose="client"):
            with AttentionWeights() as weights:
                expected = self.plainly()
            again = self.plainly()
            if remembered(self.module) != before or not all(map(torch.equal, expected, again)):
                remedy = "it remembers something, which a compiled step would not"
                raise ConfigError(field="module", value=type(self.module).__name__, remedy=remedy)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch about itself
                self.compiled = compiled(written_out(self.plain) if weights.few else self.plain)
                found = self._stepped(self.compiled)
        refuse_another(found, expected, self.weights)

    def _stepped(self, step: ModuleStep) -> list[Tensor]:
        parameters = [one.clone() for one in self.weights]
        step(parameters, velocities_of(self.local, parameters), self.weights, *self._batch)
        return parameters


def refuse_another(found: Sequence[Tensor], expected: Sequence[Tensor], starts: Sequence[Tensor]) -> None:
    """Refuse parameters that are further from the expected ones than rounding takes a step from these starts."""
    off, moved = _distance(found, expected), _distance(expected, starts)
    size = math.sqrt(sum(float(one.square().sum()) for one in starts))
    if not off <= _CLOSE * moved + 1e-6 * size:
        raise ArithmeticError("the compiled step is not the plain one")


def _distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((one - other).square().sum()) for one, other in zip(ones, others, strict=True)))


def velocities_of(local: Local, parameters: Sequence[Tensor]) -> list[Tensor]:
    """The velocities at the start."""
    return [torch.zeros_like(one) for one in parameters] if local.momentum else []


def _made_up(task: TrainingTask) -> tuple[Inputs, Tensor, Tensor | None]:
    """A full made-up batch; of the offset only the shape is known."""
    data, size = task.data, task.local.batch_size or 1
    made = noise(data.features, size, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros((size, *data.labels.shape[1:]), dtype=data.labels.dtype)
    return meant(made, scale=data.scale, offset=data.offset), labels, task.made_up_offset()


class WholeStep(TrainingPath):
    """Trains clients one after the other: full batches with the compiled step, the last of a pass, if it is smaller,
    with the same step as it is.
    """

    shares = 16

    def __init__(self, task: TrainingTask, attempt: _Attempt, takes: NDArray[np.bool_]) -> None:
        self.takes = takes
        self.at_once = task.execution.chunk or max(1, min(_FEW, _CACHE // (4 * task.model.size)))
        self._task, self._attempt, self._store = task, attempt, Store(task.data)

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        # Copies, because where a part of the flat weights begins in memory is not what a compiler likes.
        starts = [start.clone() for start in self._task.model.by_parameter(weights)]
        return [Contributions((one.client,), self._train(starts, one)) for one in clients]

    @torch.no_grad()
    def _train(self, starts: list[Tensor], one: ClientRound) -> FlatDelta:
        task, attempt = self._task, self._attempt
        parameters = [start.clone() for start in starts]
        velocities, offset = velocities_of(task.local, parameters), task.offset(one.client)
        feed = self._store.feed([one.client], side_by_side([one.batches]))
        with remembering_nothing(attempt.module, task.device, whose="client"):
            for inputs, labels in batches_of(feed):
                step = attempt.compiled if len(labels) == task.local.batch_size else attempt.plain
                step(parameters, velocities, starts, inputs, labels, offset)
        return FlatDelta(
            torch.cat([(now - start).view(-1) for now, start in zip(parameters, starts, strict=True)])[None]
        )
