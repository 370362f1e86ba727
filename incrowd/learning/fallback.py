"""The path for any module: one client after the other, with autograd, on one copy of the module."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from incrowd.data.inputs import Inputs
from incrowd.learning.direct import DirectSteps, known
from incrowd.learning.dropout import draws, with_own_dropout
from incrowd.learning.inputs import calling, chosen, meant
from incrowd.learning.local import LocalTraining
from incrowd.learning.models import Model, layers_of_flat
from incrowd.learning.modules import remembering_nothing, trainable, working_copy
from incrowd.learning.pieces import FlatPiece, InputPiece, Piece
from incrowd.learning.store import Feed
from incrowd.learning.turned import Turned

_ROWS = 1000  # examples that are brought together at a time
_NUMBERS = 2**17  # numbers of examples that are made floats at a time, so that they leave the caches to the weights


def starts_linear(module: nn.Module, shape: Sequence[int]) -> bool:
    """Whether a Linear meets the features first: then a client's examples may come without those that are all zero."""
    layers = layers_of_flat(module, shape)
    return layers is not None and len(layers) > 0 and type(layers[0]) is nn.Linear


class Autograd:
    """A copy of a module at work, for one client at a time; making it takes as long as a few batches.

    Guarantee: nothing of one client reaches the next. The copy serves the next client if all its modules are torch's or
    ours, which remember nothing; other modules get a fresh copy for every client.

    Edge cases: a module whose buffers change in training is refused, and so is one that draws from torch's global
    generator; nn.Dropout is made to draw from one of the client's own. What a module remembers outside of itself
    (in a global variable, say) is not noticed.
    """

    def __init__(self, model: Model, local: LocalTraining, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._turned = Turned()
        self.draws = draws(model.module)
        self._masks = torch.Generator(device)
        self._forgets = all(map(known, model.module.modules()))
        self.local = local
        # Convolutions are faster on a CPU when the channels of a pixel lie together; their weights decide about that.
        module = copy.deepcopy(model.module).to(device)
        self._prepared = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in its stubs
        self._work()

    def _work(self) -> None:
        """Start with a copy of the module."""
        self.module = with_own_dropout(working_copy(self._prepared, self._device), self._masks)
        self.parameters: list[Tensor] = [parameter for _, parameter in trainable(self.module)]
        self._whole = self.parameters[0].data  # the first weight when no features are left out
        self._direct = DirectSteps(self.module) if self.local.plain else None

    def train(self, weights: Sequence[Tensor], feed: Feed, *, seed: int = 0) -> list[Piece]:
        """Train the one client of a feed from these weights (those of each parameter); `seed` is for dropout."""
        if not self._forgets:
            self._work()
        columns = feed.columns
        if self.draws:
            self._masks.manual_seed(seed)
        with remembering_nothing(self.module, self._device, whose="client"):
            if columns is None:
                return self._train_whole(weights, feed)
            return self._train_narrow(weights, feed, columns)

    def _train_whole(self, weights: Sequence[Tensor], feed: Feed) -> list[Piece]:
        self.parameters[0].data = self._whole
        self._train(list(weights), feed)
        return [_changed(self.parameters, weights)]

    def _train_narrow(self, weights: Sequence[Tensor], feed: Feed, columns: Tensor) -> list[Piece]:
        """Train without the features left out, on a first weight that is stored by input and stays in place."""
        by_input = self._turned.of(weights[0])
        first = by_input.index_select(0, columns[0])
        value = torch.empty_like(first)
        self.parameters[0].data = value.t()
        self._train([first.t(), *weights[1:]], feed)
        changed = InputPiece(value.sub_(first)[None], None, columns, len(by_input))
        return [changed, _changed(self.parameters[1:], weights[1:])]

    def _train(self, starts: list[Tensor], feed: Feed) -> None:
        """Take the steps."""
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, starts)
        velocity = [torch.zeros_like(p) for p in self.parameters] if self.local.momentum else None
        call = self.module if feed.plain else calling(self.module, feed.table)
        for examples, labels in _batches(feed) if feed.plain else _batches_of_any(feed):
            loss = self.local.loss.value(call(examples), labels)
            if self._direct is None:
                gradients = torch.autograd.grad(loss, self.parameters, materialize_grads=True)
                self._step(list(gradients), starts, velocity)
            else:
                self._direct.step(loss, self.local.learning_rate)

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


def _changed(now: Sequence[Tensor], starts: Sequence[Tensor]) -> FlatPiece:
    """What has changed."""
    row = torch.empty(sum(start.numel() for start in starts), device=now[0].device if now else None)
    places = row.split_with_sizes([start.numel() for start in starts])
    for one, start, place in zip(now, starts, places, strict=True):
        torch.sub(one.detach(), start, out=place.view(start.shape))
    return FlatPiece(row[None])


def _batches(feed: Feed) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of the client, without what only fills them up. The next one may overwrite the examples."""
    width, sizes = feed.batches.width, feed.batches.sizes[0].tolist()
    for begin in range(0, len(sizes), max(1, _ROWS // width)):
        steps = sizes[begin : begin + max(1, _ROWS // width)]
        rows = slice(begin * width, (begin + len(steps)) * width)
        examples = _floats(feed, feed.table.index_select(0, feed.rows[0, rows]))
        labels = torch.split(feed.labels[0, rows], width)
        for some, theirs, size in zip(examples, labels, steps, strict=True):
            yield some[:size], theirs[:size]


def _batches_of_any(feed: Feed) -> Iterator[tuple[Inputs, Tensor]]:
    """The batches of the client: several inputs, or whole numbers."""
    width = feed.batches.width
    for step, size in enumerate(feed.batches.sizes[0].tolist()):
        rows = slice(step * width, step * width + size)
        stored = chosen(feed.table, feed.rows[0, rows])
        yield meant(stored, scale=feed.scale, offset=feed.offset), feed.labels[0, rows]


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
