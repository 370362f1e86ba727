"""Inputs of a model: one array, several with names, or several in order; arrays and tensors alike.

| inputs   | call                                                                              |
| -------- | --------------------------------------------------------------------------------- |
| an array | ``module(array)``                                                                 |
| a dict   | ``module(**arrays)`` if its `forward` has these names, otherwise ``module(dict)``  |
| a tuple  | ``module(*arrays)``                                                               |
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from incrowd.errors import DataError

if TYPE_CHECKING:
    import torch

Inputs = Any  # an array or a tensor, or a dict or a tuple of these


def is_single(inputs: Inputs) -> bool:
    """Whether there is one input."""
    return not isinstance(inputs, dict | tuple)


def named(inputs: Inputs) -> dict[str, Any]:
    """The inputs under their names in errors."""
    if is_single(inputs):
        return {"features": inputs}
    places = inputs.items() if isinstance(inputs, dict) else enumerate(inputs)
    return {f"features[{place!r}]": one for place, one in places}


def each(act: Callable[[Any], Any], inputs: Inputs) -> Inputs:
    """The result of a function for each input, in the same form."""
    if isinstance(inputs, dict):
        return {name: act(one) for name, one in inputs.items()}
    return tuple(map(act, inputs)) if isinstance(inputs, tuple) else act(inputs)


def joined(parts: Sequence[Inputs]) -> Inputs:
    """Inputs of the same form, one after the other."""
    if isinstance(parts[0], dict):
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(place) for place in zip(*parts, strict=True))
    return np.concatenate(parts)


def first(inputs: Inputs) -> Any:
    """The first input; its length is the number of examples."""
    return next(iter(named(inputs).values()))


def single(inputs: Inputs) -> Any:
    """The only input. Edge cases: several are a `DataError`."""
    if not is_single(inputs):
        raise DataError(f"there are several inputs ({', '.join(named(inputs))}): this needs one array, [examples, ...]")
    return inputs


def form(inputs: Inputs) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """The public facts about inputs: the name, the shape of an example and the type of each."""
    return tuple((name, tuple(one.shape[1:]), str(one.dtype)) for name, one in named(inputs).items())


def shared_tensor(array: NDArray[Any]) -> "torch.Tensor":
    """A CPU tensor over the memory of an array. Do not write to it."""
    import torch

    with warnings.catch_warnings():
        # Read-only arrays, such as memory maps, are fine: incrowd never writes to shared data.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(array)
