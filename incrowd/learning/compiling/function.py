"""A function compiled by torch for the shapes of one call, and nothing checked later."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.fx import GraphModule

from incrowd.learning.compiling.places import take_places_early
from incrowd.learning.compiling.private import LOCAL, keep_private

Computation = TypeVar("Computation", bound=Callable[..., object])


def compiled(function: Computation) -> Computation:
    """The same, compiled at its first call, for the shapes of that call alone.

    Edge cases: what a call of other shapes does is not said, because nothing is checked any more.
    """
    assert isinstance(function, FunctionType)  # noqa: S101 - for the type checker
    keep_private()
    # What torch compiles it keeps with the code of a function, where several would meet.
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__)
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    compiled_: Any = torch.compile(own, fullgraph=True, dynamic=False, options=options, backend=_backend)
    found: Computation = compiled_
    return found


def _backend(traced: GraphModule, arguments: list[Tensor]) -> Any:
    """Torch's own compiler, after places are taken early."""
    from torch._inductor.compile_fx import compile_fx  # here, because it takes a second

    take_places_early(traced)
    keep_private()  # what is loaded is decided now
    # One C++ program calls everything, from the first operation to the last: it runs faster than one in Python that
    # calls many small ones in C++, and compiles faster.
    return compile_fx(traced, arguments, config_patches={"compile_threads": 1, "cpp_wrapper": True, **LOCAL})
