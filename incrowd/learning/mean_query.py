"""Private queries: the mean over clients of one vector each, clipped, noised and paid for as one round of a plan."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from incrowd import _validate
from incrowd._random import Floats
from incrowd.data.clients import Clients
from incrowd.errors import ConfigError
from incrowd.learning.contributions import ShortenedSum
from incrowd.learning.execution import one_thread
from incrowd.learning.inputs import ClientTensors, calling, meant, zeros
from incrowd.learning.losses import LOGISTIC, Loss, OutputShape, adjustment, shares_of
from incrowd.learning.models import Model
from incrowd.learning.modules import refused, remembered
from incrowd.privacy.mechanism import grid
from incrowd.privacy.mechanism.clipped_sum import ClientNumbers
from incrowd.privacy.mechanism.clipping import FixedClip, NormalisedClip, part_norms
from incrowd.settings import Local

if TYPE_CHECKING:
    from incrowd.privacy.release import PrivateRun, Release

LONG = 2.0**20
"""Contributions are longer than any bound, so that every clip scales all of them to its bound."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The released mean and the standard deviation of the noise in each of its numbers."""

    mean: Floats
    noise_std: float


class ClientExamples(NamedTuple):
    """A client's own examples."""

    features: Any
    labels: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanQuery:
    """The mean over the expected cohort of a `vector` of `size` numbers of a client's own examples.

    Guarantee: a client's vector is clipped to length `bound`, and enters one round of a plan, which clips, charges and
    noises it as any other. A vector that is not finite counts as zeros.
    """

    name: str
    size: int
    vector: Callable[[ClientExamples], ArrayLike]
    bound: float = 1.0

    def __post_init__(self) -> None:
        _validate.count(size=self.size)
        _validate.positive(bound=self.bound)

    @property
    def width(self) -> int:
        """The least length of a contribution: the last number pads its norm up to the bound."""
        return self.size + 1

    def ask(self, data: Clients, private: "PrivateRun", *, number: int = 0) -> Answer:
        """Ask the cohort of a round; declared clients that do not exist contribute zeros."""
        tensors = ClientTensors.of(data)
        self.check(tensors, private)
        private.check_clients(clients=data.clients, declared=data.declared is not None)
        private.name_third_party(f"query {self.name}")
        opened = private.round(number)
        trainer = self.trainer(tensors, width=private.size)
        opened.ask(trainer, present=lambda clients: clients[clients < tensors.present])
        return self.answer(opened.release())

    def check(self, data: ClientTensors, private: "PrivateRun") -> None:
        """Refuse a plan that scales contributions otherwise, and a function that does not fit synthetic examples."""
        start = private.start()
        if not isinstance(start.clip, NormalisedClip | FixedClip) or start.clip.clip_norm > LONG:
            remedy = f"give a normalised or a fixed clip of at most {LONG:.0f}"
            raise ConfigError(field="clip", value=start.clip, remedy=remedy)
        if start.noise is not None:
            raise ConfigError(field="noise", value="correlated", remedy="ask a query under independent noise")
        if private.size < self.width:
            remedy = f"the query {self.name} needs {self.width} numbers"
            raise ConfigError(field="size", value=private.size, remedy=remedy)
        features = meant(zeros(data.features, 3), scale=data.scale, offset=data.offset)
        made_up = ClientExamples(features, data.labels.new_zeros(3, *data.labels.shape[1:]))
        first, before = _numbers(self.vector(made_up)), remembered(self.vector)
        second = _numbers(self.vector(made_up))
        if remembered(self.vector) != before:
            raise refused("vector", self.name)
        if first.shape != (self.size,) or not np.array_equal(first, second, equal_nan=True):
            remedy = f"return the same {self.size} numbers for the same examples"
            raise ConfigError(field="vector", value=first.shape, remedy=remedy)

    def row(self, data: ClientTensors, client: int) -> Floats:
        """A client's vector in units of the bound: a function of its own examples alone."""
        vector = _numbers(self.vector(ClientExamples(*data.take(data.rows(client))))) / self.bound
        vector = vector if vector.shape == (self.size,) and np.isfinite(vector).all() else np.zeros(self.size)
        return vector / max(1.0, float(np.linalg.norm(vector)))

    def trainer(self, data: ClientTensors, *, width: int) -> "VectorTrainer":
        """The trainer of a round of so many numbers: see `incrowd.privacy.release.Trainer`."""

        def rows(clients: Sequence[int]) -> Floats:
            found, before = np.zeros((len(clients), width)), remembered(self.vector)
            with one_thread(), torch.no_grad():
                for row, client in zip(found, clients, strict=True):
                    vector = self.row(data, client)
                    row[: self.size] = LONG * vector
                    row[-1] = LONG * math.sqrt(max(0.0, 1 - float(vector @ vector)))
            if remembered(self.vector) != before:
                raise refused("vector", self.name)
            return found

        return VectorTrainer(rows)

    def answer(self, release: "Release") -> Answer:
        """The mean that a round released."""
        unit = self.bound / release.clip_norm
        return Answer(mean=unit * release.mean[: self.size], noise_std=unit * release.noise_std / release.cohort)


@dataclass(frozen=True, eq=False)
class VectorTrainer:
    """Clients that contribute a row of numbers each, computed when asked for."""

    rows: Callable[[Sequence[int]], Floats] = field(repr=False)

    def cohort(self, clients: ClientNumbers, *, round: int) -> "VectorCohort":
        """The contributions of these clients."""
        return VectorCohort(self.rows, [int(client) for client in clients])


@dataclass(frozen=True, eq=False)
class VectorCohort:
    """The contributions of some clients: see `incrowd.privacy.mechanism.clipped_sum.CohortContributions`."""

    compute: Callable[[Sequence[int]], Floats] = field(repr=False)
    clients: Sequence[int]

    def chunks(self) -> Iterator["VectorRows"]:
        """All of them at once: they are a few numbers each."""
        yield VectorRows(self.clients, self.compute(self.clients))

    def summed(
        self, *, bound: float, parts: tuple[int, ...] | None, factors: Callable[[Floats], Floats]
    ) -> ShortenedSum:
        """Their sum, each times the factors that its norms ask for, in whole steps of `grid.coarse_step(bound)`."""
        rows = self.compute(self.clients)
        norms = part_norms(rows, parts)
        shortened = rows * np.repeat(factors(norms), (rows.shape[1],) if parts is None else parts, axis=1)
        step = grid.coarse_step(bound)
        return ShortenedSum(norms=norms, total=np.trunc(shortened / step).sum(axis=0) * step)


@dataclass(frozen=True, eq=False)
class VectorRows:
    """Contributions and whose they are: see `incrowd.privacy.mechanism.clipped_sum.ContributionRows`."""

    clients: Sequence[int]
    contributions: Floats = field(repr=False)

    def rows(self) -> NDArray[np.float64]:
        """See `ContributionRows.rows`."""
        return self.contributions


def _numbers(found: ArrayLike) -> Floats:
    return np.asarray(found.numpy(force=True) if isinstance(found, Tensor) else found, np.float64)


def label_query(local: Local, labels: Tensor, loss: Loss, outputs: OutputShape) -> MeanQuery | None:
    """The query that settings ask before they train: a client's label distribution less the uniform one."""
    if local.label_distribution is None:
        return None
    several = loss is LOGISTIC
    classes = math.prod(labels.shape[1:]) if several else outputs[-1]
    if local.label_shares is None or (classes < 2 and not several):
        remedy = "it needs local.label_shares, and two classes or more: give those, or leave it out"
        raise ConfigError(field="local.label_distribution", value=local.label_distribution, remedy=remedy)
    longest = math.sqrt(classes) / 2 if several else math.sqrt(1 - 1 / classes)  # a client with one class alone
    vector = partial(_above_uniform, classes=classes, several=several)
    return MeanQuery(name="label distribution", size=classes, vector=vector, bound=longest)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassPrior:
    """The label distribution as biases: `places` of the flat weights, whose outputs move by `unit` for one."""

    size: int
    places: slice
    unit: float
    smoothing: float
    several: bool

    @classmethod
    def of(cls, model: Model, data: ClientTensors, local: Local, query: MeanQuery) -> "ClassPrior":
        """Place the prior in a model's last biases, or in a linear model's weights for a `constant` last feature."""
        classes, shape, constant = query.size, model.layout.shapes[-1], data.constant
        places, unit = slice(model.size - classes, model.size), 1.0
        if constant and len(model.layout.shapes) == 1 and shape == (classes, model.size // classes):
            places, unit = slice(shape[1] - 1, None, shape[1]), constant
        several = len(data.labels.shape) > 1 or data.labels.is_floating_point()
        found = cls(size=model.size, places=places, unit=unit, smoothing=local.label_shares or 1.0, several=several)
        if not _moves_outputs(model, data, found, classes):
            remedy = "the last layer has no bias, by which it would be published: give it one, or leave it out"
            raise ConfigError(field="local.label_distribution", value=local.label_distribution, remedy=remedy)
        return found

    def shift(self, answer: Answer) -> Floats:
        """The flat weights to add; a mean that is mostly noise shrinks to the uniform one (James and Stein 1961)."""
        above, free = answer.mean, len(answer.mean)
        if not self.several:
            above, free = above - above.mean(), free - 1
        uniform = 0.5 if self.several else 1 / len(above)
        kept = 1 - free * answer.noise_std**2 / max(float(above @ above), 1e-300)
        shares = np.clip(uniform + max(0.0, kept) * above, 0, 1)
        weights = np.zeros(self.size)
        adjusted = adjustment(torch.from_numpy(shares), self.smoothing, several=self.several).numpy()
        weights[self.places] = (adjusted - (0 if self.several else adjusted.mean())) / self.unit
        return weights


def _moves_outputs(model: Model, data: ClientTensors, prior: ClassPrior, classes: int) -> bool:
    """Return whether a step of the biases moves all outputs for a synthetic example by as much."""
    made_up = meant(zeros(data.features, 1), scale=1, offset=0)
    if data.constant and isinstance(made_up, Tensor):
        made_up = made_up.cpu().clone().flatten(1)
        made_up[:, -1] = data.constant
    step = torch.zeros(model.size)
    if len(step[prior.places]) != classes:
        return False
    step[prior.places] = 1 / prior.unit
    with torch.no_grad():
        before, after = (
            calling(module, made_up)(made_up)
            for module in (model.with_weights(model.weights), model.with_weights(model.weights + step))
        )
    return bool(torch.allclose(after, before + 1, atol=1e-4))


def _above_uniform(own: ClientExamples, *, classes: int, several: bool) -> Tensor:
    """Edge cases: a client without labels that count has the uniform distribution."""
    shares = shares_of(own.labels, classes, several=several)
    nothing = not several and not shares.any()
    return shares.new_zeros(classes) if nothing else shares - (0.5 if several else 1 / classes)
