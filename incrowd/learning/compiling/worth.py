"""Whether compiling pays: by facts that are the same for everybody and at any time, never by a clock.

How a client is trained decides about the last bits of what it learns. A clock would decide otherwise when a run is
taken up again, or in another process; and what others hold must not decide at all.
"""

import os
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from incrowd.learning.execution import Execution

_CALL = 3e-6  # seconds that an operation of a plain step saves at least (`incrowd bench --work normed,transformer`)
_NUMBER = 1e-10  # seconds that each number saves that an operation gives and the next one takes
_FIRST, _EACH = 10.0, 0.1  # seconds that a compilation takes, and more for each operation, before anything is cached
_MARGIN = 3.0  # so many times that must be won back: other machines are other machines
_LEAST = 1000  # full batches in all: for fewer nothing is even counted
_MOST = 2000  # operations of a step that may be compiled
_LARGE = 5e6  # floating point operations of one of torch's: beyond, convolutions became slower (`--work cnn-gn`)


def compiler_there() -> bool:
    """Whether there is the C++ compiler that torch would call."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def pays(execution: Execution, full_batches: NDArray[np.int64], step: Callable[[], object]) -> NDArray[np.bool_]:
    """For which clients, by the full batches that each has, it pays to have a step compiled.

    Guarantee: for each the answer is as if all clients had as many batches; what a step does is counted and not timed.
    """
    some: NDArray[np.bool_] = full_batches > 0
    if execution.compile == "always" or not some.any():
        return some
    some = execution.contributions * full_batches >= _LEAST
    if execution.compile == "never" or not some.any():
        return np.zeros_like(some)
    with _Calls() as calls, FlopCounterMode(display=False) as work:
        step()
    if calls.count > _MOST or work.get_total_flops() > _LARGE * calls.count:
        return np.zeros_like(some)
    won = execution.contributions * full_batches * (_CALL * calls.count + _NUMBER * calls.numbers)
    enough: NDArray[np.bool_] = won >= _MARGIN * (_FIRST + _EACH * calls.count)
    return enough & some


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not say its types
    """Counts torch's operations, and the numbers that they give."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.count = self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.count += 1
        self.numbers += sum(one.numel() for one in tree_leaves(found) if isinstance(one, Tensor))
        return found
