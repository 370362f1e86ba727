"""Record-level training with Opacus, on a torch module, optimizer and loader of your own.

Opacus knows the gradients of single records for many layers (recurrent, attention, embeddings) and says which modules
mix records. Batches, clipping, the exact sum and the noise are ours, so that both engines keep one promise: Opacus adds
its own noise in float32 and lets a gradient that is not a number into the sum.
"""

import copy
import warnings
from collections.abc import Callable, Sized
from typing import Any

import torch
from numpy.typing import ArrayLike
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from incrowd._random import Floats, Stream
from incrowd.errors import ConfigError
from incrowd.learning.arithmetic import ieee
from incrowd.learning.gradients.sums import Formed, NoisedSums
from incrowd.learning.losses import Loss
from incrowd.learning.own_code import OwnCode
from incrowd.learning.records import StepNoise, Trained
from incrowd.privacy.mechanism.steps import RecordTraining

__all__ = ["OpacusRecords"]

Criterion = Callable[[Any, Any], Tensor]
"""The loss of a batch, given outputs and labels: differentiable, and a mean or a sum over the records."""


class OpacusRecords:
    """Trains a module with its optimizer on the data set of a loader.

    The flat vector holds the module's trainable parameters in the order of ``module.named_parameters()``. From the
    loader come the data set and how records are put together to a batch; its batch size and order are not used, because
    batches are drawn as the price of a step assumes. `learning_rate` and the like are the optimizer's own. `made_up` is
    a record as the data set gives one, but nobody's: say zeros of the right shape, and a label. With it a silo tries
    everything before it pays.

    Guarantee: as `RecordEngine`. Between rounds nothing of a private gradient is left on the parameters, and the
    optimizer starts each round in the state in which it was given.

    Edge cases: a module with layers that Opacus calls unsuitable, or with batch normalisation or running statistics
    even in a frozen part, an optimizer of other parameters, a sampler that prefers some records, a data set without a
    length, and a criterion that does not reduce to a mean or a sum: refused at once, with the remedy. Dropout draws
    from torch's global generator, whose seed is yours to set. Opacus computes a record's gradient beside those of
    others, and a processor may round it by how many they are and by its place; the bound does not cover that, and our
    own engine, `BatchedRecords`, does not do it. A round leaves its weights in the module.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        loader: DataLoader[Any],
        *,
        criterion: Criterion,
        made_up: Any,
    ) -> None:
        _refuse_module(module)
        _refuse_loader(loader)
        self.module = module
        self.optimizer = optimizer
        self.loader = loader
        self.criterion = criterion
        self.made_up = made_up
        self.reduction = _reduction(criterion)
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        _refuse_optimizer(optimizer, self.parameters)
        self._fresh = copy.deepcopy(optimizer.state_dict()["state"])

    @property
    def size(self) -> int:
        """See `RecordEngine.size`."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def held(self) -> int:
        """See `RecordEngine.held`."""
        dataset: Any = self.loader.dataset
        return len(dataset)

    def rehearsal(self, records: int) -> "OpacusRecords":
        """See `RecordEngine.rehearsal`; the records are `made_up`, as often as is wanted."""
        module, optimizer = copy.deepcopy((self.module, self.optimizer))  # together: the one holds what the other moves
        dataset: Any = [self.made_up] * records
        loader = DataLoader(dataset, collate_fn=self.loader.collate_fn)
        return OpacusRecords(module, optimizer, loader, criterion=self.criterion, made_up=self.made_up)

    @property
    def weights(self) -> Tensor:
        """The module's weights as a flat vector, a copy."""
        return torch.cat([p.detach().reshape(-1).to("cpu", torch.float32) for p in self.parameters])

    def train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        """See `RecordEngine.train`."""
        criterion = Loss(name=getattr(self.criterion, "__name__", type(self.criterion).__name__), value=self.criterion)
        with ieee(self.parameters[0].device.type), OwnCode(nn.Identity(), criterion).unchanged():
            return self._train(weights, training, noise=noise, batches=batches)

    def _train(
        self, weights: ArrayLike | Tensor, training: RecordTraining, *, noise: StepNoise, batches: Stream
    ) -> Trained:
        self._start(torch.as_tensor(weights))
        gradients = _Hooked(self, rows=training.physical_batch)
        sums = NoisedSums(gradients, self._read, records=self.held)
        try:
            for noised in sums.steps(training, noise=noise, batches=batches):
                self._step(noised / training.expected_batch)
        finally:
            gradients.close()
        return Trained(weights=self.weights, dropped=sums.dropped)

    def _start(self, weights: Tensor) -> None:
        if weights.shape != (self.size,):
            remedy = f"give one vector of {self.size} weights"
            raise ConfigError(field="weights", value=tuple(weights.shape), remedy=remedy)
        self._fill(weights, lambda parameter, place: parameter.data.copy_(place))
        state = {"state": copy.deepcopy(self._fresh), "param_groups": self.optimizer.state_dict()["param_groups"]}
        self.optimizer.load_state_dict(state)
        self.module.train()

    def _step(self, gradient: Tensor) -> None:
        def place_in(parameter: Tensor, place: Tensor) -> None:
            parameter.grad = place.to(parameter.device, parameter.dtype, copy=True)

        self._fill(gradient, place_in)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _fill(self, vector: Tensor, act: Callable[[Tensor, Tensor], object]) -> None:
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, place in zip(self.parameters, vector.split_with_sizes(sizes), strict=True):
            act(parameter, place.view(parameter.shape))

    def _read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        dataset: Any = self.loader.dataset
        collate: Callable[[list[Any]], Any] = self.loader.collate_fn
        features, labels = collate([dataset[row] for row in rows.tolist()])
        device = self.parameters[0].device
        return features.to(device), labels.to(device)


class _Hooked:
    """The gradients of records as Opacus' hooks leave them on the parameters."""

    def __init__(self, engine: OpacusRecords, *, rows: int) -> None:
        self.rows = rows
        self._criterion = engine.criterion
        self._parameters: list[Any] = engine.parameters  # Opacus gives them attributes of its own
        self._hooked = GradSampleModule(engine.module, loss_reduction=engine.reduction)
        self._formed = Formed([p.numel() for p in self._parameters], self._parameters[0].device)
        self.total = self._formed.total

    def begin(self, records: int) -> None:
        """See `RecordGradients.begin`."""
        self.total.zero_()

    def norms(self, features: Tensor, labels: Tensor) -> Floats:
        """See `RecordGradients.norms`."""
        loss: Any = self._criterion(self._hooked(features), labels)
        with warnings.catch_warnings():
            # Opacus' hooks need no gradient of the features, of which torch warns.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            loss.backward()
        gradients = [self._of_each_record(parameter, len(labels)) for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = parameter.grad_sample = None
        return self._formed.norms(gradients)

    def add(self, factors: Tensor) -> None:
        """See `RecordGradients.add`."""
        self._formed.add(factors)

    def close(self) -> None:
        """Leave the module as it was, without hooks."""
        for parameter in self._parameters:
            parameter.grad = None
        self._hooked.to_standard_module()

    def _of_each_record(self, parameter: Any, records: int) -> Tensor:
        if parameter.grad_sample is None:  # the loss does not depend on it
            return torch.zeros(records, parameter.numel(), device=parameter.device)
        of_each: Tensor = parameter.grad_sample
        return of_each.flatten(1)


def _reduction(criterion: Criterion) -> str:
    reduction = getattr(criterion, "reduction", "mean")
    if reduction not in ("mean", "sum"):
        raise ConfigError(field="criterion", value=f"reduction={reduction!r}", remedy="reduce to a mean or a sum")
    return str(reduction)


def _refuse_module(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) or getattr(layer, "track_running_stats", False):
            remedy = "it mixes records or keeps running statistics, frozen or not; use GroupNorm or LayerNorm"
            raise ConfigError(field="module", value=f"{type(layer).__name__} at {name or 'the top'}", remedy=remedy)
    errors = ModuleValidator.validate(copy.deepcopy(module).train(), strict=False)
    if errors:
        remedy = "opacus.validators.ModuleValidator.fix replaces what it can"
        raise ConfigError(field="module", value=" ".join(str(error) for error in errors), remedy=remedy)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(field="module", value=type(module).__name__, remedy="it has no parameters to train")


def _refuse_optimizer(optimizer: Optimizer, parameters: list[nn.Parameter]) -> None:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if held != {id(parameter) for parameter in parameters}:
        remedy = "give it exactly the module's trainable parameters"
        raise ConfigError(field="optimizer", value=type(optimizer).__name__, remedy=remedy)


def _refuse_loader(loader: DataLoader[Any]) -> None:
    if isinstance(loader.dataset, IterableDataset) or not isinstance(loader.dataset, Sized):
        remedy = "records are drawn by their numbers; give a data set with a length and items"
        raise ConfigError(field="loader", value=type(loader.dataset).__name__, remedy=remedy)
    sampler = loader.sampler
    even = isinstance(sampler, SequentialSampler) or (isinstance(sampler, RandomSampler) and not sampler.replacement)
    if not even:
        remedy = "every record has to have the same chance; leave the sampler out, or give a smaller data set"
        raise ConfigError(field="loader", value=type(sampler).__name__, remedy=remedy)
