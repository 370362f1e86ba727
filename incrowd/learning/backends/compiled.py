"""The compiled backend: torch compiles a client's step of any module, if the run is long enough (`compiler.pays`)."""

import logging
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import grad

from incrowd.data.examples import Inputs
from incrowd.errors import ConfigError, IncrowdError
from incrowd.learning.backends.backend import Backend, ClientRound, Task
from incrowd.learning.backends.loop import batches_of, few
from incrowd.learning.compiler import compiled, compiler_there, pays
from incrowd.learning.contributions import Contributions
from incrowd.learning.execution import ieee, one_thread
from incrowd.learning.inputs import as_function, meant, noise
from incrowd.learning.local_algorithms import direction, velocities_of
from incrowd.learning.modules import has_dropout, remembered, remembering_nothing, trainable, working_copy
from incrowd.learning.rewritten import unroll

_log = logging.getLogger(__name__)
_FAILURES = (IncrowdError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError)
_CLOSE = 1e-3  # relative to a step: rounding may move a compiled step that far from the plain one

Step = Callable[[list[Tensor], list[Tensor], list[Tensor], Inputs, Tensor, Tensor | None], None]
"""Moves parameters in place, given parameters, velocities (if there is momentum), starts, examples, labels, offset."""


def make(task: Task) -> "Compiled | None":
    """The backend, where compiling pays (see `pays`) and torch can; the log says once why not.

    Guarantee: it reads only shapes, types and each client's own number of examples.
    """
    if task.on_accelerator or not task.by_sgd or task.local.batch_size is None or has_dropout(task.model.module):
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
    return Compiled(task, attempt, takes)


class Compiled(Backend):
    """Trains clients in turn: full batches by the compiled step, a smaller last one by the plain step."""

    shares = 16

    def __init__(self, task: Task, attempt: "_Attempt", takes: NDArray[np.bool_]) -> None:
        self.takes, self.at_once = takes, few(task)
        self._task, self._attempt = task, attempt

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `Backend.train`."""
        # Copies, because a compiler does not like where a part of the flat weights begins in memory.
        starts = [start.clone() for start in self._task.model.by_parameter(weights)]
        return [Contributions((one.client,), self._train(starts, one)) for one in clients]

    @torch.no_grad()
    def _train(self, starts: list[Tensor], one: ClientRound) -> Tensor:
        task, attempt = self._task, self._attempt
        parameters = [start.clone() for start in starts]
        velocities, offset = velocities_of(task.local, parameters), task.offset(one.client)
        feed = task.data.feed(one.client, one.batches)
        with remembering_nothing(attempt.module, task.device, whose="client"):
            for inputs, labels in batches_of(feed):
                step = attempt.compiled if len(labels) == task.local.batch_size else attempt.plain
                step(parameters, velocities, starts, inputs, labels, offset)
        moved = [(now - start).view(-1) for now, start in zip(parameters, starts, strict=True)]
        return torch.cat(moved)[None]


class _Attempt:
    """A step of a task's module, plain and compiled, tried on a synthetic batch."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.module = working_copy(task.model.module, task.device)
        unroll(self.module)
        self.weights = [parameter.detach().clone() for _, parameter in trainable(self.module)]
        self.plain = _plain_step(self.module, task)
        self.compiled: Step = self.plain
        self._batch = _made_up(task)

    def plainly(self) -> list[Tensor]:
        """The weights after the plain step."""
        return self._stepped(self.plain)

    def compile(self) -> None:
        """Compile the step. Edge cases: a step that computes anything else, or that keeps state, is an error."""
        before, task = remembered(self.module), self._task
        if torch._dynamo.config.disable:
            raise ConfigError(field="TORCHDYNAMO_DISABLE", value=1, remedy="leave it out to have torch compile")
        with remembering_nothing(self.module, task.device, whose="client"):
            expected, again = self.plainly(), self.plainly()
            if remembered(self.module) != before or not all(map(torch.equal, expected, again)):
                remedy = "it remembers something, which a compiled step would not"
                raise ConfigError(field="module", value=type(self.module).__name__, remedy=remedy)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns about its own code
                self.compiled = compiled(self.plain)
                found = self._stepped(self.compiled)
        off, moved = _distance(found, expected), _distance(expected, self.weights)
        size = _distance(self.weights, [torch.zeros_like(one) for one in self.weights])
        if not off <= _CLOSE * moved + 1e-6 * size:
            raise ArithmeticError("the compiled step is not the plain one")

    def _stepped(self, step: Step) -> list[Tensor]:
        parameters = [one.clone() for one in self.weights]
        step(parameters, velocities_of(self._task.local, parameters), self.weights, *self._batch)
        return parameters


def _plain_step(module: nn.Module, task: Task) -> Step:
    """A step of a module as one function of its arguments."""
    loss, local, function = task.loss, task.local, as_function(module, task.data.features)

    def value(parameters: list[Tensor], inputs: Inputs, labels: Tensor, offset: Tensor | None) -> Tensor:
        outputs = function(parameters, inputs)
        return loss.value(outputs if offset is None else outputs + offset, labels)

    def step(
        parameters: list[Tensor],
        velocities: list[Tensor],
        starts: list[Tensor],
        inputs: Inputs,
        labels: Tensor,
        offset: Tensor | None,
    ) -> None:
        gradients = grad(value)(parameters, inputs, labels, offset)
        along = direction(local, gradients, parameters, starts, velocities)
        torch._foreach_add_(parameters, along, alpha=-local.learning_rate)

    return step


def _distance(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((one - other).square().sum()) for one, other in zip(ones, others, strict=True)))


def _made_up(task: Task) -> tuple[Inputs, Tensor, Tensor | None]:
    """A full synthetic batch."""
    data, size = task.data, task.local.batch_size or 1
    made = noise(data.features, size, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros((size, *data.labels.shape[1:]), dtype=data.labels.dtype)
    return meant(made, scale=data.scale, offset=data.offset), labels, task.made_up_offset()
