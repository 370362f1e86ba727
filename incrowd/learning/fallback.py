"""The path for any module: one client after the other, with autograd, on one copy of the module."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from incrowd.errors import ConfigError
from incrowd.learning.direct import DirectSteps
from incrowd.learning.local import LocalTraining
from incrowd.learning.models import Model, layers_of_flat
from incrowd.learning.pieces import FlatPiece, InputPiece, Piece
from incrowd.learning.store import Feed

_ROWS = 1000  # examples that are brought together at a time
_NUMBERS = 2**17  # numbers of examples that are made floats at a time, so that they leave the caches to the weights


def starts_linear(module: nn.Module, shape: Sequence[int]) -> bool:
    """Whether a Linear meets the features first: then a client's examples may come without those that are all zero."""
    layers = layers_of_flat(module, shape)
    return layers is not None and len(layers) > 0 and type(layers[0]) is nn.Linear


class Autograd:
    """A copy of a module at work, for one client at a time; making it takes as long as a few batches.

    Edge cases: a module whose buffers change in training is refused. What it remembers elsewhere is not noticed.
    """

    def __init__(self, model: Model, local: LocalTraining, device: torch.device) -> None:
        # Convolutions are faster on a CPU when the channels of a pixel lie together; their weights decide about that.
        module = copy.deepcopy(model.module).to(device)
        self.module = module.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]  # not in its stubs
        self.local = local
        self.parameters: list[Tensor] = list(self.module.parameters())
        self._whole = self.parameters[0].data  # the first weight when no features are left out
        self._direct = DirectSteps(self.module) if local.plain else None
        self._turned: tuple[Tensor, int, Tensor] | None = None

    def train(self, weights: Sequence[Tensor], feed: Feed) -> list[Piece]:
        """Train the clients of a feed from the same weights (those of each parameter)."""
        several = weights if feed.columns is None else weights[1:]
        rest = torch.empty(len(feed.rows), sum(weight.numel() for weight in several), device=weights[0].device)
        pieces: list[Piece] = [FlatPiece(rest)]
        if feed.columns is not None:
            pieces.insert(0, self._train_narrow(weights, feed, feed.columns, rest))
            return pieces
        self.parameters[0].data = self._whole
        for j, row in enumerate(rest):
            self._train(list(weights), feed, j)
            _subtract(self.parameters, weights, row)
        return pieces

    def _train_narrow(self, weights: Sequence[Tensor], feed: Feed, columns: Tensor, rest: Tensor) -> InputPiece:
        """Train clients whose features are left out, on a first weight that is stored by input and stays in place."""
        by_input = self._by_input(weights[0])
        values = torch.empty(*columns.shape, by_input.shape[1], device=by_input.device)
        for j, (value, row) in enumerate(zip(values, rest, strict=True)):
            first = by_input.index_select(0, columns[j])
            self.parameters[0].data = value.t()
            self._train([first.t(), *weights[1:]], feed, j)
            value.sub_(first)
            _subtract(self.parameters[1:], weights[1:], row)
        return InputPiece(values, None, columns, len(by_input))

    def _by_input(self, first: Tensor) -> Tensor:
        """The first weight, transposed once for all clients that start from it."""
        owner = first if first._base is None else first._base
        if self._turned is None or self._turned[0] is not owner or self._turned[1] != first._version:
            self._turned = owner, first._version, first.t().contiguous()
        return self._turned[2]

    def _train(self, starts: list[Tensor], feed: Feed, j: int) -> None:
        """Take client j's steps."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, starts)
        velocity = [torch.zeros_like(p) for p in self.parameters] if self.local.momentum else None
        buffers = [(name, buffer, buffer._version) for name, buffer in self.module.named_buffers()]
        for examples, labels in _batches(feed, j):
            loss = self.local.loss.value(self.module(examples), labels)
            if self._direct is None:
                gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
                self._step(list(gradients), starts, velocity)
            else:
                self._direct.step(loss, self.local.learning_rate)
        _refuse_changed(buffers, self.module)

    @torch.no_grad()
    def _step(self, gradients: list[Tensor], starts: list[Tensor], velocity: list[Tensor] | None) -> None:
        local = self.local
        if local.weight_decay or local.proximal:
            torch._foreach_add_(gradients, self.parameters, alpha=local.weight_decay + local.proximal)
        if local.proximal:
            torch._foreach_sub_(gradients, starts, alpha=local.proximal)
        if velocity is not None:
            torch._foreach_mul_(velocity, local.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(self.parameters, gradients, alpha=-local.learning_rate)


def _subtract(now: Sequence[Tensor], starts: Sequence[Tensor], row: Tensor) -> None:
    """Put what has changed into a row."""
    places = row.split_with_sizes([start.numel() for start in starts])
    for one, start, place in zip(now, starts, places, strict=True):
        torch.sub(one.detach(), start, out=place.view(start.shape))


def _batches(feed: Feed, j: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one client, without what only fills them up. The next one may overwrite the examples."""
    width, sizes = feed.batches.width, feed.batches.sizes[j].tolist()
    for begin in range(0, len(sizes), max(1, _ROWS // width)):
        steps = sizes[begin : begin + max(1, _ROWS // width)]
        rows = slice(begin * width, (begin + len(steps)) * width)
        examples = _floats(feed, feed.table.index_select(0, feed.rows[j, rows]))
        labels = torch.split(feed.labels[j, rows], width)
        for some, theirs, size in zip(examples, labels, steps, strict=True):
            if size == width:
                yield some, theirs
            elif size:
                yield some[:size], theirs[:size]


def _floats(feed: Feed, stored: Tensor) -> Iterator[Tensor]:
    """Stored examples as they are meant, batch by batch, in memory that is used again and again."""
    width = feed.batches.width
    several = width * max(1, _NUMBERS // (width * stored[0].numel()))
    floats = None
    if stored.dtype != torch.float32:
        floats = torch.empty(min(several, len(stored)), *stored.shape[1:], device=stored.device)
    for part in torch.split(stored, several):
        examples = part if floats is None else floats[: len(part)].copy_(part)
        if feed.offset != 0:
            examples.add_(feed.offset / feed.scale)
        if feed.scale != 1:
            examples.mul_(feed.scale)
        yield from torch.split(examples, width)


def _refuse_changed(buffers: Sequence[tuple[str, Tensor, int]], module: nn.Module) -> None:
    now = dict(module.named_buffers())
    for name, buffer, version in buffers:
        if now.get(name) is not buffer or buffer._version != version:
            remedy = "training changes this buffer, which would carry one client's data to the next; make it a constant"
            raise ConfigError(field="module", value=name, remedy=remedy)
