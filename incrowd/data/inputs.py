"""Inputs of a model: one array, several with names, or several in order; NumPy's arrays and torch's tensors alike.

| inputs   | what a module gets                                                               |
| -------- | -------------------------------------------------------------------------------- |
| an array | ``module(array)``                                                                |
| a dict   | ``module(**arrays)`` if its `forward` has these names, otherwise ``module(dict)`` |
| a tuple  | ``module(*arrays)``                                                              |
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incrowd.errors import DataError

if TYPE_CHECKING:
    import torch


Inputs = Any  # one array or tensor, or a dict or a tuple of such: without generics, so that code for one stays plain


def is_single(inputs: Inputs) -> bool:
    """Whether there is one input."""
    return not isinstance(inputs, dict | tuple)


def named(inputs: Inputs) -> dict[str, Any]:
    """Every input under the name that an error gives it."""
    if isinstance(inputs, dict):
        return {f"features[{name!r}]": one for name, one in inputs.items()}
    if isinstance(inputs, tuple):
        return {f"features[{place}]": one for place, one in enumerate(inputs)}
    return {"features": inputs}


def each(act: Callable[[Any], Any], inputs: Inputs) -> Inputs:
    """The same inputs with something done to each."""
    if isinstance(inputs, dict):
        return {name: act(one) for name, one in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(act(one) for one in inputs)
    return act(inputs)


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Arrays of inputs that look alike, one after the other."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(place) for place in zip(*parts, strict=True))
    return np.concatenate(parts)


def first(inputs: Inputs) -> Any:
    """The first input, or the only one: it says how many examples there are, and on which device."""
    return next(iter(named(inputs).values()))


def single(inputs: Inputs) -> Any:
    """The only input. Edge cases: several are a `DataError`."""
    if not is_single(inputs):
        raise DataError(f"there are several inputs ({', '.join(named(inputs))}): this needs one array, [examples, ...]")
    return inputs


def form(inputs: Inputs) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """What is public about inputs: of each the name, the shape of one example and the type."""
    return tuple((name, tuple(one.shape[1:]), str(one.dtype)) for name, one in named(inputs).items())


def shared_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """A CPU tensor over the memory of the array. Writing to it writes to the array (for a read-only array: do not)."""
    import torch

    with warnings.catch_warnings():
        # Read-only arrays (memory maps) are welcome: nobody here writes to shared data.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)
