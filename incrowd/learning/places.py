"""Slice push-down: a slice of one place of a sequence moves before the layers that need no other place.

A classifier that reads the last place, `encoder(x)[:, -1]`, needs the other places only as keys and values of the
attention. torch computes them all, forward and backward. The slice moves before the layers that treat each place alone,
up to the attention, which then gets one query.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.fx import GraphModule, Node

F = nn.functional

_EACH_NUMBER = {F.relu, torch.relu, F.gelu, torch._C._nn.gelu, F.silu, F.sigmoid, F.tanh, torch.sigmoid, torch.tanh}
_EACH_PAIR = {operator.add, operator.sub, operator.mul, torch.add, torch.sub, torch.mul}
_ALL = slice(None)


def take_places_early(module: GraphModule) -> None:
    """Move slices of one place in a traced module as early as possible.

    Guarantee: the outputs are the same to rounding.

    Edge cases: a module with in-place operations stays as it is, and so does an index other than one whole number.
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
    assigning = name in ("setitem", "delitem") or (name.startswith("i") and hasattr(operator, f"__{name}__"))
    return changing or assigning or node.kwargs.get("inplace") is True or _inplace_argument(node)


def _inplace_argument(node: Node) -> bool:
    """Torch's functions have `inplace` last."""
    return node.target in (F.relu, F.silu, F.dropout) and any(one is True for one in node.args[-1:])
