"""Attack: a party cuts its answer into thousands of empty pieces, which kept a server busy for minutes.

Flower carries a message as records, and looks through all of them at each call.
"""

from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message

from incrowd.errors import DataError
from incrowd.flower.grid import PIECE, GridLink, pack, unpack

MANY = 5_000


class Piece(ConfigRecord):
    """A piece that counts how often one is looked into."""

    looked = 0

    def get(self, *given: Any) -> Any:
        Piece.looked += 1
        return super().get(*given)


def pieces(count: int) -> RecordDict:
    Piece.looked = 0
    return RecordDict({str(number): Piece({"bytes": b""}) for number in range(count)})


def answer(number: str, content: RecordDict) -> Message:
    return make_message(Metadata(1, number, 2, 1, number, "", 1.0, 1.0, "train"), content=content)


class Grid:
    """Holds the answers of an attacker and of an honest party."""

    def pull_messages(self, _: object) -> list[Message]:
        return [answer("attacker", pieces(MANY)), answer("honest", pack(b"answer"))]


def test_an_answer_of_more_pieces_than_its_length_needs_is_not_looked_into() -> None:
    link = GridLink(Grid(), [])  # type: ignore[arg-type]  # as much of one as is asked
    assert dict(link.pull(["attacker", "honest"], 2 * PIECE)) == {"attacker": b"", "honest": b"answer"}
    assert Piece.looked == 0
    with pytest.raises(DataError, match="too many pieces"):
        unpack(pieces(3), 2 * PIECE)


def test_control_an_answer_that_may_be_so_long_is_read_piece_by_piece() -> None:
    assert unpack(pieces(MANY), MANY * PIECE) == b""
    assert Piece.looked == MANY
