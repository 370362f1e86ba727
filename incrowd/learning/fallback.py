"""The path for any module: one client after the other, with autograd, on one copy of the module."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from incrowd.errors import ConfigError
from incrowd.learning.local import LocalTraining
from incrowd.learning.models import Model, layers_of_flat
from incrowd.learning.pieces import FlatPiece, InputPiece, Piece
from incrowd.learning.store import Feed

_ROWS = 1000  # examples that are made floats at a time


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
        self.model = model
        self.local = local
        self.parameters: list[Tensor] = list(self.module.parameters())
        self.starts = [torch.empty_like(parameter) for parameter in self.parameters]

    def train(self, weights: Sequence[Tensor], feed: Feed) -> list[Piece]:
        """Train the clients of a feed from the same weights (those of each parameter)."""
        clients, columns = len(feed.rows), feed.columns
        sizes = list(self.model.layout.sizes)[int(columns is not None) :]
        rest = torch.empty(clients, sum(sizes), device=weights[0].device)
        pieces: list[Piece] = [FlatPiece(rest)]
        places = [row.split_with_sizes(sizes) for row in rest]
        if columns is not None:
            outputs, inputs = weights[0].shape
            first = torch.empty(*columns.shape, outputs, device=weights[0].device)
            pieces.insert(0, InputPiece(first, None, columns, inputs))
            places = [(by_input.t(), *others) for by_input, others in zip(first, places, strict=True)]
        for j in range(clients):
            self._begin(weights, None if columns is None else columns[j])
            self._train(feed, j)
            for place, now, start in zip(places[j], self.parameters, self.starts, strict=True):
                torch.sub(now.detach(), start, out=place.view(start.shape))
        return pieces

    def _begin(self, weights: Sequence[Tensor], columns: Tensor | None) -> None:
        """Put the weights into the module; of the first one only these columns, of features that are not left out."""
        first = weights[0] if columns is None else weights[0].index_select(1, columns)
        if self.starts[0].shape != first.shape:
            self.starts[0] = torch.empty_like(first)
            self.parameters[0].data = torch.empty_like(first)
        with torch.no_grad():
            torch._foreach_copy_(self.starts, [first, *weights[1:]])
            torch._foreach_copy_(self.parameters, self.starts)

    def _train(self, feed: Feed, j: int) -> None:
        """Take client j's steps."""
        velocity = [torch.zeros_like(p) for p in self.parameters] if self.local.momentum else None
        buffers = [(name, buffer, buffer._version) for name, buffer in self.module.named_buffers()]
        for examples, labels in _batches(feed, j):
            loss = self.local.loss.value(self.module(examples), labels)
            gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
            with torch.no_grad():
                self._step(list(gradients), velocity)
        _refuse_changed(buffers, self.module)

    def _step(self, gradients: list[Tensor], velocity: list[Tensor] | None) -> None:
        local = self.local
        if not local.plain:
            torch._foreach_add_(gradients, self.parameters, alpha=local.weight_decay + local.proximal)
            torch._foreach_sub_(gradients, self.starts, alpha=local.proximal)
        if velocity is not None:
            torch._foreach_mul_(velocity, local.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(self.parameters, gradients, alpha=-local.learning_rate)


def _batches(feed: Feed, j: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of one client, without what only fills them up."""
    width, sizes = feed.batches.width, feed.batches.sizes[j]
    several = max(1, _ROWS // width)
    for first in range(0, len(sizes), several):
        begin = first * width
        span = slice(begin, begin + several * width)
        examples = feed.examples(j, span)
        labels = feed.labels[j, span]
        for place, size in zip(range(0, len(labels), width), sizes[first : first + several].tolist(), strict=True):
            if size:
                yield examples[place : place + size], labels[place : place + size]


def _refuse_changed(buffers: Sequence[tuple[str, Tensor, int]], module: nn.Module) -> None:
    now = dict(module.named_buffers())
    for name, buffer, version in buffers:
        if now.get(name) is not buffer or buffer._version != version:
            remedy = "training changes this buffer, which would carry one client's data to the next; make it a constant"
            raise ConfigError(field="module", value=name, remedy=remedy)
