"""Rewrite a module as the Sequential of its layers, if its `forward` does nothing else.

Backends without autograd read a table of layers. torch.fx traces a copy of a class with its own `forward`; the layers
must give the module's outputs for synthetic examples, or the module stays as it is.
"""

import copy
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from incrowd.learning.modules import hooked, in_order, known, own_turn, plain, remembered

_EXAMPLES = 3
_TOLERANCE = 1e-5  # far above the rounding of float32, far below what another layer would change

_FUNCTIONS: dict[object, Callable[[], nn.Module]] = {
    torch.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    functional.relu: nn.ReLU,
    functional.tanh: nn.Tanh,
    functional.sigmoid: nn.Sigmoid,
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}
_LAYERS = (
    *(nn.Linear, nn.Conv2d, nn.MaxPool2d),
    *(nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Flatten, nn.Unflatten),
)
"""The layers of a table: modules with other parts, which may be large, are not copied and traced."""
_POOLS = (torch.max_pool2d, functional.max_pool2d)
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError)


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
    followed = copy.deepcopy(module)
    layers = _layers(fx.symbolic_trace(followed).graph, module, shape)
    if layers is None:
        return None
    chain = nn.Sequential(*layers)
    if [id(one) for one in chain.parameters()] != [id(one) for one in module.parameters()] or not in_order(chain):
        return None
    return chain if _alike(chain, copy.deepcopy(module), shape) else None


def _alike(chain: nn.Module, module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Return whether the outputs are equal, and the call leaves the module, a copy, unchanged."""
    made_up, before = torch.randn(_EXAMPLES, *shape, generator=torch.Generator().manual_seed(0)), remembered(module)
    with torch.no_grad(), own_turn(), torch.random.fork_rng(devices=[]):
        one, other = chain(made_up.clone()), module(made_up)
    same = one.shape == other.shape and torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE)
    return same and remembered(module) == before


def _layers(graph: fx.Graph, module: nn.Module, shape: tuple[int, ...]) -> list[nn.Module] | None:
    """The layers of a graph that is one chain, or None for any other."""
    sizes: set[fx.Node] = set()
    layers: list[nn.Module] = []
    last, *others, output = graph.nodes
    for node in others:
        if _is_size(node, last, sizes):
            sizes.add(node)
            continue
        layer = _layer(node, module, sizes, shape, layers) if node.args and node.args[0] is last else None
        if layer is None:
            return None
        layers.append(layer)
        last = node
    return layers if output.args == (last,) else None


def _is_size(node: fx.Node, last: fx.Node, sizes: set[fx.Node]) -> bool:
    """Return whether the node reads the number of examples."""
    if node.op == "call_method":
        return node.target == "size" and node.args == (last, 0)
    if node.op != "call_function" or node.target not in (getattr, operator.getitem):
        return False
    of, what = node.args
    if node.target is getattr:
        return what == "shape" and of is last
    return bool(what == 0 and of in sizes)


def _layer(
    node: fx.Node, module: nn.Module, sizes: set[fx.Node], shape: tuple[int, ...], before: list[nn.Module]
) -> nn.Module | None:
    """Return the layer that computes a node, or None."""
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        alone = len(node.args) == 1 and not node.kwargs and layer not in before
        return layer if alone and known(layer) else None
    simple = _FUNCTIONS.get(node.target)
    if simple is not None:
        return simple() if len(node.args) == 1 and not set(node.kwargs) - {"inplace"} else None
    if node.target in _POOLS:
        return _pool(node)
    arguments = node.args[1:]
    if node.target in ("flatten", torch.flatten):
        return nn.Flatten() if arguments == (1,) or (not arguments and node.kwargs == {"start_dim": 1}) else None
    if node.target in ("unsqueeze", torch.unsqueeze) and arguments == (1,) and not before:
        return nn.Unflatten(1, (1, shape[0]))
    if node.target in ("view", "reshape", torch.reshape):
        return _arranged(arguments, sizes, shape, first=not before)
    return None


def _pool(node: fx.Node) -> nn.Module | None:
    """Pooling over adjacent squares without padding."""
    given: dict[str, Any] = dict(zip(("kernel_size", "stride"), node.args[1:3], strict=False)) | node.kwargs
    size = given.pop("kernel_size", None)
    stride = given.pop("stride", None)
    usual = {"padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
    others = all(usual.get(name) == value for name, value in given.items()) and len(node.args) <= 3
    return nn.MaxPool2d(size, stride) if isinstance(size, int | tuple) and others else None


def _arranged(
    arguments: tuple[object, ...], sizes: set[fx.Node], shape: tuple[int, ...], *, first: bool
) -> nn.Module | None:
    """A view or reshape that keeps examples apart: flat, or, for the inputs, as pictures."""
    if len(arguments) == 1 and isinstance(arguments[0], tuple):
        arguments = arguments[0]
    examples, *rest = arguments or (None,)
    numbers = [one for one in rest if isinstance(one, int)]
    if not (examples == -1 or examples in sizes) or len(numbers) != len(rest):
        return None
    if len(numbers) == 1:
        return nn.Flatten()
    arranged = numbers[: len(numbers) - len(shape) + 1]
    same = tuple(numbers[len(arranged) :]) == shape[1:]
    return nn.Unflatten(1, tuple(arranged)) if first and same and len(arranged) > 1 else None
