"""Updates of clients where they were computed: their norms, and their exact sum; only these need to cross over."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError

RUN = 256  # numbers whose squares are added up in float32; 128 take longer, more gain little
_RAISED = 1 + (RUN + 8) * 2.0**-24
_SURE = 2.0**-70  # smaller squared norms in float32 may have lost too much to underflow


class Contributions:
    """The contributions of `clients`: their weights after local training minus the server's. A `Total` uses them up.

    Guarantee: a norm is never below the real one, and at most one part in 2^15 above it; a contribution that is not
    finite has a norm that is not finite. The methods' results are the caller's and outlive the chunk.
    """

    layout: object = None
    """Contributions of one layout are added up in one total; None is the order of the flat vector."""

    def __init__(self, clients: tuple[int, ...], changes: Tensor, parts: tuple[int, ...] | None = None) -> None:
        """`changes` [c, size] are flat vectors, and `parts` the sizes of the parts into which a sum cuts them."""
        self.clients, self._parts = clients, parts
        self._numbers: Any = changes

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def numbers(self) -> Any:
        """The contributions as they were computed."""
        if self._numbers is None:
            remedy = "its numbers have been used up by a sum; look at them before"
            raise ConfigError(field="chunk", value=self.clients, remedy=remedy)
        return self._numbers

    @property
    def changes(self) -> Tensor:
        """The contributions [c, size] in the order of the flat vector."""
        changes: Tensor = self.numbers
        return changes

    @property
    def size(self) -> int:
        """The length of a contribution."""
        return self.changes.shape[1]

    def taken(self, parts: tuple[int, ...] | None) -> "Contributions":
        """The same, cut into these parts, for a sum that overwrites the numbers; this chunk has none afterwards."""
        found = copy.copy(self) if parts is None else self.cut(parts)
        self._numbers = None
        return found

    def cut(self, parts: tuple[int, ...]) -> "Contributions":
        """The same cut into parts of these sizes. Edge cases: sizes that do not add up are refused."""
        if sum(parts) != self.size:
            remedy = f"give sizes of whole layers, {self.size} numbers in all"
            raise ConfigError(field="parts", value=parts, remedy=remedy)
        return Contributions(self.clients, self.changes, parts)

    def norms(self, parts: tuple[int, ...] | None = None) -> Floats:
        """The L2 norm of each part of each contribution, [c, parts]; `parts` are sizes, None is the whole as one."""
        pieces = (
            [self]
            if parts is None
            else [
                Contributions(self.clients, piece)
                for piece in self.cut(parts).changes.split_with_sizes(list(parts), dim=1)
            ]
        )
        with np.errstate(over="ignore", invalid="ignore"):
            return np.sqrt(np.stack([piece.squares() for piece in pieces], axis=1))

    def squares(self) -> Floats:
        """The squared L2 norm of each contribution, never below the real one and at most 2^-14 of it above.

        Each row is measured alone, so that no other row changes the bits of its norm.

        The float32 sum of B squares, in any order, is at least its real value times (1 - u)^(B + 2), u = 2^-24: one
        rounding for each square, B - 1 for the sum, two for a root (Higham 2002, section 3.1). Squares below 2^-126
        may vanish; but n of them are less than n 2^-56 of a squared norm of 2^-70. `_RAISED` makes up for all that and
        for the float64 arithmetic. Float64 alone, where the square of a float32 number is exact, measures rows with a
        smaller norm, or one that float32 cannot hold.
        """
        found = _RAISED * self.rough_squares()
        unsure = ~((found >= _SURE) & (found < np.inf))
        for row in np.flatnonzero(unsure) if unsure.any() else ():
            found[row] = float(self.changes[row].double().square_().sum().mul_(_RAISED))
        return found

    def rough_squares(self) -> Floats:
        """`squares` without its allowance for rounding."""
        return run_squares(self.changes)

    def empty_total(self) -> Tensor:
        """A sum of nothing. An accelerator has float64, so that nothing has to leave it before the end."""
        kind = torch.float32 if self.changes.device.type == "cpu" else torch.float64
        return self.changes.new_zeros(self.size, dtype=kind)

    def add_steps(self, total: Tensor, some: slice, divisors: Tensor) -> None:
        """Add some contributions over divisors [c, parts], towards zero, using them up; infinity leaves a part out."""
        rows, by = self.changes[some], divisors[some].to(self.changes.device)
        sizes = [self.size] if self._parts is None else list(self._parts)
        for number, place in enumerate(rows.split_with_sizes(sizes, dim=1)):
            place.div_(by[:, number, None], rounding_mode="trunc")
            if by[:, number].isinf().any():
                place[by[:, number].isinf()] = 0  # infinity over infinity would be NaN
        total.add_(rows[0] if len(rows) == 1 else rows.sum(0))

    def flat(self, total: Tensor) -> NDArray[np.floating]:
        """Such a sum in the order of the flat vector."""
        found: NDArray[np.floating] = total.cpu().numpy()
        return found

    def add_to(self, total: Floats, factors: Floats) -> None:
        """Add every contribution times its factor, [c, 1], in float64; 0 leaves one out, whatever it holds."""
        if factors.shape != (len(self), 1) or total.shape != (self.size,):
            remedy = f"give [{len(self)}, 1] factors and a total of {self.size} numbers"
            raise ConfigError(field="factors", value=(factors.shape, total.shape), remedy=remedy)
        rows = self.rows()
        for j in np.flatnonzero(factors).tolist():
            total += rows[j].astype(np.float64) * factors[j, 0]

    def rows(self) -> NDArray[np.float32]:
        """The contributions themselves, [c, size], a copy."""
        rows: NDArray[np.float32] = self.changes.numpy(force=True).astype(np.float32)
        return rows


def run_squares(rows: Tensor) -> Floats:
    """The squared norm of each row by runs of `RUN` numbers; on an accelerator in float64, all rows at once."""
    if rows.device.type != "cpu":  # pragma: no cover - where there is one
        found: Floats = halved_squares(rows).cpu().numpy()
        return found
    return np.array([_run_squares(row) for row in rows])


def halved_squares(rows: Tensor) -> Tensor:
    """The squared norm of each row, halves added up until one number is left: in one order for any number of rows."""
    squares = rows.double().square_()
    while (numbers := squares.shape[1]) > 1:
        half = -(-numbers // 2)
        squares[:, : numbers - half].add_(squares[:, half:])
        squares = squares[:, :half]
    return squares.sum(1)


def _run_squares(row: Tensor) -> float:
    runs = len(row) // RUN
    lengths = torch.linalg.vector_norm(row[: runs * RUN].view(runs, RUN), dim=1).cpu().numpy()
    rest = row[runs * RUN :].cpu().numpy()
    return float(np.square(lengths, dtype=np.float64).sum() + np.square(rest, dtype=np.float64).sum())


_STEPS = 2**19  # in the bound; float32 still holds every whole number up to 32 times as many
_TOGETHER = 32
_EXACTLY = 2**34  # contributions that float64 adds up without rounding


@dataclass(frozen=True, kw_only=True)
class Shortening:
    """Clipping before the sum by `factors` of norms [m, parts]; factor times norm is at most `bound`, public."""

    bound: float
    parts: tuple[int, ...] | None
    factors: Callable[[Floats], Floats]


class Total:
    """A sum of contributions, each times the factors that its norms ask for.

    Guarantee: a contribution enters as whole steps of a public grid, of 2^-19 to 2^-18 of the bound, rounded towards
    zero. So what enters is never longer than the factor times the norm, and the sum is exact and the same in any order:
    float32 adds up 32 contributions without rounding, float64 up to 2^34. A factor of 0 leaves a contribution out,
    whatever it holds.
    """

    def __init__(self, first: Contributions, shortening: Shortening) -> None:
        """`first` is the first chunk, whose layout the others have."""
        self._shortening = shortening
        first = first if shortening.parts is None else first.cut(shortening.parts)
        mantissa, exponent = math.frexp(shortening.bound / _STEPS)
        self._step = 2.0 ** (exponent - (mantissa == 0.5))
        self._steps = first.empty_total()
        self._in_order = first.flat
        self._most = _TOGETHER if self._steps.dtype == torch.float32 else _EXACTLY
        self._held = 0  # contributions in them
        self._exact = np.zeros(first.size)

    def add(self, chunk: Contributions) -> Floats:
        """Add several contributions to the same parameters, which uses them up; their norms, [c, parts]."""
        taken = chunk.taken(self._shortening.parts)
        lengths = taken.norms(self._shortening.parts)
        # One part in 2^22 makes up for the rounding of the quotients; float32 above the inverses for that of divisors.
        factors = self._shortening.factors(lengths) * ((1 - 2.0**-22) / self._step)
        with np.errstate(divide="ignore", over="ignore"):
            nearest = np.maximum(1 / factors, 2.0**-126).astype(np.float32)
        divisors = torch.from_numpy(np.nextafter(nearest, np.float32(np.inf)))
        for begin in range(0, len(taken), min(self._most, _TOGETHER)):
            some = slice(begin, min(begin + _TOGETHER, len(taken)))
            if self._held + some.stop - begin > self._most:
                self._settle()
            self._held += some.stop - begin
            taken.add_steps(self._steps, some, divisors)
        return lengths

    def flat(self) -> Floats:
        """The sum in the order of the flat vector; it is taken out."""
        self._settle()
        return np.multiply(self._exact, self._step, out=self._exact)

    def _settle(self) -> None:
        self._exact += self._in_order(self._steps)
        self._steps.zero_()
        self._held = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class ShortenedSum:
    """The norms of some contributions, [m, parts], and their shortened sum in the order of the flat vector."""

    norms: Floats
    total: Floats


def summed(chunks: Iterable[Contributions], shortening: Shortening, *, size: int) -> ShortenedSum:
    """The sum of all chunks, of any layouts; each is used up before the next one is requested."""
    totals: dict[object, Total] = {}
    norms = [np.empty((0, 1 if shortening.parts is None else len(shortening.parts)))]
    for chunk in chunks:
        layout = None if shortening.parts is not None else chunk.layout
        if layout not in totals:
            totals[layout] = Total(chunk, shortening)
        norms.append(totals[layout].add(chunk))
    several = [total.flat() for total in totals.values()]
    return ShortenedSum(norms=np.concatenate(norms), total=reduce(np.add, several) if several else np.zeros(size))
