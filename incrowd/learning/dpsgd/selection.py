"""Selects how records' gradients are computed: the first way that passes a trial on made-up records.

A processor may round a record's gradient by its place or by the numbers beside it. So a trial compares a way's
gradients with the reference's, and, bit by bit, a record's norm alone with its norm in every place, beside records that
are small, large or not numbers. A norm in float64 changes when any number of a float32 gradient does.
"""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from incrowd.data.examples import Inputs, each, named
from incrowd.errors import ConfigError
from incrowd.learning.compiler import compiled, compiler_there, pays
from incrowd.learning.dpsgd.gradients import (
    NUMBERS,
    PerExampleGradients,
    RecordGradients,
    VectorizedGradients,
    by_parameter,
)
from incrowd.learning.execution import LINE, Execution, in_one_order, one_thread
from incrowd.learning.inputs import Stored, WithInputs, meant, noise
from incrowd.learning.losses import Loss
from incrowd.learning.models import Model
from incrowd.learning.modules import remembered, remembering_nothing, trainable, working_copy
from incrowd.learning.trial import MadeUp, check_company, check_values, tried_copy
from incrowd.privacy.mechanism.grid import RecordTraining

_log = logging.getLogger(__name__)

Make = Callable[[Sequence[Tensor]], RecordGradients]
"""Makes a clipped sum at the weights of each parameter, which may change from step to step."""

_VECTORIZED, _COMPILED = 32, 16  # records at a time; measured: calls cost less with more, caches like fewer
_EXPECTED = 8  # records in a batch; padding a smaller one to so many would cost more than one at a time
_ACCELERATED, _NUMBERS_ACCELERATED = 256, 2**28  # records at a time and numbers of gradients on an accelerator
_RECORDS = 48  # in a trial, at least: rounding seldom shows in short gradients
_PROBES = 4  # weights in a trial

_SELECTED: WeakKeyDictionary[Model, dict[tuple[object, ...], Make]] = WeakKeyDictionary()


class GradientSelection:
    """Selects how the gradients of a model's records are computed.

    Guarantee: the model, the settings, this processor and the records' shapes and types decide; their values and their
    number do not. A trial happens once in a process, and the log says once why a way is left out.
    """

    def __init__(self, model: Model, loss: Loss, records: Stored, execution: Execution) -> None:
        self.model, self.loss, self.records, self.execution = model, loss, Stored(**records.zeros(1)), execution
        self._device = torch.device(execution.device)

    def gradients(self, weights: Tensor, training: RecordTraining) -> RecordGradients:
        """The clipped sum at these weights, which may change from step to step."""
        stored = tuple((name, one.dtype, one.shape[1:]) for name, one in named(self.records.features).items())
        labels = self.records.labels.dtype, self.records.labels.shape[1:]
        settings = training.physical_batch, _power_of_two(2 * training.expected_batch), torch.get_num_threads()
        kind = stored, labels, self.records.scale, self.records.offset, self.loss, self.execution, settings
        made = _SELECTED.setdefault(self.model, {})
        if kind not in made:
            made[kind] = self._selected(training)
        return made[kind](self.model.by_parameter(weights))

    def _selected(self, training: RecordTraining) -> Make:
        trial = _Trial(self.model, self.loss, self.records, self._device)
        for name, candidate in (
            ("ghost clipped", self._table),
            ("compiled", self._compiled),
            ("vectorized", self._vectorized),
        ):
            with MadeUp() as attempt:
                make = candidate(trial, training)
                if make is not None:
                    trial.check(make)
                    return make
            if attempt.error is not None:
                reason = " ".join((str(attempt.error).strip() or type(attempt.error).__name__).splitlines()[:2])
                _log.warning("gradients of records of %s are not %s: %s", type(trial.twin).__name__, name, reason)
        module = working_copy(self.model.module, self._device)
        return lambda weights: PerExampleGradients(module, weights, self.loss, rows=training.physical_batch)

    def _table(self, _trial: "_Trial", training: RecordTraining) -> Make | None:
        from incrowd.learning.backends.fast.memory import LINEAR, layers_of  # here: without `fast`, records train, too
        from incrowd.learning.dpsgd.ghost import ConvolutionGradients, GhostClipping

        stack = layers_of(self.model.module, self.loss, self.records.features, self.records.labels)
        loss = self.loss.canonical
        if stack is None or loss is None:
            return None
        first = next(number for number, layer in enumerate(stack.layers) if layer.kind == LINEAR)
        below, above = replace(stack, layers=stack.layers[:first]), stack.layers[first:]
        if not first:
            return lambda weights: GhostClipping(above, loss, weights, rows=training.physical_batch)
        if self._device.type != "cpu":  # pragma: no cover - where there is one
            return None
        return lambda weights: ConvolutionGradients(below, above, loss, weights, rows=training.physical_batch)

    def _compiled(self, trial: "_Trial", training: RecordTraining) -> Make | None:
        rows, execution = _COMPILED, self.execution
        if self._device.type != "cpu" or execution.compile == "never" or not compiler_there():
            return None
        if min(training.physical_batch, NUMBERS // self.model.size) < rows or training.expected_batch < _EXPECTED:
            return None
        function, module = trial.vectorized()
        calls, batch = replace(execution, contributions=execution.contributions / rows), trial.noise(rows, 0)
        with torch.no_grad():
            faster = pays(calls, np.ones(1, np.int64), lambda: function(trial.weights, *batch))[0]
        if not faster or torch._dynamo.config.disable:
            return None
        function = compiled(function)
        return lambda weights: VectorizedGradients(function, module, weights, rows=rows)

    def _vectorized(self, trial: "_Trial", training: RecordTraining) -> Make | None:
        if self._device.type != "cpu":  # pragma: no cover - where there is one
            most = min(_ACCELERATED, 2 * training.expected_batch, _NUMBERS_ACCELERATED // self.model.size)
        elif training.physical_batch >= _VECTORIZED and training.expected_batch >= _EXPECTED:
            most = min(_VECTORIZED, NUMBERS // self.model.size)
        else:  # torch computes single numbers in runs of up to 32, and the end of a run in another way
            return None
        rows = _power_of_two(min(most, training.physical_batch))
        if rows == 1:
            return None
        function, module = trial.vectorized()
        return lambda weights: VectorizedGradients(function, module, weights, rows=rows)


def _power_of_two(number: float) -> int:
    """The largest one of 1 to 256 that is not above it."""
    return 1 << int(math.log2(min(max(number, 1), _ACCELERATED)))


class _Trial:
    """Made-up records of a model, to see whether a way computes each of them alone."""

    def __init__(self, model: Model, loss: Loss, records: Stored, device: torch.device) -> None:
        self._model, self._loss, self._records, self._device = model, loss, records, device
        self.twin = tried_copy(model, device)
        self.weights = [parameter.detach().clone() for _, parameter in trainable(self.twin)]
        tables = [one.num_embeddings for one in self.twin.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)]
        self._tokens = min(tables, default=2)
        with torch.no_grad():
            outputs: Tensor = WithInputs(self.twin, records.features)(self.noise(2, 0)[0])
        self._classes = outputs.shape[-1] if outputs.ndim > 1 else 1

    def vectorized(self) -> tuple["Callable[..., Sequence[Tensor]]", nn.Module]:
        """The gradients of records as one function, and the module that it calls."""
        module = tried_copy(self._model, self._device)
        return by_parameter(module, self._loss, self._records.features), module

    def check(self, make: Make) -> None:
        """Raise an error if a way remembers records, differs from the reference, or rounds by a record's place."""
        module = make(self.weights).module
        before = remembered(module)
        with warnings.catch_warnings(), torch.no_grad(), in_one_order(self._device):
            warnings.simplefilter("ignore")  # torch warns of itself
            with remembering_nothing(module or nn.Identity(), self._device, whose="record"):
                self._check_values(make(self.weights))
                for probe in range(_PROBES):
                    self._check_alone(make, probe)
        if remembered(module) != before:
            remedy = "it remembers something of a record, which would reach the next"
            raise ConfigError(field="module", value=type(self.twin).__name__, remedy=remedy)

    def _check_values(self, way: RecordGradients) -> None:
        with one_thread():
            reference = PerExampleGradients(self.twin, self.weights, self._loss, rows=min(way.rows, _VECTORIZED))
            found, expected = (list(_one_by_one(one, *self.noise(reference.rows, 1))) for one in (way, reference))
        check_values(torch.stack(found), torch.stack(expected))

    def _check_alone(self, make: Make, probe: int) -> None:
        """Put records into every second place, and anything between them."""
        way = make(self._moved(probe) if probe else self.weights)
        way.begin(1)
        tested = max(1, min(way.rows // 2, LINE))
        for turn in range(max(1, -(-_RECORDS // (_PROBES * tested)))):
            check_company(
                lambda given: [way.norms(*given)],
                self._anything,
                counts=[*range(LINE, way.rows, LINE), way.rows],
                tested=tested,
                alone=True,
                seed=100 * probe + turn,
            )

    def noise(self, count: int, seed: int) -> tuple[Inputs, Tensor]:
        """So many records of noise, and labels of zero."""
        generator = torch.Generator().manual_seed(seed)
        made = each(lambda one: one.to(self._device), noise(self._records.features, count, generator=generator))
        labels = self._records.labels.new_zeros(count, *self._records.labels.shape[1:]).to(self._device)
        return meant(made, scale=self._records.scale, offset=self._records.offset), labels

    def _anything(self, count: int, seed: int, factor: float) -> tuple[Inputs, Tensor]:
        """Records with all tokens, masks that hide something, numbers times a factor, and labels of all kinds."""
        (inputs, labels), generator = self.noise(count, seed), torch.Generator().manual_seed(seed)
        for one in named(inputs).values():
            if one.is_floating_point():
                one.mul_(factor)
            else:
                one.copy_((torch.rand(one.shape, generator=generator) * self._tokens).floor())
        drawn = torch.rand(labels.shape, generator=generator)
        return inputs, labels.copy_(drawn if labels.is_floating_point() else (drawn * self._classes).floor())

    def _moved(self, seed: int) -> list[Tensor]:
        """Other weights: some modules start from zeros, where much is zero in any order."""
        generator = torch.Generator().manual_seed(seed)

        def moved(one: Tensor) -> Tensor:
            inputs = one[0].numel() if one.ndim > 1 else 1
            step = torch.randn(one.shape, generator=generator) / math.sqrt(inputs)
            return one + step.to(one.device)

        return [moved(one) for one in self.weights]


def _one_by_one(way: RecordGradients, features: Inputs, labels: Tensor) -> Iterator[Tensor]:
    """The gradient of each of these records."""
    way.begin(1)
    way.norms(features, labels)
    for row in range(len(labels)):
        way.begin(1)
        way.add(torch.nn.functional.one_hot(torch.tensor(row), len(labels)).double().to(labels.device))
        yield way.total.clone()
