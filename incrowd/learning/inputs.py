"""Inputs as tensors: decoded, synthetic, and passed to a module (see `incrowd.data.examples`)."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from incrowd.data.examples import Inputs, each, is_single, named
from incrowd.errors import DataError

_NUMBERS = (torch.uint8, torch.float32)
_TYPES = (*_NUMBERS, torch.int64, torch.bool)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def are_numbers(inputs: Inputs) -> bool:
    """Return whether there is one input, of numbers, as the fast backends need."""
    return is_single(inputs) and inputs.dtype in _NUMBERS


def check_inputs(inputs: Inputs) -> None:
    """Refuse what is not stored as `incrowd.data.Examples` has it."""
    for name, one in named(inputs).items():
        if one.dtype not in _TYPES or not one.is_contiguous():
            raise DataError(
                f"{name} are {one.dtype}: give contiguous uint8 or float32 (or int64 for whole numbers that stay such, "
                "bool for masks)"
            )
        if one.ndim < 1 + is_single(inputs):
            raise DataError(f"{name} have the shape {tuple(one.shape)}: give [examples, ...]")


def chosen(inputs: Inputs, rows: Tensor) -> Inputs:
    """Some rows of each input, copies."""
    return each(lambda one: one.index_select(0, rows), inputs)


def meant(inputs: Inputs, *, scale: float, offset: float) -> Inputs:
    """Stored inputs as they are meant: numbers as float32, scaled as `incrowd.data.Examples` says; others as they are.

    Edge cases: inputs that are not changed are not copied.
    """
    kinds = _NUMBERS if is_single(inputs) else (torch.uint8,)

    def one_of(stored: Tensor) -> Tensor:
        numbers = stored.float() if stored.dtype == torch.uint8 else stored
        return numbers * scale + offset if stored.dtype in kinds and (scale, offset) != (1, 0) else numbers

    return each(one_of, inputs)


def zeros(inputs: Inputs, count: int) -> Inputs:
    """So many examples of zeros, stored as these are: it reads only their shapes and types."""
    return each(lambda one: one.new_zeros(count, *one.shape[1:]), inputs)


def noise(inputs: Inputs, count: int, *, generator: torch.Generator) -> Inputs:
    """So many synthetic examples, stored as these are: noise, whole numbers as zeros and ones, and nothing masked."""

    def made(stored: Tensor) -> Tensor:
        empty = torch.zeros((count, *stored.shape[1:]), dtype=stored.dtype)
        if stored.dtype == torch.float32:
            return empty.normal_(generator=generator)
        if stored.dtype == torch.bool:
            return empty
        return empty.random_(0, 256 if stored.dtype == torch.uint8 else 2, generator=generator)

    return each(made, inputs)


def shown(inputs: Inputs) -> str:
    """The public form of inputs, for an error."""
    if is_single(inputs):
        return str(tuple(inputs.shape[1:]))
    return ", ".join(f"{name} {tuple(one.shape[1:])}" for name, one in named(inputs).items())


def calling(module: nn.Module, inputs: Inputs) -> Callable[[Inputs], Any]:
    """Return a function that calls a module with such inputs: a tuple in order; a dict by name, or whole.

    Edge cases: a dict for a `forward` of several parameters that have other names is a `DataError`.
    """
    if isinstance(inputs, tuple):
        return lambda several: module(*several)
    if isinstance(inputs, dict) and not _takes_whole(module, inputs):
        return lambda several: module(**several)
    return module


class WithInputs(nn.Module):
    """A module that takes one argument, inputs as they are stored, and calls another with them."""

    def __init__(self, module: nn.Module, features: Inputs) -> None:
        super().__init__()
        self.module = module
        self._calls = (calling(module, features),)  # not as a part of its own: it may be the module

    def forward(self, inputs: Inputs) -> Any:
        """The outputs."""
        return self._calls[0](inputs)


def _takes_whole(module: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Return whether a dict is the module's one argument, and not a name for each of several."""
    parameters = inspect.signature(module.forward).parameters
    names = {name for name, one in parameters.items() if one.kind in _BY_NAME}
    if inputs.keys() <= names or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()):
        return False
    if len([one for one in parameters.values() if one.default is inspect.Parameter.empty]) <= 1:
        return True
    given, wanted = ", ".join(inputs), ", ".join(parameters)
    raise DataError(f"the inputs are {given}, and forward takes {wanted}: name them alike")
