"""The interface of a path: a way to train some of the clients, faster than the ones after it in the list."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Randomness
from incrowd.learning.batches import Batches
from incrowd.learning.contributions import Contributions
from incrowd.learning.execution import Execution
from incrowd.learning.label_shares import logit_offset
from incrowd.learning.losses import Loss, OutputShape
from incrowd.learning.models import Model
from incrowd.learning.store import ClientTensors
from incrowd.settings.local import Local


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingTask:
    """What there is to do: train the clients of `data`, which is on the device, with a model that fits them."""

    model: Model
    loss: Loss
    data: ClientTensors
    local: Local
    execution: Execution
    outputs: OutputShape

    @property
    def device(self) -> torch.device:
        """Where it is done."""
        return torch.device(self.execution.device)

    @property
    def on_accelerator(self) -> bool:
        """Whether that is another place than the CPU."""
        return self.device.type != "cpu"

    @property
    def everyone(self) -> NDArray[np.bool_]:
        """All clients that there are, for a path that takes them."""
        return np.ones(self.data.present, bool)

    def offset(self, client: int) -> Tensor | None:
        """What the client adds to its outputs before they are compared with its labels; see `label_shares`."""
        if self.local.label_shares is None:
            return None
        rows = torch.from_numpy(self.data.examples(client).astype(np.int64)).to(self.data.device)
        return self._offset_of(self.data.labels[rows], self.local.label_shares)

    def made_up_offset(self) -> Tensor | None:
        """That of a client with one example whose label is 0: of the data only shapes and types are read."""
        label = self.data.labels.new_zeros(1, *self.data.labels.shape[1:])
        return None if self.local.label_shares is None else self._offset_of(label, self.local.label_shares)

    def _offset_of(self, labels: Tensor, smoothing: float) -> Tensor:
        return logit_offset(labels, smoothing, loss=self.loss, outputs=self.outputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientRound:
    """A client's part in a round: its batches, and where all else that it needs is drawn from."""

    client: int
    round: int
    batches: Batches
    randomness: Randomness

    def masks_seed(self) -> int:
        """The seed of what torch draws for this client in this round."""
        return int(self.randomness.stream("masks", self.round, self.client).bits(1)[0] >> np.uint64(1))


class TrainingPath(ABC):
    """A way to train clients.

    Guarantee: what a client learns, and the bits of it, follow from the model, the settings, its own examples and its
    `ClientRound`. With whom it is trained, and who was trained before, changes nothing; nor does what it holds decide
    about the path of anyone else.
    """

    takes: NDArray[np.bool_]
    """Which of the clients that there are it can train, each by its own examples."""
    at_once: int
    """So many clients come together at most; of them the contributions are in memory at once."""
    shares: int = 1
    """Into so many groups a cohort is divided at least, for processes to share out."""

    def kind(self, client: int) -> int:
        """Only clients of one kind come together."""
        return 0

    def effort(self, client: int) -> int:
        """Clients who take about as long come together, where they can."""
        return 0

    @abstractmethod
    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """Train these clients from the same flat weights, on the device, which stay as they are."""


MakePath = Callable[[TrainingTask], TrainingPath | None]
"""Makes a path for a task, or says that there is none. It costs little where another way will be taken."""
