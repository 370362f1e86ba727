"""Updates of a few clients: their norms and their sum."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd._random import Floats
from incrowd.errors import ConfigError

RUN = 256  # numbers whose squares are added up in float32; 128 take longer, more gain little
_RAISED = 1 + (RUN + 8) * 2.0**-24
_SURE = 2.0**-70  # smaller squared norms in float32 may have lost too much to underflow


class Delta(Protocol):
    """The updates of some clients."""

    @property
    def layout(self) -> object:
        """Deltas of one layout are added up in one total; None is the order of the flat vector."""
        ...

    @property
    def size(self) -> int:
        """The length of a client's update."""
        ...

    @property
    def changes(self) -> Tensor:
        """The updates [c, size] in the order of the flat vector."""
        ...

    def __len__(self) -> int:
        """The number of clients."""
        ...

    def squares(self) -> Floats:
        """As `run_squares` of the changes."""
        ...

    def moved(self) -> "FlatDelta":
        """The same in memory that outlives the next training; its norms and sums have the same bits."""
        ...

    def empty_total(self) -> Tensor:
        """A sum of nothing."""
        ...

    def add_steps(self, total: Tensor, some: slice, divisors: Tensor) -> None:
        """Add some clients' changes divided by [c, parts], rounded towards zero, to such a sum; this may use them up.

        An infinite divisor leaves a part out, whatever it holds.
        """
        ...

    def flat(self, total: Tensor) -> NDArray[np.floating]:
        """Such a sum in the order of the flat vector."""
        ...


@dataclass(frozen=True, eq=False)
class FlatDelta:
    """Updates [c, size] as flat vectors; `known` are their squared norms, if they are known."""

    changes: Tensor
    known: Floats | None = None
    parts: tuple[int, ...] | None = None  # into which it is cut where it is added up

    layout = None

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def size(self) -> int:
        """See `Delta.size`."""
        return self.changes.shape[1]

    def squares(self) -> Floats:
        """See `Delta.squares`."""
        return run_squares(self.changes) if self.known is None else self.known

    def moved(self) -> "FlatDelta":
        """See `Delta.moved`."""
        return self

    def empty_total(self) -> Tensor:
        """See `Delta.empty_total`. An accelerator has float64, so that nothing has to leave it before the end."""
        kind = torch.float32 if self.changes.device.type == "cpu" else torch.float64
        return self.changes.new_zeros(self.size, dtype=kind)

    def add_steps(self, total: Tensor, some: slice, divisors: Tensor) -> None:
        """See `Delta.add_steps`."""
        rows, by = self.changes[some], divisors[some].to(self.changes.device)
        sizes = [self.size] if self.parts is None else list(self.parts)
        for number, place in enumerate(rows.split_with_sizes(sizes, dim=1)):
            place.div_(by[:, number, None], rounding_mode="trunc")
            if by[:, number].isinf().any():
                place[by[:, number].isinf()] = 0  # infinity over infinity would be NaN
        total.add_(rows[0] if len(rows) == 1 else rows.sum(0))

    def flat(self, total: Tensor) -> NDArray[np.floating]:
        """See `Delta.flat`."""
        found: NDArray[np.floating] = total.cpu().numpy()
        return found


def cut(delta: Delta, parts: tuple[int, ...]) -> FlatDelta:
    """The delta cut into parts of these sizes. Edge cases: sizes that do not add up are refused."""
    if sum(parts) != delta.size:
        raise ConfigError(field="parts", value=parts, remedy=f"give sizes of whole layers, {delta.size} numbers in all")
    return FlatDelta(delta.changes, parts=parts)


def norms(delta: Delta, parts: tuple[int, ...] | None) -> Floats:
    """The L2 norm of each part of each client's update, [c, parts]; None is the whole as one part."""
    with np.errstate(over="ignore", invalid="ignore"):
        if parts is None:
            return np.sqrt(squares(delta))[:, None]
        pieces = cut(delta, parts).changes.split_with_sizes(list(parts), dim=1)
        return np.sqrt(np.stack([squares(FlatDelta(piece)) for piece in pieces], axis=1))


def squares(delta: Delta) -> Floats:
    """The squared L2 norm of each row of changes, never below the real one and at most 2^-14 of it above.

    Each row is measured alone, so that no other row changes the bits of its norm.

    The float32 sum of B squares, in any order, is at least its real value times (1 - u)^(B + 2), u = 2^-24.
    There is one rounding for each square, B - 1 for the sum, two for a root (Higham 2002, section 3.1). Squares below
    2^-126 may vanish; but n of them are less than n 2^-56 of a squared norm of 2^-70. `_RAISED` makes up for all that
    and for the float64 arithmetic. Float64 alone measures rows with a smaller norm, or one that float32 cannot hold;
    there the square of a float32 number is exact.
    """
    found = _RAISED * delta.squares()
    unsure = ~((found >= _SURE) & (found < np.inf))
    for row in np.flatnonzero(unsure) if unsure.any() else ():
        found[row] = float(delta.changes[row].double().square_().sum().mul_(_RAISED))
    return found


def run_squares(rows: Tensor) -> Floats:
    """The same as it comes out when runs of `RUN` numbers are measured in float32 and put together in float64.

    On an accelerator all rows are measured at once, in float64: there the number of operations sets the time.
    """
    if rows.device.type != "cpu":  # pragma: no cover - where there is one
        found: Floats = halved_squares(rows).cpu().numpy()
        return found
    return np.array([_run_squares(row) for row in rows])


def halved_squares(rows: Tensor) -> Tensor:
    """The squared L2 norm of each row: its second half is added to its first, number by number, until one is left.

    The order of summation is the same for any number of rows; a library's order may depend on that number.
    """
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
