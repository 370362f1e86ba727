"""Inputs as tensors: decoded, synthetic, and passed to a module (see `incrowd.data.examples`)."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from incrowd._random import Integers, Randomness
from incrowd.data.examples import Inputs, each, is_single, named, single
from incrowd.errors import DataError
from incrowd.learning.modules import trainable
from incrowd.settings import Local

if TYPE_CHECKING:
    from incrowd.data.clients import Clients


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
    """Stored inputs as they are meant: numbers as float32, scaled as `incrowd.data.Examples` says."""
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
    """A function that calls a module with such inputs: a tuple in order; a dict by name, or whole."""
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


def as_function(module: nn.Module, features: Inputs) -> Callable[[Sequence[Tensor], Inputs], Tensor]:
    """A module as a function of its trained parameters and inputs such as these."""
    called = WithInputs(module, features)
    names = [name for name, _ in trainable(called)]

    def outputs(parameters: Sequence[Tensor], inputs: Inputs) -> Tensor:
        found: Tensor = functional_call(called, dict(zip(names, parameters, strict=True)), (inputs,))
        return found

    return outputs


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


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of one client.

    ``positions[t]`` are the places, in a client's own list, of the examples of step t, of which the first ``sizes[t]``
    count; the others are padding, and repeat one that counts.
    """

    positions: Integers
    sizes: Integers

    @property
    def steps(self) -> int:
        """The number of steps."""
        return int(self.positions.shape[0])

    @property
    def width(self) -> int:
        """The number of examples in the largest batch."""
        return int(self.positions.shape[1])


def draw_batches(examples: int, local: Local, *, randomness: Randomness, round: int, client: int) -> Batches:
    """The batches of one client in one round.

    Guarantee: every example comes once in every epoch; the batches depend on nothing but the randomness, round, client
    and number of examples.
    """
    template, sizes = _template(examples, local.batch_size, local.batches)
    if local.shuffle and len(sizes) > 1:
        bits = randomness.stream("batches", round, client).bits(local.epochs * examples)
        order = np.argsort(bits.reshape(local.epochs, examples), axis=1)
    else:
        order = np.broadcast_to(np.arange(examples), (local.epochs, examples))
    positions = order[:, template].reshape(-1, template.shape[1])
    return Batches(positions=positions, sizes=np.tile(sizes, local.epochs))


def batch_sizes(examples: int, local: Local) -> Integers:
    """The sizes of the batches of an epoch over so many examples."""
    return _template(examples, local.batch_size, local.batches)[1]


@lru_cache(maxsize=1024)
def _template(examples: int, batch_size: int | None, batches: int | None) -> tuple[NDArray[np.intp], Integers]:
    """The places in a shuffled list of each batch's examples, the last repeated to fill a row; the batches' sizes."""
    if batches is None:
        starts = np.arange(0, examples, batch_size or examples)
    else:
        starts = np.linspace(0, examples, min(batches, examples) + 1).astype(np.int64)[:-1]
    ends = np.append(starts[1:], examples)
    sizes = ends - starts
    return np.minimum(starts[:, None] + np.arange(sizes.max()), ends[:, None] - 1), sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class Stored:
    """Examples [n, ...] and their labels [n, ...], stored as `incrowd.data.Examples` has them. Private."""

    features: Inputs = field(repr=False)
    labels: Tensor = field(repr=False)
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        check_inputs(self.features)
        for one in named(self.features).values():
            if self.labels.ndim == 0 or len(self.labels) != len(one):
                raise DataError(
                    f"features have the shape {tuple(one.shape)} and labels {tuple(self.labels.shape)}: "
                    "give [examples, ...] and a label for each"
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """The device that holds them."""
        return self.labels.device

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        features = each(lambda one: one.to(device), self.features)
        return replace(self, features=features, labels=self.labels.to(device))

    def take(self, rows: Tensor) -> tuple[Inputs, Tensor]:
        """The meaning of some rows' features, numbers in float32, and their labels."""
        rows = rows.to(self.device)
        features = meant(chosen(self.features, rows), scale=self.scale, offset=self.offset)
        return features, self.labels.index_select(0, rows)

    def zeros(self, count: int) -> dict[str, Any]:
        """The fields of so many examples like these, all zeros: it reads only shapes and types."""
        labels = self.labels.new_zeros(count, *self.labels.shape[1:])
        return {"features": zeros(self.features, count), "labels": labels, "scale": self.scale, "offset": self.offset}


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientTensors(Stored):
    """All that the engine knows about data: client k holds the examples ``indices[offsets[k]:offsets[k + 1]]``.

    ``declared`` is the public number of clients, if it differs from the real one, and ``constant`` the last feature of
    every example, if that is a constant.
    """

    offsets: NDArray[Any] = field(repr=False)
    indices: NDArray[Any] = field(repr=False)
    declared: int | None = None
    constant: float = 0.0

    @classmethod
    def of(cls, data: "Clients") -> "ClientTensors":
        """The tensors of a federated data set, without a copy."""
        features, labels = data.examples.as_tensors()
        return cls(
            features=features,
            labels=labels,
            offsets=data.partition.offsets,
            indices=data.partition.indices,
            scale=data.examples.scale,
            offset=data.examples.offset,
            declared=data.declared,
        )

    @property
    def clients(self) -> int:
        """The public number of clients."""
        return self.present if self.declared is None else self.declared

    @property
    def present(self) -> int:
        """The number of clients, which is private where a number is declared."""
        return len(self.offsets) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example. Edge cases: several inputs are a `DataError`."""
        return tuple(single(self.features).shape[1:])

    def examples(self, client: int) -> NDArray[Any]:
        """The indices of one client's examples."""
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def rows(self, client: int) -> Tensor:
        """The same as a tensor, where the examples are."""
        return torch.from_numpy(self.examples(client).astype(np.int64)).to(self.device)

    def feed(self, client: int, batches: Batches) -> "Feed":
        """One client's examples in these batches."""
        rows = torch.from_numpy(self.examples(client)[batches.positions.ravel()].astype(np.int64)).to(self.device)
        return Feed(data=self, rows=rows, batches=batches)

    def made_up(self, examples: int) -> "ClientTensors":
        """One client with so many examples like these, all zeros: it reads only shapes and types of these."""
        return ClientTensors(**self.zeros(examples), offsets=np.array([0, examples]), indices=np.arange(examples))


@dataclass(frozen=True, kw_only=True, eq=False)
class Feed:
    """The examples of a client, batch after batch: row t * width + i is example i of its step t."""

    data: Stored
    rows: Tensor  # [steps * width], the numbers of the examples
    batches: Batches

    def first(self, steps: int) -> "Feed":
        """The first steps alone."""
        batches = Batches(positions=self.batches.positions[:steps], sizes=self.batches.sizes[:steps])
        return replace(self, rows=self.rows[: steps * self.batches.width], batches=batches)
