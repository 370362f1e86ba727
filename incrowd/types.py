"""Protocols of the extension points: a class that has these methods works, without inheritance.

`incrowd.testing` has a contract suite for each, and `examples/extensions` an example.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from dp_accounting import DpEvent

from incrowd._extensions import register
from incrowd._random import Floats, Integers, Randomness, Stream
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.plan.third_party import ThirdPartyClip, ThirdPartySampling

__all__ = [
    "Accountant",
    "ClipFunction",
    "DataSource",
    "Randomness",
    "Sampler",
    "ServerOptimizer",
    "Stream",
    "ThirdPartyClip",
    "ThirdPartySampling",
    "register",
]


class ServerOptimizer(Protocol):
    """A server optimizer: a pair of functions over named arrays of float64. Register a function that makes it from the
    settings `incrowd.ServerOptimizer`.
    """

    def init(self, size: int) -> Mapping[str, Floats]:
        """The arrays before the first step."""
        ...

    def update(self, mean: Floats, state: Mapping[str, Floats]) -> tuple[Floats, Mapping[str, Floats]]:
        """The direction of a step along a released mean, and the next arrays, of the same names and shapes."""
        ...


class Accountant(Protocol):
    """An accountant: upper bounds on the privacy loss of an event. It can raise incrowd's figures, never lower them."""

    def epsilon(self, event: DpEvent, delta: float, *, relation: Relation) -> float:
        """An epsilon that the event keeps at this delta."""
        ...

    def delta(self, event: DpEvent, epsilon: float, *, relation: Relation) -> float:
        """A delta that the event keeps at this epsilon."""
        ...


class ClipFunction(Protocol):
    """A clip: a function of contributions and the bound on their L2 norm. incrowd measures every row that it returns,
    and scales a longer row down.
    """

    def __call__(self, rows: Floats, clip_norm: float, /) -> Floats:
        """The clipped contributions, one a row. Each row follows from its contribution alone."""
        ...


class DataSource(Protocol):
    """A data source: the clients of a database or a format of your own. `incrowd.Clients.from_source` reads it."""

    def __call__(self, *args: Any, **arguments: Any) -> Mapping[str, tuple[Any, Any]]:
        """The features and the labels of each client, by the client's name."""
        ...


class Sampler(Protocol):
    """A sampler: the clients of a round, and the event that prices their release.

    `relation` is the neighbouring relation of the event.
    """

    @property
    def relation(self) -> Relation:
        """The neighbouring relation under which the event is priced."""
        ...

    def event(self, noise_multiplier: float, *, clients: int, cohort: float) -> DpEvent:
        """The event of one round with the noise N(0, (noise_multiplier * C)^2) on a sum of contributions of norm C."""
        ...

    def sample(self, stream: Stream, *, clients: int, cohort: float, round: int) -> Integers:
        """The numbers of a round's clients, in rising order, drawn from the stream alone."""
        ...
