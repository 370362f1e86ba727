"""The last layer of a stack, in one compiled loop where there is little to do."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.learning.losses import CROSS_ENTROPY, LOGISTIC, POISSON, SQUARED, Canonical
from incrowd.learning.paths.fused.layers import Layer
from incrowd.learning.paths.fused.parameter import Parameter
from incrowd.learning.store import Feed

_LITTLE = 2**18  # examples of a batch times weights; measured: of more, torch's matrix products are faster,
_FEW = 16  # but not of so few outputs, which these are not made for
_KNOWN = CROSS_ENTROPY.canonical, LOGISTIC.canonical, SQUARED.canonical, POISSON.canonical


def little(layer: Layer, rows: int, loss: Canonical) -> bool:
    """Whether calling torch's operations takes longer than their work on batches of so many rows."""
    return (layer.outputs <= _FEW or layer.inputs * layer.outputs * rows <= _LITTLE) and loss in _KNOWN


class LastLayer:
    """The outputs of one client's batches, their gradients, those of what went in, and plain steps."""

    def __init__(
        self, weight: Parameter, bias: Parameter | None, feed: Feed, loss: Canonical, *, offset: Tensor | None = None
    ) -> None:
        from incrowd.learning.paths.fused import loops  # numba takes a while to start

        self._finish, self._finish_block = loops.finish, loops.finish_block
        outputs, steps, width = len(weight.value), feed.batches.steps, feed.batches.width
        self._last = loops.Finish(
            weight=weight.value.numpy(),
            bias=np.zeros(0, np.float32) if bias is None else bias.value[0].numpy(),
            offset=np.zeros(outputs, np.float32) if offset is None else offset.view(-1).numpy(),
            kind=(loops.SOFTMAX, loops.SIGMOID, loops.IDENTITY, loops.EXP)[_KNOWN.index(loss)],
            change=weight.alpha,
            gradients=np.empty((width, outputs), np.float32),
        )
        self._targets = loss.target(feed.labels[0], outputs).view(steps, width, outputs).numpy()
        ones = np.ones((steps, width), np.float32)
        self._shares = ones if feed.weights is None else feed.weights.view(steps, width).numpy()
        self._feed, self._table, self._nobody = feed, feed.table.flatten(1), torch.empty(0, weight.value.shape[1])
        self._no_products = np.empty((0, 0), np.float32)
        self._rows, self._all = feed.rows[0].view(steps, width).numpy(), np.arange(width)

    def step(self, number: int, x: Tensor, below: Tensor) -> None:
        """One step, for the batch of this number; the gradients of x go to `below`."""
        self._step(number, x, self._all, below)

    def alone(self, number: int) -> None:
        """One step of a layer that is the only one, for the batch of this number."""
        if self._feed.table.dtype == torch.float32 and self._feed.offset == 0:
            self._step(number, self._table, self._rows[number], self._nobody)
        else:
            width = len(self._all)
            x = self._feed.stored(0, slice(number * width, (number + 1) * width)).flatten(1)
            self._step(number, x, self._all, self._nobody)

    def _step(self, number: int, x: Tensor, rows: NDArray[np.int64], below: Tensor) -> None:
        self._finish(self._last, x.numpy(), rows, self._targets[number], self._shares[number], below.numpy())

    def block(self, number: int, values: Tensor, products: Tensor, change: float, below: Tensor) -> None:
        """The steps of several batches from this number on, behind a layer with max(x, 0); see `loops.finish_block`."""
        steps = slice(number, number + values.shape[0] // self._shares.shape[1])
        arrays = values.numpy(), products.numpy(), change, self._targets[steps], self._shares[steps]
        self._finish_block(self._last, *arrays, below.numpy())

    def batch(self, number: int, values: NDArray[np.float32], below: NDArray[np.float32]) -> None:
        """The step of one batch behind a layer with max(x, 0)."""
        one = slice(number, number + 1)
        arrays = values, self._no_products, 0.0, self._targets[one], self._shares[one]
        self._finish_block(self._last, *arrays, below)
