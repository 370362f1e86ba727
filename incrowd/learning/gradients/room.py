"""Memory for always as many records: fewer are filled up with zeros."""

from torch import Tensor

from incrowd.data.inputs import Inputs, each, named


class Room:
    """Takes records into the same memory again and again, where it is made for the first.

    Guarantee: what lies behind the records is zeros, whatever was there before.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._room: tuple[Inputs, Tensor] | None = None

    def filled(self, features: Inputs, labels: Tensor) -> tuple[Inputs, Tensor]:
        """So many rows, of which the first are these records'."""
        if self._room is None:
            self._room = each(self._empty, features), self._empty(labels)
        inputs, targets = self._room
        rooms, several = [*named(inputs).values(), targets], [*named(features).values(), labels]
        for room, given in zip(rooms, several, strict=True):
            fill(room, given)
        return inputs, targets

    def _empty(self, like: Tensor) -> Tensor:
        return like.new_zeros(self.rows, *like.shape[1:])


def fill(room: Tensor, given: Tensor) -> None:
    """Put these rows into a room, and zeros behind them."""
    room[: len(given)] = given
    room[len(given) :] = 0
