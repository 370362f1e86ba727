"""Scores of weights on clients' own examples, as contributions of bounded length. Private until released."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from incrowd import _validate
from incrowd._random import Floats
from incrowd.data.examples import IGNORED, each
from incrowd.errors import ConfigError
from incrowd.learning.execution import ieee, one_thread
from incrowd.learning.inputs import ClientTensors, calling, meant, zeros
from incrowd.learning.losses import Loss
from incrowd.learning.mean_query import VectorTrainer
from incrowd.learning.models import Model
from incrowd.learning.modules import known, remembering_nothing

_ROWS = 1000  # examples that a module takes at a time
_ROUNDED_UP = 1 + 2.0**-20  # so that the longest possible contribution is not clipped
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The figures that an evaluation measures of each client: public, and all of them shares between 0 and 1.

    `accuracy` is the share of a client's examples (of an example's labels, if it has several) that the model gets
    right. `loss_bound` is its mean loss over the bound, of an example at most one. `classes` asks for each class the
    shares of its examples that are right, and wrong. The first two are sent less one half, which halves the noise.

    Guarantee: no contribution is longer than `bound` in the L2 norm, whatever model, labels and loss are. Outputs that
    are not finite are wrong, and a loss that is not, or fails, counts as the bound.
    """

    accuracy: bool = True
    loss_bound: float | None = None
    classes: int | None = None

    def __post_init__(self) -> None:
        if not (self.accuracy or self.loss_bound is not None or self.classes is not None):
            raise ConfigError(field="accuracy", value=False, remedy="measure it, or give loss_bound or classes")
        if self.loss_bound is not None:
            _validate.positive(loss_bound=self.loss_bound)
        if self.classes is not None:
            _validate.count(classes=self.classes)

    @property
    def halved(self) -> int:
        """The number of figures, the first ones, that are less one half."""
        return int(self.accuracy) + int(self.loss_bound is not None)

    @property
    def size(self) -> int:
        """The length of a contribution."""
        return self.halved + 2 * (self.classes or 0)

    @property
    def bound(self) -> float:
        """The largest L2 norm of a contribution: shares of one whole have a norm of at most 1."""
        return math.sqrt(self.halved / 4 + (self.classes is not None)) * _ROUNDED_UP

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> "Scoring":
        """Read the result of `to_json`. Edge cases: anything else is a `ConfigError`."""
        accuracy, bound, classes = (form.get(name) for name in ("accuracy", "loss_bound", "classes"))
        if not isinstance(accuracy, bool):
            raise ConfigError(field="accuracy", value=accuracy, remedy="say true or false")
        return cls(accuracy=accuracy, loss_bound=bound, classes=classes)

    def shares(self, outputs: Tensor, labels: Tensor, loss: Loss) -> Floats:
        """The sums of these examples' figures, [size], before they are halved."""
        right = shares_right(outputs, labels)
        sums = [float(right.sum())] if self.accuracy else []
        if self.loss_bound is not None:
            sums.append(math.fsum(_losses(outputs, labels, loss=loss, bound=self.loss_bound)))
        by_class = [] if self.classes is None else _by_class(right, labels, self.classes)
        return np.array([*sums, *by_class])

    def contribution(self, shares: Floats, *, examples: int) -> Floats:
        """The contribution of a client with so many examples; zeros without any."""
        if not examples:
            return np.zeros(self.size)
        mean = shares / examples
        mean[: self.halved] -= 0.5
        return mean

    def figures(self, mean: Floats, *, std: float) -> dict[str, Any]:
        """The figures of a released mean over the clients, with noise of this deviation in each number."""
        figures: dict[str, Any] = {}
        halved = iter(mean[: self.halved].tolist())
        if self.accuracy:
            figures |= {"accuracy": next(halved) + 0.5, "accuracy_std": std}
        if self.loss_bound is not None:
            bound = self.loss_bound
            figures |= {"loss": bound * (next(halved) + 0.5), "loss_std": bound * std, "loss_bound": bound}
        if self.classes is not None:
            table = mean[self.halved :].reshape(self.classes, 2)
            rows = [_class(number, right, wrong) for number, (right, wrong) in enumerate(table.tolist())]
            recalls = [row["recall"] for row in rows if row["recall"] is not None]
            balanced = sum(recalls) / len(recalls) if recalls else None
            figures |= {"balanced_accuracy": balanced, "by_class": rows, "share_std": std}
        return figures


@dataclass(frozen=True, kw_only=True, eq=False)
class Scorer:
    """Scores weights on the examples of numbered clients.

    Guarantee: a client's contribution is, bit for bit, a function of its own examples, the weights and the scoring.
    """

    model: Model
    data: ClientTensors = field(repr=False)
    scoring: Scoring
    loss: Loss

    def __post_init__(self) -> None:
        labels = self.data.labels
        if self.scoring.classes is not None and (labels.ndim != 1 or labels.is_floating_point()):
            remedy = "the labels are several, or numbers: leave the figures class by class out"
            raise ConfigError(field="classes", value=self.scoring.classes, remedy=remedy)
        made_up = meant(each(lambda one: one.cpu(), zeros(self.data.features, 2)), scale=1, offset=0)
        module = self.model.with_weights(self.model.weights)
        try:
            with one_thread(), torch.no_grad():
                outputs = calling(module, self.data.features)(made_up)
                self.scoring.shares(outputs, labels.new_zeros(2, *labels.shape[1:]).cpu(), self.loss)
        except _FAILURES as error:
            remedy = f"it cannot be compared with labels of the shape {tuple(labels.shape[1:])}: {error}"
            raise ConfigError(field="module", value=type(module).__name__, remedy=remedy) from error

    def trainer(self, weights: ArrayLike | Tensor) -> VectorTrainer:
        """Clients that score these weights, for a round: see `incrowd.privacy.release.Trainer`."""
        return VectorTrainer(partial(self.rows, weights))

    def rows(self, weights: ArrayLike | Tensor, clients: Sequence[int]) -> Floats:
        """The contributions of these clients, a row each. Private."""
        rows = np.zeros((len(clients), self.scoring.size))
        with one_thread(), ieee(str(self.data.device)), torch.no_grad():
            module = self._module(weights)
            forgets = all(map(known, module.modules()))
            for row, client in zip(rows, clients, strict=True):
                with remembering_nothing(module, self.data.device, whose="client"):
                    row[:] = self._row(module, client)
                module = module if forgets else self._module(weights)
        return rows

    def _module(self, weights: ArrayLike | Tensor) -> nn.Module:
        return self.model.with_weights(weights).to(self.data.device)

    def _row(self, module: nn.Module, client: int) -> Floats:
        data = self.data
        call, own = calling(module, data.features), data.rows(client)
        shares = np.zeros(self.scoring.size)
        for rows in torch.split(own, _ROWS) if len(own) else ():
            inputs, labels = data.take(rows)
            shares += self.scoring.shares(call(inputs).cpu(), labels.cpu(), self.loss)
        return self.scoring.contribution(shares, examples=len(own))


def shares_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """The share of each example's labels, or places that count, that are right, [N]; outputs not finite are wrong."""
    finite = outputs.isfinite()
    if outputs.ndim == labels.ndim + 1 and outputs.shape[-1] > 1:
        right = (outputs.argmax(-1) == labels) & finite.all(-1)
    else:
        right = ((outputs.reshape(labels.shape) > 0) == (labels > 0.5)) & finite.reshape(labels.shape)
    if labels.ndim == 1:
        return right.double()
    counted = (labels != IGNORED).flatten(1)
    return (right.flatten(1) & counted).sum(1).double() / counted.sum(1).clamp(min=1)


def _losses(outputs: Tensor, labels: Tensor, *, loss: Loss, bound: float) -> Iterator[float]:
    """The loss of each example over the bound, at most 1."""
    for one in torch.split(torch.arange(len(labels)), 1):
        try:
            value = float(loss.value(outputs[one], labels[one]))
        except _FAILURES:  # some losses raise for outputs that are not finite; synthetic examples have been tried
            value = math.nan
        yield min(max(value, 0.0), bound) / bound if math.isfinite(value) else 1.0


def _by_class(right: Tensor, labels: Tensor, classes: int) -> list[float]:
    """The numbers of right and of wrong examples of each class, one after the other."""
    among = (labels >= 0) & (labels < classes)
    places = 2 * labels[among].long() + (right[among] < 0.5).long()
    return torch.bincount(places, minlength=2 * classes).tolist()


def _class(number: int, right: float, wrong: float) -> dict[str, Any]:
    """A class's share of the examples, and the share of these that is right; noise below 0 counts as 0."""
    hits, misses = max(right, 0.0), max(wrong, 0.0)
    recall = hits / (hits + misses) if hits + misses > 0 else None
    return {"class": number, "share": right + wrong, "recall": recall}
