"""The path for a model that begins with frozen layers: what they make of an example never changes, and is kept.

Only what comes after the frozen layers is trained, by whichever other path takes that, on examples as the frozen layers
left them: a Linear head on a frozen network is then trained as fast as any Linear model.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from mmap import mmap

import numpy as np
import torch
from torch import Tensor, nn

from incrowd.data.inputs import is_single, single
from incrowd.learning.arithmetic import ieee
from incrowd.learning.contributions import Contributions
from incrowd.learning.dropout import has_dropout
from incrowd.learning.inputs import chosen, meant, zeros
from incrowd.learning.models import Model
from incrowd.learning.modules import known, remembering_nothing, settled
from incrowd.learning.paths.path import ClientRound, MakePath, TrainingPath, TrainingTask
from incrowd.learning.store import ClientTensors

_ROWS = 32  # examples that go through the frozen layers together, always so many
_SEVERAL = 3
_TOLERANCE = 1e-3  # far above the rounding of float32, far below what another example would change
_MEMORY = 2**30  # bytes of what they make that are kept at most


def before(others: Sequence[MakePath]) -> MakePath:
    """Makes the path, which leaves what is not frozen to the first of `others` that takes everyone."""
    return partial(_make, others=tuple(others))


def _make(task: TrainingTask, others: Sequence[MakePath]) -> "Ahead | None":
    """The path, if the model is a Sequential that begins with frozen layers, and what they make fits into memory.

    Guarantee: of the examples only shapes, types and their number are read.
    """
    if task.on_accelerator or not is_single(task.data.features) or len(task.data.indices) == 0:
        return None
    frozen, rest = _divided(task.model.module)
    if frozen is None:
        return None
    shape = _made_of_one(frozen, task.data)
    if shape is None or 4 * math.prod(shape) * len(task.data.indices) > _MEMORY:
        return None
    return Ahead(task, frozen, rest, shape, others)


def _made_of_one(frozen: nn.Module, data: ClientTensors) -> tuple[int, ...] | None:
    """The shape of what the layers make of an example; None if it is not a row of numbers of each, alone.

    Edge cases: layers that look along the batch (attention with batch_first=False, say) are found by made-up examples.
    """
    generator = torch.Generator().manual_seed(0)
    several = single(zeros(data.features, _SEVERAL))
    drawn = torch.randint(0, 2, several.shape, generator=generator).to(several.dtype)
    made_up = single(meant(drawn, scale=data.scale, offset=data.offset))
    try:
        with torch.no_grad(), ieee(), torch.random.fork_rng(devices=[]):
            made, alone = frozen(made_up), frozen(made_up[:1].clone())
    except (RuntimeError, IndexError):  # not what these layers are for: zeros have been tried before
        return None
    if not isinstance(made, Tensor) or made.dtype != torch.float32 or made.ndim < 2 or len(made) != _SEVERAL:
        return None
    apart = torch.allclose(made[:1], alone, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    return tuple(made.shape[1:]) if apart else None


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
        # Shared, so that processes that are forked from this one tell each other what they have computed.
        self._made = _shared(len(data.indices), *shape).fill_(torch.nan)
        self._there = _shared(data.present).zero_()
        labels = data.labels.index_select(0, torch.from_numpy(data.indices.astype(np.int64)))
        left = ClientTensors(
            features=self._made,
            labels=labels,
            offsets=data.offsets,
            indices=np.arange(len(data.indices)),
            declared=data.declared,
        )
        paths = (make(replace(task, model=Model(rest), data=left)) for make in others)
        self._inner = next(path for path in paths if path is not None and path.takes.all())
        self.takes, self.at_once, self.shares = task.everyone, self._inner.at_once, self._inner.shares

    def kind(self, client: int) -> int:
        """See `TrainingPath.kind`."""
        return self._inner.kind(client)

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        for one in clients:
            if not self._there[one.client]:
                self._compute(one.client)
        return self._inner.train(weights, clients)

    @torch.no_grad()
    def _compute(self, client: int) -> None:
        data = self._task.data
        begin, own = int(data.offsets[client]), data.examples(client)
        with remembering_nothing(self._frozen, self._task.device, whose="client"):
            for first in range(0, len(own), _ROWS):
                some = own[np.minimum(np.arange(first, first + _ROWS), len(own) - 1)].astype(np.int64)
                inputs = meant(chosen(data.features, torch.from_numpy(some)), scale=data.scale, offset=data.offset)
                count = min(_ROWS, len(own) - first)
                self._made[begin + first : begin + first + count] = self._frozen(inputs)[:count]
        self._there[client] = 1


def _shared(*shape: int) -> Tensor:
    return torch.frombuffer(mmap(-1, 4 * math.prod(shape)), dtype=torch.float32).view(shape)


def _divided(module: nn.Module) -> tuple[nn.Module | None, nn.Sequential]:
    """The frozen layers that a Sequential begins with, a copy, and the rest of it; None if there are none."""
    # Settled as a whole, because dropout in a frozen part is at rest with that part, and not by itself.
    layers = _layers(settled(copy.deepcopy(module, {id(one): one for one in module.parameters()})))
    count = next((place for place, layer in enumerate(layers) if not _frozen(layer)), 0)
    frozen, rest = nn.Sequential(*copy.deepcopy(layers[:count])), nn.Sequential(*layers[count:])
    return (frozen if any(True for _ in frozen.parameters()) else None), rest


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a Sequential and of those in it, in order; of any other module itself."""
    if type(module) is not nn.Sequential or not known(module):
        return [module]
    # Not children(), which leaves out a layer that comes again.
    return [layer for child in module for layer in _layers(child)]


def _frozen(layer: nn.Module) -> bool:
    """Whether a layer is always the same function of each example."""
    if any(parameter.requires_grad for parameter in layer.parameters()):
        return False
    return all(map(known, layer.modules())) and not has_dropout(layer)
