"""The path for a model that begins with frozen layers: what they make of an example never changes, and is kept.

Only what comes after the frozen layers is trained, by whichever other path takes that, on examples as the frozen layers
left them: a Linear head on a frozen network is then trained as fast as any Linear model.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from mmap import mmap

import numpy as np
import torch
from torch import Tensor, nn

from incrowd.data.inputs import is_single
from incrowd.learning.contributions import Contributions
from incrowd.learning.frozen import divided, made_of_one
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.models import Model
from incrowd.learning.modules import remembering_nothing
from incrowd.learning.paths.path import ClientRound, MakePath, TrainingPath, TrainingTask
from incrowd.learning.paths.ways import FirstWay
from incrowd.learning.store import ClientTensors

_ROWS = 32  # examples that go through the frozen layers together, always so many
_MEMORY = 2**30  # bytes of what they make that are kept at most


def before(others: Sequence[MakePath]) -> MakePath:
    """Makes the path, which leaves what is not frozen to `others`: of each client, to the first that takes it."""
    return partial(_make, others=tuple(others))


def _make(task: TrainingTask, others: Sequence[MakePath]) -> "Ahead | None":
    """The path, if the model is a Sequential that begins with frozen layers, and what they make fits into memory.

    Guarantee: of the examples only shapes, types and their number are read.
    """
    if not is_single(task.data.features) or len(task.data.indices) == 0:
        return None
    frozen, rest = divided(task.model.module)
    if frozen is None:
        return None
    frozen.to(task.device)
    shape = made_of_one(frozen, task.data.features, scale=task.data.scale, offset=task.data.offset)
    if shape is None or 4 * math.prod(shape) * len(task.data.indices) > _MEMORY:
        return None
    return Ahead(task, frozen, rest, shape, others)


class Ahead(TrainingPath):
    """Puts a client's examples through the frozen layers when it is first trained, and trains the rest another way.

    Guarantee: what the frozen layers make of a client's example, and the bits of it, follow from them and the client's
    own examples: they go through in blocks that are always equally large, and nobody else's are among them. A layer
    that could remember anything, or that draws, is not taken for frozen.

    Edge cases: what was not computed yet is no number, so that nothing can be learnt from it unnoticed.
    """

    def __init__(
        self,
        task: TrainingTask,
        frozen: nn.Module,
        rest: nn.Sequential,
        shape: tuple[int, ...],
        others: Sequence[MakePath],
    ) -> None:
        self._task, self._frozen = task, frozen
        data = task.data
        self._made = _kept((len(data.indices), *shape), task.device)
        self._there = _shared(data.present).zero_()
        labels = data.labels.index_select(0, torch.from_numpy(data.indices.astype(np.int64)).to(task.device))
        left = ClientTensors(
            features=self._made,
            labels=labels,
            offsets=data.offsets,
            indices=np.arange(len(data.indices)),
            declared=data.declared,
        )
        self._ways = FirstWay(others, replace(task, model=Model(rest), data=left))
        self.takes, self.at_once, self.shares = task.everyone, self._ways.at_once, self._ways.shares

    def kind(self, client: int) -> int:
        """See `TrainingPath.kind`."""
        return self._ways.kind(client)

    def effort(self, client: int) -> int:
        """See `TrainingPath.effort`."""
        return self._ways.path(client).effort(client)

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        for one in clients:
            if not self._there[one.client]:
                self._compute(one.client)
        path = self._ways.path(clients[0].client)
        groups = [clients[begin : begin + path.at_once] for begin in range(0, len(clients), path.at_once)]
        return [found for group in groups for found in path.train(weights, group)]

    @torch.no_grad()
    def _compute(self, client: int) -> None:
        data = self._task.data
        begin, own = int(data.offsets[client]), data.examples(client)
        with remembering_nothing(self._frozen, self._task.device, whose="client"):
            for first in range(0, len(own), _ROWS):
                some = own[np.minimum(np.arange(first, first + _ROWS), len(own) - 1)].astype(np.int64)
                rows = torch.from_numpy(some).to(data.device)
                inputs = meant(chosen(data.features, rows), scale=data.scale, offset=data.offset)
                count = min(_ROWS, len(own) - first)
                self._made[begin + first : begin + first + count] = self._frozen(inputs)[:count]
        self._there[client] = 1


def _kept(shape: Sequence[int], device: torch.device) -> Tensor:
    """Room for what the layers make. On a processor it is shared, so that processes that are forked from this one tell
    each other what they have computed.
    """
    if device.type == "cpu":
        return _shared(*shape).fill_(torch.nan)
    return torch.full(tuple(shape), torch.nan, device=device)  # pragma: no cover - where there is one


def _shared(*shape: int) -> Tensor:
    return torch.frombuffer(mmap(-1, 4 * math.prod(shape)), dtype=torch.float32).view(shape)
