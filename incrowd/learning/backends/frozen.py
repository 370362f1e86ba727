"""The backend for models that begin with frozen layers: it caches their outputs, which never change.

Another backend trains the layers after them on these outputs: a Linear head on a frozen network then trains as fast as
any Linear model.
"""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from mmap import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from incrowd.data.examples import Inputs, is_single, single
from incrowd.learning.backends.backend import Backend, Choice, ClientRound, MakeBackend, Task
from incrowd.learning.contributions import Contributions
from incrowd.learning.execution import ieee
from incrowd.learning.inputs import ClientTensors, chosen, meant, zeros
from incrowd.learning.models import Model
from incrowd.learning.modules import has_dropout, known, remembering_nothing, settled

_ROWS = 32  # examples that go through the frozen layers together, always so many
_MEMORY = 2**30  # bytes of frozen outputs that are kept at most, of all clients
_OF_ONE = 2**28  # most bytes of one client's frozen outputs; others go to another backend
_NOBODY = 0  # a row of NaN in the table, for clients that do not train now


def before(others: Sequence[MakeBackend]) -> MakeBackend:
    """Make the backend, which leaves the trained layers to `others`: each client to the first that takes it."""
    return partial(_make, others=tuple(others))


def _make(task: Task, others: Sequence[MakeBackend]) -> "Frozen | None":
    """The backend, if the model is a Sequential that begins with frozen layers.

    Guarantee: it reads only the examples' shapes, types, and each client's own number of them.
    """
    if not is_single(task.data.features) or len(task.data.indices) == 0:
        return None
    frozen, rest = divided(task.model.module)
    if frozen is None:
        return None
    frozen.to(task.device)
    shape = made_of_one(frozen, task.data.features, scale=task.data.scale, offset=task.data.offset)
    return None if shape is None else Frozen(task, frozen, rest, shape, others)


class Frozen(Backend):
    """Computes a client's frozen outputs when it first trains, and has another backend train the other layers.

    Guarantee: the frozen outputs of a client's example, and their bits, follow from the layers and the client's own
    examples, in blocks of one size, cached or not. Outputs that were not computed yet are NaN, so that training on them
    cannot go unnoticed.
    """

    def __init__(
        self,
        task: Task,
        frozen: nn.Module,
        rest: nn.Sequential,
        shape: tuple[int, ...],
        others: Sequence[MakeBackend],
    ) -> None:
        self._task, self._frozen = task, frozen
        counts, each = np.diff(task.data.offsets), 4 * math.prod(shape)
        self.takes = counts * each <= _OF_ONE
        widest = int(counts[self.takes].max(initial=0))
        self._cache = _Cache(counts, shape, most=_MEMORY // each, device=task.device)
        rows = max(widest, min(int(counts.sum()), _OF_ONE // each))
        self._table = _table_of(task.data, rows, shape)
        self._choice = Choice(others, replace(task, model=Model(rest), data=self._table))
        self.at_once, self.shares = self._choice.at_once, self._choice.shares

    def kind(self, client: int) -> int:
        """See `Backend.kind`."""
        return self._choice.kind(client)

    def effort(self, client: int) -> int:
        """See `Backend.effort`."""
        return self._choice.of(client).effort(client)

    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `Backend.train`."""
        path, found = self._choice.of(clients[0].client), list[Contributions]()
        groups = list(self._groups(clients, path.at_once))
        for group in groups:
            with self._in_table([one.client for one in group]):
                chunks = path.train(weights, group)
            if len(groups) > 1:  # the next group may overwrite them
                chunks = [one.moved() for one in chunks]
            found += chunks
        return found

    def _groups(self, clients: Sequence[ClientRound], at_once: int) -> Iterator[list[ClientRound]]:
        """Clients who fit into the table together."""
        group, rows = list[ClientRound](), 1
        for one in clients:
            count = len(self._task.data.examples(one.client))
            if group and (len(group) == at_once or rows + count > len(self._table.labels)):
                yield group
                group, rows = [], 1
            group, rows = [*group, one], rows + count
        yield group

    @contextmanager
    def _in_table(self, clients: Sequence[int]) -> Iterator[None]:
        """Hold clients' frozen outputs and labels in rows of the table that no other client has, while they train."""
        data, table, begin = self._task.data, self._table, 1
        own = [slice(*data.offsets[client : client + 2]) for client in clients]
        for client, place in zip(clients, own, strict=True):
            rows = torch.from_numpy(data.examples(client).astype(np.int64)).to(table.device)
            end = begin + len(rows)
            self._write(client, rows, single(table.features)[begin:end])
            table.labels[begin:end] = data.labels.index_select(0, rows)
            table.indices[place] = np.arange(begin, end)
            begin = end
        try:
            yield
        finally:
            for place in own:
                table.indices[place] = _NOBODY

    def _write(self, client: int, rows: Tensor, out: Tensor) -> None:
        """Write a client's frozen outputs, from the cache or computed now."""
        kept = self._cache.of(client)
        if kept is None:
            self._compute(rows, out)
            return
        if not self._cache.there[client]:
            self._compute(rows, kept)
            self._cache.there[client] = 1
        out.copy_(kept)

    @torch.no_grad()
    def _compute(self, rows: Tensor, out: Tensor) -> None:
        """Put these rows through the frozen layers."""
        data, places = self._task.data, torch.arange(_ROWS, device=out.device)
        with remembering_nothing(self._frozen, self._task.device, whose="client"):
            for first in range(0, len(rows), _ROWS):
                some = rows[(first + places).clamp_(max=len(rows) - 1)]
                inputs = meant(chosen(data.features, some), scale=data.scale, offset=data.offset)
                part = out[first : first + _ROWS]
                part.copy_(self._frozen(inputs)[: len(part)])


class _Cache:
    """Cached frozen outputs of the first clients, as many as there is memory for; forked processes share them."""

    def __init__(self, counts: NDArray[np.int64], shape: tuple[int, ...], *, most: int, device: torch.device) -> None:
        self._ends = np.cumsum(counts)
        self._most, self._begins = most, self._ends - counts
        self.made = _kept((int(self._ends[self._ends <= most].max(initial=0)), *shape), device)
        self.there = _shared(len(counts)).zero_()

    def of(self, client: int) -> Tensor | None:
        """The memory of a client's cached outputs; None if nothing is."""
        begin, end = int(self._begins[client]), int(self._ends[client])
        return self.made[begin:end] if end <= self._most else None


def _table_of(data: ClientTensors, rows: int, shape: tuple[int, ...]) -> ClientTensors:
    """Memory for the frozen outputs and labels of some clients at a time, after one row for all other clients."""
    return ClientTensors(
        features=torch.full((1 + rows, *shape), torch.nan, device=data.device),
        labels=data.labels.new_zeros(1 + rows, *data.labels.shape[1:]),
        offsets=data.offsets,
        indices=np.full(len(data.indices), _NOBODY),
        declared=data.declared,
    )


def _kept(shape: Sequence[int], device: torch.device) -> Tensor:
    if device.type == "cpu":
        return _shared(*shape).fill_(torch.nan)
    return torch.full(tuple(shape), torch.nan, device=device)  # pragma: no cover - where there is one


def _shared(*shape: int) -> Tensor:
    if not math.prod(shape):  # there is no such memory
        return torch.empty(shape)
    return torch.frombuffer(mmap(-1, 4 * math.prod(shape)), dtype=torch.float32).view(shape)


_SEVERAL = 3
_TOLERANCE = 1e-3  # far above the rounding of float32, far below what another example would change


def divided(module: nn.Module) -> tuple[nn.Module | None, nn.Sequential]:
    """The frozen layers that a Sequential begins with, a copy, and the rest of it; None if there are none."""
    # Settled as a whole: dropout rests with the frozen part that it is in.
    layers = _layers(settled(copy.deepcopy(module, {id(one): one for one in module.parameters()})))
    count = next((place for place, layer in enumerate(layers) if not _frozen(layer)), 0)
    frozen, rest = nn.Sequential(*copy.deepcopy(layers[:count])), nn.Sequential(*layers[count:])
    return (frozen if any(True for _ in frozen.parameters()) else None), rest


def made_of_one(frozen: nn.Module, features: Inputs, *, scale: float, offset: float) -> tuple[int, ...] | None:
    """The shape of the layers' output for one example; None if they give no row of numbers for each example alone."""
    generator = torch.Generator().manual_seed(0)
    several = single(zeros(features, _SEVERAL))
    drawn = torch.randint(0, 2, several.shape, generator=generator).to(several)
    made_up = single(meant(drawn, scale=scale, offset=offset))
    try:
        with torch.no_grad(), ieee(several.device.type), torch.random.fork_rng(devices=[]):
            made, alone = frozen(made_up), frozen(made_up[:1].clone())
    except (RuntimeError, IndexError):  # the layers are for other numbers; zeros have been tried before
        return None
    if not isinstance(made, Tensor) or made.dtype != torch.float32 or made.ndim < 2 or len(made) != _SEVERAL:
        return None
    apart = torch.allclose(made[:1], alone, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)
    return tuple(made.shape[1:]) if apart else None


def _layers(module: nn.Module) -> list[nn.Module]:
    """The layers of a Sequential, nested ones included, in order. Any other module is one layer."""
    if type(module) is not nn.Sequential or not known(module) or list(module.parameters(recurse=False)):
        return [module]
    # Not children(), which leaves out a layer that comes again.
    return [layer for child in module for layer in _layers(child)]


def _frozen(layer: nn.Module) -> bool:
    """Return whether a layer is always the same function of each example."""
    if any(parameter.requires_grad for parameter in layer.parameters()):
        return False
    return all(map(known, layer.modules())) and not has_dropout(layer)
