"""Torch's compiler: when it pays, its private folder, and attention as products where those are faster.

The backend of a client decides the last bits of its update. Therefore public facts choose it, never another client's
data, and never a clock, which would choose otherwise in the process that resumes a run.
"""

import logging
import operator
import os
import shutil
from collections.abc import Callable
from math import prod
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from incrowd._private import check_ours, compiled_code
from incrowd.errors import ConfigError
from incrowd.learning.execution import Execution

_CALL = 3e-6  # seconds that an operation of a plain step saves at least (`incrowd bench --work normed,transformer`)
_NUMBER = 1e-10  # seconds that each number saves that an operation gives and the next one takes
_FIRST, _EACH = 10.0, 0.1  # seconds of a compilation, and more for each operation, before anything is cached
_MARGIN = 3.0  # times that must be won back: other machines are other machines
_LEAST = 1000  # full batches in all: for fewer nothing is even counted
_MOST = 2000  # operations of a step that may be compiled
_LARGE = 5e6  # floating point operations of one of torch's: beyond, convolutions became slower (`--work cnn-gn`)
_WEIGHTS = 2**19  # of one attention; more no longer stay in the caches (measured)

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
    compiled_: Any = torch.compile(own, fullgraph=True, dynamic=False, options=options, backend=_backend)
    found: Computation = compiled_
    return found


def _backend(traced: GraphModule, arguments: list[Tensor]) -> Any:
    """Torch's own compiler, after places are taken early."""
    from torch._inductor.compile_fx import compile_fx  # here, because it takes a second

    take_places_early(traced)
    keep_private()  # the compiler decides now where it loads from
    # One C++ program from the first operation to the last runs and compiles faster than many small ones.
    return compile_fx(traced, arguments, config_patches={"compile_threads": 1, "cpp_wrapper": True, **_LOCAL})


def keep_private() -> Path:
    """Have torch cache compiled code in a private folder: the one that the environment names, if that is private, or
    `incrowd._private.compiled_code`. Torch's default is in the temporary directory, where another user may make it.

    Guarantee: only this user can read or write the folder, or change the path to it.
    """
    named = os.environ.get(_TORCH)
    folder = Path(named).absolute() if named and _is_private(named) else compiled_code("torch")
    if named != str(folder):
        os.environ[_TORCH] = str(folder)
        _forget()
    os.environ[_TRITON] = str(folder / "triton")
    _place_headers(folder / _HEADERS)
    return folder


def _is_private(folder: str) -> bool:
    try:
        check_ours(folder, secret=True)
    except (ConfigError, OSError):
        return False
    return Path(folder).is_dir()


def _forget() -> None:
    """Have torch forget the files of the folder that it used before."""
    from torch._inductor.utils import clear_caches

    clear_caches()


def _place_headers(folder: Path) -> None:
    """Have torch precompile its headers there; they go to the temporary directory whatever the environment says."""
    from torch._inductor import codecache

    module: Any = codecache
    if getattr(module, "_HEADER_DIR", None) != str(folder):
        module._HEADER_DIR, module._HEADER_LOCK_DIR = str(folder), str(folder / "locks")
        module._precompile_header.cache_clear()


class AttentionWeights(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not say its types
    """Counts the weights of torch's own attention, in the call that has most of them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self.most = 0

    @property
    def few(self) -> bool:
        """True if products are faster: torch compiles products and a softmax, but only calls its attention kernel."""
        return 0 < self.most <= _WEIGHTS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in func.name() and "backward" not in func.name():
            queries, keys = args[:2]
            self.most = max(self.most, prod(queries.shape[:-1]) * keys.shape[-2])
        return func(*args, **(kwargs or {}))


def written_out(function: Computation) -> Computation:
    """The same function to rounding, with attention written out as products and a softmax."""

    def written(*args: object) -> object:
        with sdpa_kernel(SDPBackend.MATH):
            return function(*args)

    found: Any = written
    same: Computation = found
    return same


_log = logging.getLogger(__name__)
_BEFORE = 2  # times a step is taken before it is noted: libraries ask for memory when they are first used

Take = Callable[[], None]
"""A step in place: the same operations on the same memory each time."""


class Notes:
    """Captures steps as CUDA graphs, if the device can, and replays them. All share memory for intermediate results, so
    two steps never run at the same time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def noted(self, step: Take) -> Take:
        """The step, recorded if the device can. Recording takes it a few times: call this before any client's numbers
        are in its memory.
        """
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


F = nn.functional

_EACH_NUMBER = {F.relu, torch.relu, F.gelu, torch._C._nn.gelu, F.silu, F.sigmoid, F.tanh, torch.sigmoid, torch.tanh}
_EACH_PAIR = {operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul}
_ALL = slice(None)


def take_places_early(module: GraphModule) -> None:
    """Move slices of one place in a traced module as early as possible; the outputs are the same to rounding. A module
    with in-place operations stays as it is.
    """
    graph = module.graph
    if any(map(_in_place, graph.nodes)):
        return
    for node in list(graph.nodes):
        if (asked := _place_asked_for(node)) is not None:
            dim, place = asked
            early = _Taking(graph, before=node, place=place)
            taken = early.of(node.args[0], dim)
            early.replace(node, torch.select, (taken, dim, 0))
    module.recompile()


def _place_asked_for(node: Node) -> tuple[int, int] | None:
    """The dimension and the place in it, counted from the beginning, that a node takes of another one."""
    if node.op != "call_function" or node.target is not operator.getitem:
        return None
    whole, asked = node.args
    shape = _shape(whole)
    asked = asked if isinstance(asked, tuple) else (asked,)
    places = [(dim, one) for dim, one in enumerate(asked) if one != _ALL]
    if shape is None or len(asked) > len(shape) or len(places) != 1 or type(places[0][1]) is not int:
        return None  # True is a whole number, too, and asks for another dimension
    dim, place = places[0]
    return None if shape[dim] == 1 else (dim, place % shape[dim])


class _Taking:
    """Takes one place of a dimension in what a node is computed from, which stays as a dimension of length 1."""

    def __init__(self, graph: fx.Graph, *, before: Node, place: int) -> None:
        self._graph, self._before, self._place = graph, before, place
        self._found: dict[tuple[Node, int], Node] = {}
        self._passed: set[Node] = set()

    def of(self, node: Any, dim: int) -> Node:
        """A node at this place alone."""
        if (node, dim) not in self._found:
            shape = _shape(node)
            self._passed.add(node)
            earlier = None if shape is None else self._earlier(node, dim, shape)
            self._found[node, dim] = earlier or self._new(torch.narrow, (node, dim, self._place, 1))
        return self._found[node, dim]

    def replace(self, node: Node, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        """Replace a node, and remove nodes without users."""
        new = self._new(function, arguments)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        self._graph.erase_node(node)
        for one in reversed(list(self._graph.nodes)):
            if one in self._passed and not one.users:
                self._graph.erase_node(one)

    def _earlier(self, node: Node, dim: int, shape: torch.Size) -> Node | None:
        """The same node of what it is computed from at this place; None where that is not known."""
        if not node.args:
            return None  # by name
        target, (given, *others) = node.target, node.args
        within = len(shape) - dim  # the dimension, counted from the last
        alone = (
            target in _EACH_NUMBER
            or (target is F.dropout and not _draws(node))
            or (target is torch._C._nn.linear and within > 1)
            or (target is F.layer_norm and others and isinstance(others[0], tuple) and within > len(others[0]))
        )
        if alone:
            return self._again(node, dim, (given, *others))
        if target in _EACH_PAIR and all(_shape(one) == shape for one in node.args):
            return self._new(target, tuple(self.of(one, dim) for one in node.args), node)
        if node.op == "call_method" and target == "transpose":
            swapped = [int(str(one)) % len(shape) for one in others]
            return self._again(node, swapped[1 - swapped.index(dim)] if dim in swapped else dim, node.args)
        if target is operator.getitem and others == [0] and dim == 0:
            return self._attention(given)
        return None

    def _attention(self, node: Any) -> Node | None:
        """Torch's attention over places in its first dimension, asked from one of them; the other one of its results,
        the mean weights, is not there.
        """
        if node.target is not F.multi_head_attention_forward or _shape(node.args[0]) is None:
            return None
        settings, mask = dict(node.kwargs), node.kwargs.get("attn_mask")
        if settings.get("need_weights", True) or (settings.get("training", True) and node.args[10] != 0):
            return None
        if mask is not None:
            if len(_shape(mask) or ()) != 2:
                return None
            settings |= {"attn_mask": self._new(torch.narrow, (mask, 0, self._place, 1)), "is_causal": False}
        self._passed.add(node)
        asked = self._new(node.target, (self.of(node.args[0], 0), *node.args[1:]), settings=settings)
        return self._new(operator.getitem, (asked, 0))

    def _again(self, node: Node, dim: int, arguments: tuple[Any, ...]) -> Node:
        """The same of the first argument at this place."""
        return self._new(node.target, (self.of(arguments[0], dim), *arguments[1:]), node)

    def _new(
        self, target: Any, arguments: tuple[Any, ...], like: Node | None = None, settings: dict[str, Any] | None = None
    ) -> Node:
        """A node of these arguments, otherwise like another one."""
        operation, kept = ("call_function", {}) if like is None else (like.op, dict(like.kwargs))
        with self._graph.inserting_before(self._before):
            return self._graph.create_node(operation, target, arguments, kept if settings is None else settings)


def _shape(node: object) -> torch.Size | None:
    """The shape of what a node computes, if torch has written it down and it is a tensor."""
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value.shape if isinstance(value, torch.Tensor) else None


def _draws(dropout: Node) -> bool:
    return not (len(dropout.args) > 1 and dropout.args[1] == 0.0)


def _in_place(node: Node) -> bool:
    """Return whether a node changes another one's result. Parameters that a step moves at its end do not count."""
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    if name.startswith("_foreach_"):
        changed: Any = node.args[0] if node.args else [None]
        return not all(isinstance(one, Node) and one.op == "placeholder" for one in changed)
    changing = (name.endswith("_") and not name.endswith("__")) or node.kwargs.get("out") is not None
    schema = getattr(getattr(node.target, "default", node.target), "_schema", None)
    if schema is not None and schema.is_mutable:
        return True  # a custom operator declares it
    bare = name.strip("_")
    assigning = bare in ("setitem", "delitem") or (bare.startswith("i") and hasattr(operator, f"__{bare}__"))
    return changing or assigning or node.kwargs.get("inplace") is True or _inplace_argument(node)


def _inplace_argument(node: Node) -> bool:
    """Torch's functions have `inplace` last."""
    return node.target in (F.relu, F.silu, F.dropout) and any(one is True for one in node.args[-1:])
