"""The seam between learning and speed: a backend trains some of the clients, faster than the ones after it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Randomness
from incrowd.errors import ConfigError
from incrowd.learning.contributions import Contributions
from incrowd.learning.execution import Execution
from incrowd.learning.inputs import Batches, ClientTensors
from incrowd.learning.local_algorithms import Sgd
from incrowd.learning.losses import Loss, OutputShape, logit_offset
from incrowd.learning.models import Model
from incrowd.settings import Local
from incrowd.types import LocalAlgorithm


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """The clients of `data`, which is on the device, train a model that fits them."""

    model: Model
    loss: Loss
    data: ClientTensors
    local: Local
    execution: Execution
    outputs: OutputShape
    algorithm: LocalAlgorithm

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return torch.device(self.execution.device)

    @property
    def on_accelerator(self) -> bool:
        """True if the device is not the CPU."""
        return self.device.type != "cpu"

    @property
    def by_sgd(self) -> bool:
        """True if clients train with SGD, with or without momentum, weight decay and a proximal term."""
        return type(self.algorithm) is Sgd

    @property
    def everyone(self) -> NDArray[np.bool_]:
        """All clients that exist, for a backend that takes them."""
        return np.ones(self.data.present, bool)

    def offset(self, client: int) -> Tensor | None:
        """The client adds it to its outputs before the loss compares them with its labels; see `label_shares`."""
        if self.local.label_shares is None:
            return None
        return self._offset_of(self.data.labels[self.data.rows(client)], self.local.label_shares)

    def made_up_offset(self) -> Tensor | None:
        """The offset of a client with one example whose label is 0: it reads only shapes and types of the data."""
        label = self.data.labels.new_zeros(1, *self.data.labels.shape[1:])
        return None if self.local.label_shares is None else self._offset_of(label, self.local.label_shares)

    def _offset_of(self, labels: Tensor, smoothing: float) -> Tensor:
        return logit_offset(labels, smoothing, loss=self.loss, outputs=self.outputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientRound:
    """A client's part in a round: its batches, and the randomness for all else."""

    client: int
    round: int
    batches: Batches
    randomness: Randomness

    def seed(self) -> int:
        """The seed of torch's random numbers for this client in this round."""
        return int(self.randomness.stream("masks", self.round, self.client).bits(1)[0] >> np.uint64(1))


class Backend(ABC):
    """A way to train clients of one task. Write your own: `CohortEngine(..., backends=(yours, *BACKENDS))`.

    Guarantee: a client's update, and its bits, follow from the model, the settings, its own examples and its
    `ClientRound`. Other clients of the group and earlier groups change neither the update nor the client's backend.
    """

    takes: NDArray[np.bool_]
    """The clients that it can train, each by its own examples."""
    at_once: int
    """It holds the updates of at most so many clients in memory."""
    shares: int = 1
    """A cohort is divided into at least so many groups, which processes share out."""

    def kind(self, client: int) -> int:
        """Only clients of one kind come together."""
        return 0

    def effort(self, client: int) -> int:
        """Clients of like effort come together where they can."""
        return 0

    @abstractmethod
    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """Train these clients, at most `at_once`, on the device, from the same flat weights, which stay as they are."""


MakeBackend = Callable[[Task], Backend | None]
"""Make a backend for a task, or None if it does not take the task. It costs little where another backend will do."""


class Choice:
    """The first backend that takes a client trains it, for any other clients."""

    def __init__(self, makes: Sequence[MakeBackend], task: Task) -> None:
        self.backends: list[Backend] = []
        self._place = np.zeros(task.data.present, np.intp)
        left = task.everyone
        for make in makes:
            backend = make(task) if left.any() else None
            if backend is not None and (backend.takes & left).any():
                self._place[backend.takes & left] = len(self.backends)
                self.backends.append(backend)
                left &= ~backend.takes
        if left.any():
            remedy = "none of them takes this model: leave out fewer"
            raise ConfigError(field="backends", value=len(makes), remedy=remedy)

    @property
    def at_once(self) -> int:
        """See `Backend.at_once`."""
        return max((backend.at_once for backend in self.backends), default=1)

    def of(self, client: int) -> Backend:
        """The backend of a client."""
        return self.backends[int(self._place[client])]

    def kind(self, client: int) -> int:
        """Clients of one backend and of one kind there come together."""
        return self.of(client).kind(client) * len(self.backends) + int(self._place[client])
