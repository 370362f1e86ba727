"""Protocols of the extension points: a class that has these methods works, without inheritance.

`incrowd.testing` has a contract suite for each, and `examples/extensions` an example.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from incrowd._extensions import register
from incrowd._random import Floats, Integers, Randomness, Stream
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.mechanism.clipping import ThirdPartyClip
from incrowd.privacy.plan.sampling import ThirdPartySampling

if TYPE_CHECKING:
    from torch import Tensor

    from incrowd.runs.folder import Record

Batch = tuple[Any, "Tensor"]
Facts = Mapping[str, Any]

__all__ = [
    "Accountant",
    "ClientAtWork",
    "ClipFunction",
    "DataSource",
    "FeatureMap",
    "LocalAlgorithm",
    "Randomness",
    "Sampler",
    "ServerOptimizer",
    "Stream",
    "ThirdPartyClip",
    "ThirdPartySampling",
    "Tracker",
    "register",
]


class ServerOptimizer(Protocol):
    """A server optimizer: a pair of functions over named arrays of float64. Register a function that makes it from the
    settings `incrowd.ServerOptimizer`.
    """

    def init(self, size: int) -> Mapping[str, Floats]:
        """The arrays before the first step."""

    def update(self, mean: Floats, state: Mapping[str, Floats]) -> tuple[Floats, Mapping[str, Floats]]:
        """The direction of a step along a released mean, and the next arrays, of the same names and shapes."""


class Accountant(Protocol):
    """An accountant: upper bounds on the privacy loss of an event. It can raise incrowd's figures, never lower them."""

    def epsilon(self, event: DpEvent, delta: float, *, relation: Relation) -> float:
        """An epsilon that the event keeps at this delta."""

    def delta(self, event: DpEvent, epsilon: float, *, relation: Relation) -> float:
        """A delta that the event keeps at this epsilon."""


class ClipFunction(Protocol):
    """A clip: a function of contributions and the bound on their L2 norm. incrowd measures every row that it returns,
    and scales a longer row down.
    """

    def __call__(self, rows: Floats, clip_norm: float, /) -> Floats:
        """The clipped contributions, one a row. Each row follows from its contribution alone."""


class DataSource(Protocol):
    """A data source: the clients of a database or a format of your own. `incrowd.Clients.from_source` reads it."""

    def __call__(self, *args: Any, **arguments: Any) -> Mapping[str, tuple[Any, Any]]:
        """The features and the labels of each client, by the client's name."""


class Sampler(Protocol):
    """A sampler: the clients of a round, and the event that prices their release.

    `relation` is the neighbouring relation of the event.
    """

    @property
    def relation(self) -> Relation:
        """The neighbouring relation under which the event is priced."""

    def event(self, noise_multiplier: float, *, clients: int, cohort: float) -> DpEvent:
        """The event of one round with the noise N(0, (noise_multiplier * C)^2) on a sum of contributions of norm C."""

    def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
        """The numbers of a round's clients, in rising order, drawn from the stream alone."""


class ClientAtWork(Protocol):
    """A client's model, its batches, and gradients on them."""

    @property
    def parameters(self) -> Sequence["Tensor"]:
        """The parameters, which begin at the server's weights and which the algorithm moves in place."""

    @property
    def starts(self) -> Sequence["Tensor"]:
        """The server's weights, parameter by parameter."""

    def batches(self, *, epochs: int | None = None) -> Iterator[Batch]:
        """The client's batches in this round, or those of so many epochs. The next one may overwrite the last."""

    def gradients(self, batch: Batch) -> Sequence["Tensor | None"]:
        """The gradient of the mean loss at the parameters; None for one that the loss does not depend on."""


class LocalAlgorithm(Protocol):
    """A local algorithm, by which a client moves the weights of a round. Its state ends with the round; between rounds
    the server alone keeps state. Register a function that makes it from the settings `incrowd.Local`.

    Guarantee: a client's update and the rest that it `sends` are one vector: one clip bounds it, one noise covers it.
    """

    def sends(self, size: int) -> int:
        """The number of values that a client sends with its update of `size` weights: 0, or one for each weight.

        They are zeros before the first round; after each the server adds the released mean.
        """

    def train(self, client: ClientAtWork, shared: Sequence["Tensor"]) -> Sequence["Tensor"]:
        """Move the client's parameters; give the change of the shared numbers, parameter by parameter."""


class FeatureMap(Protocol):
    """A fixed function from examples [n, ...] to their features [n, d], or to [n, ...] for a map that comes after.

    Each client applies it to its own examples. It is fixed before training and learns nothing from them, so it costs no
    privacy. Register a function that makes the map from the `arguments` of the settings.

    Guarantee: an example's features depend on that example alone (up to the rounding of float32);
    `incrowd.learning.features.transform` looks for a map that breaks this.
    """

    @property
    def name(self) -> str:
        """Names everything that the features depend on: two maps of the same name compute the same."""

    def __call__(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Features of a few examples, given as they are meant. Called from several threads at once."""


class Tracker(Protocol):
    """A tracker: a listener to the rounds of a run. Register a function that makes it for the folder of a run.

    A registered tracker hears public values alone, and those of a run that is no simulation when it is over.
    """

    def start(self, settings: Facts, past: Sequence["Record"]) -> None:
        """The run begins, or goes on after these rounds."""

    def round(self, record: "Record") -> None:
        """A round has ended."""

    def end(self, summary: Facts | None) -> None:
        """The run is over, or, without a summary, was stopped before its end."""
