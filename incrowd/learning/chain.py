"""Rewrite a module as the Sequential of its layers, if its `forward` does nothing else.

Backends without autograd read a table of layers. torch.fx traces a copy of a class with its own `forward`; the layers
must give the module's outputs for synthetic examples, or the module stays as it is.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from incrowd.learning.modules import hooked, in_order, known, own_turn, plain, remembered

_EXAMPLES = 3
_TOLERANCE = 1e-5  # far above the rounding of float32, far below what another layer would change

_FUNCTIONS: dict[object, Callable[[], nn.Module]] = {
    name: layer
    for kind, layer in (("relu", nn.ReLU), ("tanh", nn.Tanh), ("sigmoid", nn.Sigmoid))
    for name in (kind, f"{kind}_", getattr(torch, kind), getattr(functional, kind))
}
_ARRANGE = ("flatten", "view", "reshape", "unsqueeze", torch.flatten, torch.reshape, torch.unsqueeze)
_SIZES = ("size", getattr, operator.getitem)
_POOLS = (torch.max_pool2d, functional.max_pool2d)
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)
_LAYERS = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Flatten, nn.Unflatten)
"""The layers of a table: modules with other parts, which may be large, are not copied and traced."""


def chained(module: nn.Module, shape: Sequence[int]) -> nn.Sequential | None:
    """The module's layers, in the order in which examples of this shape pass through them; None for a module that
    computes anything else.

    Guarantee: they compute the module's outputs, to rounding, as synthetic examples show, and their parameters are the
    module's, in its order. The module is not called.
    """
    if any(map(hooked, module.modules())) or not plain(module):
        return None
    if type(module) is nn.Linear:
        module = nn.Sequential(module)
    if type(module) is nn.Sequential and all(known(layer) and not list(layer.children()) for layer in module):
        return module if in_order(module) else None
    if not all(isinstance(part, _LAYERS) for part in module.modules() if not list(part.children())):
        return None
    try:
        return _followed(module, tuple(shape))
    except _FAILURES:  # torch.fx cannot trace it, or the module raises
        return None


def _followed(module: nn.Module, shape: tuple[int, ...]) -> nn.Sequential | None:
    traced = fx.symbolic_trace(copy.deepcopy(module))
    values = fx.Interpreter(traced, garbage_collect_values=False)
    with torch.no_grad(), own_turn(), torch.random.fork_rng(devices=[]):
        values.run(_made_up(shape))
    layers = _layers(traced.graph, module, {node: one for node, one in values.env.items() if isinstance(one, Tensor)})
    if layers is None:
        return None
    chain = nn.Sequential(*layers)
    if [id(one) for one in chain.parameters()] != [id(one) for one in module.parameters()] or not in_order(chain):
        return None
    return chain if _alike(chain, copy.deepcopy(module), shape) else None


def _made_up(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(_EXAMPLES, *shape, generator=torch.Generator().manual_seed(0))


def _alike(chain: nn.Module, module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether the outputs are equal, and the call leaves the module, a copy, unchanged."""
    examples, before = _made_up(shape), remembered(module)
    with torch.no_grad(), own_turn(), torch.random.fork_rng(devices=[]):
        one, other = chain(examples.clone()), module(examples)
        alone = module(examples[:1])  # sizes that are numbers may be those of these examples alone
    same = one.shape == other.shape and torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)
    same = same and alone.shape == one[:1].shape
    return same and remembered(module) == before


def _layers(graph: fx.Graph, module: nn.Module, values: dict[fx.Node, Tensor]) -> list[nn.Module] | None:
    """The layers of a graph that is one chain, or None for any other; nodes without a value read sizes."""
    layers: list[nn.Module] = []
    last, *others, output = graph.nodes
    for node in others:
        if node.target in _SIZES and node not in values:
            continue
        layer = _layer(node, module, values, first=not layers) if node.args and node.args[0] is last else None
        if layer is None or layer in layers:
            return None
        layers.append(layer)
        last = node
    return layers if output.args == (last,) else None


def _layer(node: fx.Node, module: nn.Module, values: dict[fx.Node, Tensor], *, first: bool) -> nn.Module | None:
    """Return the layer that computes a node, or None."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        return layer if len(node.args) == 1 and not node.kwargs and known(layer) else None
    if node.target in _FUNCTIONS:
        return _FUNCTIONS[node.target]() if len(node.args) == 1 and not set(node.kwargs) - {"inplace"} else None
    if node.target in _POOLS:
        return _pool(node)
    shape, before = (values[one].shape for one in (node, node.all_input_nodes[0]))
    if node.target not in _ARRANGE or shape[0] != _EXAMPLES:
        return None
    if len(shape) == 2:
        return nn.Flatten()
    arranged = shape[1 : len(shape) - len(before) + 2]  # in place of the first size of an input
    same = first and len(arranged) > 1 and shape[len(arranged) + 1 :] == before[2:]
    return nn.Unflatten(1, tuple(arranged)) if same else None


def _pool(node: fx.Node) -> nn.Module | None:
    """Pooling over adjacent squares without padding."""
    given: dict[str, Any] = dict(zip(("kernel_size", "stride"), node.args[1:3], strict=False)) | node.kwargs
    size, stride = given.pop("kernel_size", None), given.pop("stride", None)
    usual = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    others = all(usual.get(name) == value for name, value in given.items()) and len(node.args) <= 3
    return nn.MaxPool2d(size, stride) if isinstance(size, int | tuple) and others else None
