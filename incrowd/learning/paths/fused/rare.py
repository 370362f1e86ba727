"""Rare features at work: the first layer's part for what is not as usual."""

import numpy as np
import torch
from torch import Tensor

from incrowd.learning.paths.fused.linear import LinearLayer
from incrowd.learning.rare import Rare
from incrowd.learning.store import Feed


class RareFeatures:
    """What comes of one client's rare features, and the steps of their weights.

    Feature f of example i is usual_f + beyond_if. What is usual acts as the bias does, which it is one with; for the
    rest the weight without what has been learnt of the usual number is kept, u_f = w_f - usual_f b, where b is what a
    feature that is always 1 has learnt (`unit`). So the outputs are those of the other features and the bias, and
    sum_f beyond_if u_f + (sum_f beyond_if usual_f) b.
    """

    def __init__(self, rare: Rare, feed: Feed, weight: Tensor, layer: LinearLayer) -> None:
        from incrowd.learning.paths.fused import first_loops as loops  # numba takes a while to start

        self._loops, self._size = loops, len(rare.features)
        self._pairs = loops.RarePairs(rare.begins, rare.places, rare.values, rare.products)
        self._rows = feed.rows[0].numpy()
        self._change, self._square = layer.weight.alpha, layer.square
        self._weight = weight[: self._size].numpy()
        self._bias = np.zeros(0, np.float32) if layer.bias is None else layer.bias.value[0].numpy()
        self.unit = torch.zeros(1, len(self._bias))
        self._unit = self.unit[0].numpy()

    def forward(self, rows: slice, out: Tensor) -> None:
        """Add to the outputs for these rows of the feed what comes of rare features."""
        self._loops.add_rare(self._pairs, self._rows[rows], self._weight, self._unit, out.numpy())

    def update(self, rows: slice, d: Tensor) -> None:
        """One step, given the gradient of the outputs, of the bias, too."""
        steps = self._change, self._square
        self._loops.learn_rare(self._pairs, self._rows[rows], d.numpy(), *steps, self._weight, self._unit, self._bias)

    def products(self, rows: slice, out: Tensor) -> None:
        """Add to those of the examples with the examples before them what comes of rare features."""
        self._loops.multiply_rare(self._pairs, self._rows[rows], self._size, out.numpy())
