"""The first layer at work: it sees a client's own features, and is most of the work."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from incrowd.learning.deltas import FlatDelta, InputDelta, WeightDelta
from incrowd.learning.paths.fused.changed import LOOPS
from incrowd.learning.paths.fused.linear import LinearLayer
from incrowd.learning.paths.fused.parameter import Parameter
from incrowd.learning.paths.fused.rare import RareFeatures
from incrowd.learning.store import Feed
from incrowd.settings.local import Local

_GATHERED = torch.uint8, torch.float32


class FirstLayer(Protocol):
    """The first layer of one feed. Of its examples only `rows` are at work at a time."""

    layer: LinearLayer
    unit: Tensor | None
    """What a feature that is always 1 has learnt, [1, outputs], once `changes` have been asked for."""

    def examples(self, rows: slice) -> Tensor:
        """Of these rows of the feed, as stored; the next call overwrites them."""
        ...

    def forward(self, rows: slice, x: Tensor, out: Tensor) -> None:
        """The outputs for these examples."""
        ...

    def update(self, rows: slice, x: Tensor, d: Tensor) -> None:
        """One step, given the gradient d of the outputs."""
        ...

    def products(self, rows: slice, x: Tensor, out: Tensor) -> None:
        """Those of each example with those before it, and with itself, [rows, rows], as the outputs of one move with a
        step for another; what is beyond that triangle says nothing.
        """
        ...

    def changes(self) -> WeightDelta:
        """What the weight learnt."""
        ...


def _square(feed: Feed, bias: Tensor | None) -> float:
    """Of the constant feature that the bias, and all that is constant, is the weight of."""
    return float(bias is not None) + feed.square


class NarrowFirstLayer:
    """See `FirstLayer`: of few outputs, stored as torch does.

    Guarantee: features that are constant in all of a client's examples, and so are one with the bias, change nothing
    but rounding.
    """

    def __init__(self, start: Tensor, bias: Tensor | None, feed: Feed, local: Local) -> None:
        self._start, self._feed = start, feed
        self._square = _square(feed, bias)
        if feed.constants is not None:
            outputs = (start @ feed.constants).view(1, -1)
            bias = outputs if bias is None else bias + outputs
        if feed.columns is not None:
            start = start.index_select(1, feed.columns[0])
        weight = self._parameter(start, local)
        of_bias = None if bias is None else self._parameter(bias, local)
        self.layer = LinearLayer(weight, of_bias, by_input=False)
        self.layer.square = self._square
        self._ones = torch.empty(0)
        self.unit: Tensor | None = None

    def _parameter(self, start: Tensor, local: Local) -> Parameter:
        value = torch.empty(start.shape).copy_(start)
        return Parameter(start, value, local, self._feed.batches.width)

    def examples(self, rows: slice) -> Tensor:
        """See `FirstLayer.examples`."""
        return self._feed.stored(0, rows).flatten(1)

    def forward(self, rows: slice, x: Tensor, out: Tensor) -> None:
        """See `FirstLayer.forward`."""
        self.layer.forward(x, out=out, scale=self._feed.scale)

    def update(self, rows: slice, x: Tensor, d: Tensor) -> None:
        """See `FirstLayer.update`."""
        if self._ones.shape[-1] < len(x):
            self._ones = torch.ones(1, len(x))
        self.layer.update(x, d, self._ones[:, : len(x)], self._feed.scale)

    def products(self, rows: slice, x: Tensor, out: Tensor) -> None:
        """See `FirstLayer.products`."""
        torch.addmm(out.fill_(self._square), x, x.mT, alpha=self._feed.scale**2, out=out)

    def changes(self) -> WeightDelta:
        """See `FirstLayer.changes`."""
        weight, feed = self.layer.weight, self._feed
        if feed.constants is not None and self.layer.bias is not None:
            self.unit = self.layer.bias.changes().div_(self._square)
        changes = weight.changes()
        if feed.columns is not None:
            whole = torch.zeros_like(self._start)
            if feed.constants is not None and self.unit is not None:
                torch.outer(self.unit[0], feed.constants, out=whole)
            changes = whole.index_copy_(1, feed.columns[0], changes)
        return FlatDelta(changes.reshape(1, -1), LOOPS)


class WideFirstLayer:
    """See `FirstLayer`: of many outputs, stored by input.

    The weights are one piece: of the feed's `columns`, which matrix products are for, and of all else that is
    `changing`.

    Guarantee: as `NarrowFirstLayer`, and so are features that are nearly constant.
    """

    def __init__(self, start: Tensor, bias: Tensor | None, feed: Feed, local: Local) -> None:
        from incrowd.learning.paths.fused import first_loops as loops  # numba takes a while to start

        self._loops, self._feed, self._start, self._square = loops, feed, start.t(), _square(feed, bias)
        self.unit: Tensor | None = None
        if feed.constants is not None:
            bias = torch.zeros(1, len(start)) if bias is None else bias.clone()
        self._own = self._begun(bias)
        width = feed.batches.width
        columns = len(self._own) if feed.columns is None else feed.columns.shape[1]
        used = self._own[:columns]
        weight = Parameter(used if local.plain else used.clone(), used, local, width)  # plain steps ask for no start
        of_bias = None if bias is None else Parameter(bias, bias.clone(), local, width)
        self.layer = LinearLayer(weight, of_bias, by_input=True)
        self.layer.square = self._square
        self._rare: RareFeatures | None = None
        if feed.rare is not None:
            self._rare = RareFeatures(feed.rare, feed, self._own[columns:], self.layer)
        self._rows, table = feed.rows[0].numpy(), feed.table.flatten(1)
        self._table = table.numpy() if table.dtype in _GATHERED else None
        self._x, self._array = torch.empty(0), np.empty((0, columns), np.float32)
        self._ones = torch.empty(1, 0)

    def _begun(self, bias: Tensor | None) -> Tensor:
        """The weights of what is changing; to the bias comes what is usual."""
        start, changing, constants = self._start, self._feed.changing, self._feed.constants
        if changing is None:
            return start.clone()
        if constants is None or bias is None:
            return start.index_select(0, changing)
        own = torch.empty(len(changing), start.shape[1])
        self._loops.begin(start.numpy(), changing.numpy(), constants.numpy(), own.numpy(), bias[0].numpy())
        return own

    def examples(self, rows: slice) -> Tensor:
        """See `FirstLayer.examples`."""
        if self._table is None:
            return self._feed.stored(0, rows).flatten(1)
        chosen = self._rows[rows]
        if len(chosen) != len(self._array):
            self._x = torch.empty(len(chosen), self._table.shape[1])
            self._array = self._x.numpy()
        self._loops.gather(self._table, chosen, self._array)
        x = self._x
        return x if self._feed.offset == 0 else x.add_(self._feed.offset / self._feed.scale)

    def forward(self, rows: slice, x: Tensor, out: Tensor) -> None:
        """See `FirstLayer.forward`."""
        self.layer.forward(x, out=out, scale=self._feed.scale)
        if self._rare is not None:
            self._rare.forward(rows, out)

    def update(self, rows: slice, x: Tensor, d: Tensor) -> None:
        """See `FirstLayer.update`."""
        if self._rare is not None:
            self.layer.learn(x, d, self._feed.scale)
            self._rare.update(rows, d)
            return
        if self._ones.shape[1] != x.shape[0]:
            self._ones = torch.ones(1, x.shape[0])
        self.layer.update(x, d, self._ones, self._feed.scale)

    def products(self, rows: slice, x: Tensor, out: Tensor) -> None:
        """See `FirstLayer.products`."""
        torch.addmm(out.fill_(self._square), x, x.mT, alpha=self._feed.scale**2, out=out)
        if self._rare is not None:
            self._rare.products(rows, out)

    def changes(self) -> WeightDelta:
        """See `FirstLayer.changes`."""
        own, changing, constants, bias = self._own, self._feed.changing, self._feed.constants, self.layer.bias
        if changing is not None and constants is not None and bias is not None:
            self.unit = bias.changes().div_(self._square) if self._rare is None else self._rare.unit
            # Of `columns` what is usual is 0: what they learnt is all in their weights.
            self._loops.learn_usual(constants.numpy(), changing.numpy(), self.unit[0].numpy(), own.numpy())
        return InputDelta(own[None], self._start, None if changing is None else changing[None], len(self._start), LOOPS)
