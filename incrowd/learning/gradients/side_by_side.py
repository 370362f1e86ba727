"""The gradients of a few records side by side, for any module that torch's `vmap` can take, compiled where that pays.

Each record is a batch of its own for the module, so that nothing of the others can reach its gradient but through how
a processor rounds: a product's rows may be added up in an order that depends on their place. So always as many records
are together, made-up ones fill up, and it is tried out that a gradient has the same bits in every place, whatever the
others are: no numbers at all, too.
"""

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from incrowd._random import Floats
from incrowd.data.inputs import Inputs, each, named
from incrowd.errors import ConfigError
from incrowd.learning.arithmetic import ieee, in_one_order
from incrowd.learning.compiling.function import compiled
from incrowd.learning.compiling.remembered import remembered
from incrowd.learning.compiling.unrolled import unroll
from incrowd.learning.compiling.worth import compiler_there, pays
from incrowd.learning.execution import Execution
from incrowd.learning.gradients.one_by_one import OneByOne
from incrowd.learning.gradients.room import Room
from incrowd.learning.gradients.sums import Formed
from incrowd.learning.inputs import WithInputs, meant, noise
from incrowd.learning.losses import Loss
from incrowd.learning.mapped import rewrite
from incrowd.learning.models import Model
from incrowd.learning.modules import Untouched, remembering_nothing, trainable
from incrowd.learning.records import Records
from incrowd.learning.threads import one_thread
from incrowd.learning.trial import MadeUp, same_bits, tried_copy, within_rounding
from incrowd.privacy.mechanism.steps import RecordTraining

_log = logging.getLogger(__name__)
_PLAINLY, _COMPILED = 32, 16  # records at a time; measured: calls cost less with more, caches like fewer
_WORTH = 8  # records that a batch is expected to have: of fewer, filled up to so many, each would cost more than alone
_NUMBERS = 2**22  # of gradients that are in memory at once
_THERE, _NUMBERS_THERE = 256, 2**28  # the same on an accelerator, where many at once are better
_RECORDS = 48  # that are tried out in every place, at least: where gradients are short, rounding often shows in none
_LEAST = 4  # times that some are, each at other weights
_OTHERS = (1.0, torch.nan, 10.0, 1e30, 0.0, 1e3, torch.inf)  # times noise is what others are

ByParameter = Callable[[list[Tensor], Inputs, Tensor], Sequence[Tensor]]
"""The gradients of records by parameter, [records, ...] each: parameters, inputs, labels."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """A function that was tried out for so many records at a time, and the module that it calls."""

    gradients: ByParameter
    module: nn.Module
    records: int


class SideBySide:
    """The clipped sum of the gradients of a few records at a time.

    Guarantee: as `incrowd.learning.gradients.sums.RecordGradients`.
    """

    def __init__(self, way: Way, weights: Sequence[Tensor]) -> None:
        self.way = way
        self.rows = way.records
        self._weights = weights
        self._now = [weight.clone() for weight in weights]  # where it begins in memory is compiled in
        self._formed = Formed([weight.numel() for weight in weights], weights[0].device)
        self._before: Untouched | None = None
        self._room = Room(way.records)

    @property
    def total(self) -> Tensor:
        """See `RecordGradients.total`. Edge cases: a module that has changed on the way is refused."""
        if self._before is not None:
            self._before.check()
            self._before = None
        return self._formed.total

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        self._formed.total.zero_()
        self._before = Untouched(self.way.module, self._formed.total.device, whose="record")
        torch._foreach_copy_(self._now, list(self._weights))

    def norms(self, features: Inputs, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        norms: Floats = self._squares(*self._room.filled(features, labels), len(labels)).sqrt_().cpu().numpy()
        return norms

    def squares(self, features: Inputs, labels: Tensor) -> Tensor:
        """The squares of the norms of always as many records: see `RecordBlock`."""
        return self._squares(features, labels, self.rows)

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        self._formed.add(factors)

    def _squares(self, inputs: Inputs, targets: Tensor, records: int) -> Tensor:
        with torch.no_grad(), one_thread(), in_one_order(targets.device):
            found = self.way.gradients(self._now, inputs, targets)
        return self._formed.squares([one.reshape(self.rows, -1)[:records] for one in found])


_FOUND: WeakKeyDictionary[Model, dict[tuple[object, ...], Way | None]] = WeakKeyDictionary()


def way_of(model: Model, loss: Loss, records: Records, execution: Execution, training: RecordTraining) -> Way | None:
    """A way to have the gradients of records side by side, or None if torch cannot, or the processor rounds otherwise.

    Guarantee: of the records only shapes and types are used, and of their number nothing: what is public decides. It
    is tried out once for a model. Why there is none is logged once.
    """
    here = execution.device == "cpu"
    rows = min(training.physical_batch, (_NUMBERS if here else _NUMBERS_THERE) // model.size)
    few = _power_of_two(training.expected_batch)
    plainly = _plainly(training, rows) if here else min(_THERE, rows, 2 * few)  # there one block is to hold a batch
    stored = tuple((name, one.dtype, one.shape[1:]) for name, one in named(records.features).items())
    labels = records.labels.dtype, records.labels.shape[1:]
    # So many or none, that nothing is left over: see `_plainly`.
    together = _COMPILED if rows >= _COMPILED and training.expected_batch >= _WORTH else 1
    kind = stored, labels, records.scale, records.offset, loss, execution, plainly, together
    found = _FOUND.setdefault(model, {})
    if kind not in found:
        trial = _Trial(model, loss, records, torch.device(execution.device))
        found[kind] = _tried(trial, execution, plainly, together)
    return found[kind]


def _plainly(training: RecordTraining, rows: int) -> int:
    """How many at a time on a CPU. Torch computes functions of single numbers in runs of up to 32, and what is left
    over in another way, so that of a multiple of 32 records none lies in what is left over. Large models take fewer,
    whose long gradients show it.
    """
    if training.physical_batch < _PLAINLY or training.expected_batch < _WORTH:
        return 1
    return _power_of_two(min(_PLAINLY, rows))


def _power_of_two(number: float) -> int:
    """The largest one that is not above it."""
    return int(2 ** np.floor(np.log2(max(number, 1))))


def _tried(trial: "_Trial", execution: Execution, plainly: int, together: int) -> Way | None:
    """The compiled way if it pays, or the plain one."""
    with one_thread(), ieee(execution.device), in_one_order(trial.device), torch.no_grad():
        with MadeUp() as attempt:
            if together > 1 and _compiles(trial, execution, together):
                return trial.way(compiled(trial.gradients), together)
        if attempt.error is not None:
            _say(trial, "are not compiled", attempt.error)
        with MadeUp() as attempt:
            return trial.way(trial.gradients, plainly) if plainly > 1 else None
        _say(trial, "are taken one by one", attempt.error)
    return None


def _say(trial: "_Trial", what: str, error: Exception | None) -> None:
    reason = " ".join((str(error).strip() or type(error).__name__).splitlines()[:2])
    _log.warning("gradients of records of %s %s: %s", type(trial.twin).__name__, what, reason)


def _compiles(trial: "_Trial", execution: Execution, together: int) -> bool:
    if (
        execution.device != "cpu"
        or execution.compile == "never"
        or not compiler_there()
        or torch._dynamo.config.disable
    ):
        return False
    calls = replace(execution, contributions=execution.contributions / together)
    batch = trial.made_up(together, 0)
    return bool(pays(calls, np.ones(1, np.int64), lambda: trial.gradients(trial.weights, *batch))[0])


class _Trial:
    """The gradients of records of a model as one function, tried out on made-up ones."""

    def __init__(self, model: Model, loss: Loss, records: Records, device: torch.device) -> None:
        self.records, self.loss, self.device = records, loss, device
        self.twin, self.module = (tried_copy(model, device) for _ in range(2))
        unroll(self.module) if device.type == "cpu" else rewrite(self.module)
        called = WithInputs(self.module, records.features)
        named_ = trainable(called)
        self.weights = [parameter.detach().clone() for _, parameter in named_]
        self.gradients = _together(called, [name for name, _ in named_], loss)
        tables = [one.num_embeddings for one in self.twin.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)]
        self._tokens = min(tables, default=2)

    @cached_property
    def _classes(self) -> int:
        """How many the outputs are of, as the model's own trial has it."""
        outputs: Tensor = WithInputs(self.twin, self.records.features)(self.made_up(2, 0)[0])
        return outputs.shape[-1] if outputs.ndim > 1 else 1

    def made_up(self, count: int, seed: int) -> tuple[Inputs, Tensor]:
        """So many records of noise."""
        generator = torch.Generator().manual_seed(seed)
        made = each(lambda one: one.to(self.device), noise(self.records.features, count, generator=generator))
        labels = self.records.labels.new_zeros(count, *self.records.labels.shape[1:]).to(self.device)
        return meant(made, scale=self.records.scale, offset=self.records.offset), labels

    def way(self, gradients: ByParameter, count: int) -> Way:
        """The function for so many records at a time. Edge cases: one that remembers anything, that computes something
        else than one by one, or that rounds by place is an error.
        """
        before = remembered(self.module)
        with warnings.catch_warnings(), remembering_nothing(self.module, self.device, whose="record"):
            warnings.simplefilter("ignore")  # of torch about itself
            self._check_values(gradients, count)
            self._check_places(gradients, count)
        if remembered(self.module) != before:
            remedy = "it remembers something, and records would meet what others left"
            raise ConfigError(field="module", value=type(self.twin).__name__, remedy=remedy)
        return Way(gradients=gradients, module=self.module, records=count)

    def _check_values(self, gradients: ByParameter, count: int) -> None:
        batch, slow = self.made_up(count, 1), OneByOne(self.twin, self.weights, self.loss, rows=count)
        few = min(count, slow.rows)  # it takes no more at a time
        with torch.enable_grad():
            slow.norms(each(lambda one: one[:few], batch[0]), batch[1][:few])
        found = torch.cat([one.reshape(count, -1) for one in gradients(self.weights, *batch)], 1)[:few]
        if not within_rounding(found, slow.formed(few)):
            raise ArithmeticError("side by side they are not what they are one by one")

    def _anything(self, count: int, seed: int) -> tuple[Inputs, Tensor]:
        """Records with all tokens that there are, with masks that hide something, and with labels of all kinds."""
        (inputs, labels), generator = self.made_up(count, seed), torch.Generator().manual_seed(seed)
        for one in named(inputs).values():
            if one.dtype == torch.bool:
                one.copy_(torch.rand(one.shape, generator=generator) < 0.5)
            elif one.dtype == torch.int64:
                one.copy_(torch.randint(0, self._tokens, one.shape, generator=generator))
        if labels.is_floating_point():
            labels.copy_(torch.rand(labels.shape, generator=generator))
        else:
            labels.copy_(torch.randint(0, self._classes, labels.shape, generator=generator))
        return inputs, labels

    def _moved(self, seed: int) -> list[Tensor]:
        """Weights elsewhere: at zeros, which some modules start from, much is zero in any order."""
        generator = torch.Generator().manual_seed(seed)

        def moved(one: Tensor) -> Tensor:
            inputs = one[0].numel() if one.ndim > 1 else 1
            step = torch.randn(one.shape, generator=generator) / math.sqrt(inputs)
            return one + step.to(one.device)

        return [moved(one) for one in self.weights]

    def _check_places(self, gradients: ByParameter, count: int) -> None:
        """See that records' gradients have the same bits in every place, whatever the others are: some functions are
        computed another way for all of a vector register, if one number in it is large, or none. Every second record
        is tried out, and those between hold anything. Of very many places some are tried.
        """
        several = torch.arange(0, count, 2, device=self.device)
        for probe in range(max(_LEAST, -(-_RECORDS // len(several)))):
            weights = self._moved(probe) if probe else self.weights
            (batch, labels), expected = self._anything(count, 2 + probe), list[Tensor]()
            for turn, place in enumerate(range(0, count, max(1, count // _PLAINLY))):
                where = (several + place) % count
                others, _ = self._anything(count, 1000 + place)
                for given, own in zip(named(others).values(), named(batch).values(), strict=True):
                    if given.is_floating_point():
                        given.mul_(_OTHERS[(turn + probe) % len(_OTHERS)])
                    given[where] = own[several]
                found = [
                    one[where] for one in gradients(weights, others, labels[(torch.arange(count) - place) % count])
                ]
                expected = expected or found
                if not all(map(same_bits, found, expected)):
                    raise ArithmeticError("this processor rounds them by their place, or by the others")


def _together(module: nn.Module, names: Sequence[str], loss: Loss) -> ByParameter:
    """The gradients of the losses of records, each a batch of its own."""

    def value(parameters: list[Tensor], inputs: Inputs, label: Tensor) -> Tensor:
        alone = each(lambda one: one.unsqueeze(0), inputs)
        with sdpa_kernel(SDPBackend.MATH):  # the others take one record after the other
            outputs = functional_call(module, dict(zip(names, parameters, strict=True)), (alone,))
        return loss.value(outputs, label.unsqueeze(0))

    def gradients(parameters: list[Tensor], inputs: Inputs, labels: Tensor) -> list[Tensor]:
        found: list[Tensor] = vmap(grad(value), in_dims=(None, 0, 0))(parameters, inputs, labels)
        return found

    return gradients
