"""Attention written out as products and a softmax: torch compiles these, and its own attention it only calls.

What is written out is in memory all at once: the weight of every place for every other. Where these are many, torch's
own, which goes through them in blocks, is the faster one.
"""

from math import prod
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from incrowd.learning.compiling.function import Computation

_MOST = 2**19  # weights of one call; more no longer stay in the caches (measured)


class AttentionWeights(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not say its types
    """Counts the weights of torch's own attention, in the call that has most of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.most = 0

    @property
    def few(self) -> bool:
        """Whether it pays to write them out."""
        return 0 < self.most <= _MOST

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in func.name() and "backward" not in func.name():
            queries, keys = args[:2]
            self.most = max(self.most, prod(queries.shape[:-1]) * keys.shape[-2])
        return func(*args, **(kwargs or {}))


def written_out(function: Computation) -> Computation:
    """The same function, with attention written out. What it computes is the same but for rounding."""

    def written(*args: object) -> object:
        with sdpa_kernel(SDPBackend.MATH):
            return function(*args)

    found: Any = written
    same: Computation = found
    return same
