"""Torch's compiler: when it pays, and its private folder; and steps that an accelerator repeats by itself.

The backend of a client decides the last bits of its update: public facts choose it, and no clock.
"""

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from incrowd._private import compiled_code
from incrowd.learning.execution import Execution

_CALL = 3e-6  # seconds that an operation of a plain step saves at least (`incrowd bench --work normed,transformer`)
_NUMBER = 1e-10  # seconds that each number saves that an operation gives and the next one takes
_FIRST, _EACH = 10.0, 0.1  # seconds of a compilation, and more for each operation, before anything is cached
_MARGIN = 3.0  # times that must be won back: other machines are other machines
_LEAST = 1000  # full batches in all: for fewer nothing is even counted
_MOST = 2000  # operations of a step that may be compiled
_LARGE = 5e6  # floating point operations of one of torch's: beyond, convolutions became slower (`--work cnn-gn`)

_TORCH, _TRITON, _HEADERS = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "precompiled_headers"
_LOCAL = {"fx_graph_remote_cache": False}  # no compiled code comes over a network

Computation = TypeVar("Computation", bound=Callable[..., object])


def compiler_there() -> bool:
    """Return whether the machine has the C++ compiler that torch calls."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def pays(execution: Execution, full_batches: NDArray[np.int64], step: Callable[[], object]) -> NDArray[np.bool_]:
    """For which clients, by the full batches that each has, it pays to compile a step.

    Guarantee: for each the answer is as if all clients had as many batches; it counts a step's work and times nothing.
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


def compiled(function: Computation) -> Computation:
    """The same function, compiled at its first call, for the shapes of that call alone: nothing is checked any more."""
    assert isinstance(function, FunctionType)  # noqa: S101 - for the type checker
    keep_private()
    # Torch keeps compiled code with the code of a function, where several would meet.
    own = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, None, function.__closure__)
    options: dict[str, Any] = {"guard_filter_fn": torch.compiler.skip_all_guards_unsafe}
    return cast(Computation, torch.compile(own, fullgraph=True, dynamic=False, options=options, backend=_backend))


def _backend(traced: GraphModule, arguments: list[Tensor]) -> Any:
    """Torch's own compiler."""
    from torch._inductor.compile_fx import compile_fx  # here, because it takes a second

    keep_private()  # the compiler decides now where it loads from
    # One C++ program from the first operation to the last runs and compiles faster than many small ones.
    return compile_fx(traced, arguments, config_patches={"compile_threads": 1, "cpp_wrapper": True, **_LOCAL})


def keep_private() -> Path:
    """Have torch cache compiled code in `incrowd._private.compiled_code`. Its default is in the temporary directory,
    where another user may make it.

    Guarantee: only this user can read or write the folder, or change the path to it.
    """
    from torch._inductor import codecache
    from torch._inductor.utils import clear_caches

    folder, module = compiled_code("torch"), cast(Any, codecache)
    if os.environ.get(_TORCH) != str(folder):
        os.environ[_TORCH] = str(folder)
        clear_caches()  # what is in the folder that it used before
    os.environ[_TRITON] = str(folder / "triton")
    headers = str(folder / _HEADERS)
    if getattr(module, "_HEADER_DIR", None) != headers:  # in the temporary directory whatever the environment says
        module._HEADER_DIR, module._HEADER_LOCK_DIR = headers, headers + "/locks"
        module._precompile_header.cache_clear()
    return folder


_log = logging.getLogger(__name__)
_BEFORE = 2  # times a step is taken before it is noted: libraries ask for memory when they are first used

Take = Callable[[], None]
"""A step in place: the same operations on the same memory each time."""


class Notes:
    """Captures steps as CUDA graphs, which share memory: two steps never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def noted(self, step: Take) -> Take:
        """The step, recorded if the device can; call this before a client's numbers are in its memory."""
        if self._memory is None:
            return step
        try:  # pragma: no cover - on a device that records
            return self._graph(step)
        except RuntimeError as error:  # pragma: no cover - as above
            _log.warning("a step is not repeated by the device itself: %s", type(error).__name__)
            return step

    def _graph(self, step: Take) -> Take:  # pragma: no cover - where there is one
        with torch.cuda.device(self._device):
            aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch does not say its types
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(_BEFORE):
                    step()
            torch.cuda.current_stream().wait_stream(aside)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._memory):
                step()
        replay: Take = graph.replay
        return replay
