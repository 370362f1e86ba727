"""Messages of Flower's public interface: their bytes, and a transport to parties over the `Grid` of a server app.

Messages are opaque bytes, cut into pieces, each the value of a ConfigRecord. An Array would let the sender choose how
often it is joined.
"""

from collections.abc import Iterator, Sequence

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from incrowd.errors import DataError
from incrowd.parties.keys import Enrolment

PIECE = 4 * 2**20
"""The most bytes of one object, which bounds a request."""

TYPE = "train"
"""The type of our messages: stock SuperNodes find their function by it."""

_FIELD = "bytes"


def pack(content: bytes) -> RecordDict:
    """Bytes as a record that Flower carries: pieces in order."""
    view = memoryview(content)
    starts = range(0, len(content), PIECE)
    return RecordDict({str(i): ConfigRecord({_FIELD: bytes(view[at : at + PIECE])}) for i, at in enumerate(starts)})


def unpack(record: RecordDict, longest: int) -> bytes:
    """The bytes in a record that `pack` wrote."""
    if len(record) > -(-longest // PIECE):
        raise DataError("a message that is too long: it has too many pieces")
    pieces, records = list[bytes](), record.config_records  # Flower looks through all of them at each call
    for number in range(len(record)):
        piece = records.get(str(number))
        value = piece.get(_FIELD) if piece is not None and len(piece) == 1 else None
        if not isinstance(value, bytes):
            raise DataError("not the pieces of a message")
        pieces.append(value)
        if sum(map(len, pieces)) > longest:
            raise DataError("a message that is too long")
    return b"".join(pieces)


class GridLink:
    """A transport to the enrolled parties of a SuperLink that somebody else runs, in a server app: `PartyTransport`.

    The SuperLink knows each party by its node key (`flwr supernode register`). Its other nodes are not asked.

    Guarantee: an answer that cannot be read, or is longer than allowed, is empty, and keeps no other from arriving.

    Edge cases: Flower loads an answer before its length is known, so a party may fill this process's memory.
    """

    def __init__(self, grid: Grid, parties: Sequence[Enrolment]) -> None:
        self._grid = grid
        self._keys = {each.node_pem(): each.name for each in parties}
        self.nodes = {each.name: number for number, each in enumerate(parties, 1)}

    def present(self) -> frozenset[str]:
        """The connected parties."""
        return frozenset(self._connected().values())

    def remove(self, name: str) -> None:
        """Ask a party no more."""
        del self.nodes[name]

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Send one question to the connected of several parties; return each question's party."""
        names = {number: name for name, number in self.nodes.items()}
        there = {name: node for node, name in self._connected().items()}
        asked = [number for number in nodes if names[number] in there]
        record = pack(content)
        messages = [Message(record, there[names[number]], TYPE, ttl=seconds) for number in asked]
        pushed = zip(self._grid.push_messages(messages), asked, strict=True) if messages else ()
        return {message: number for message, number in pushed if message}

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes]]:
        """The answers that have come, of at most so many bytes, each with the number of the question it answers."""
        for reply in self._grid.pull_messages(asked) if asked else ():
            if reply.has_error():
                continue
            try:
                content = unpack(reply.content, longest)
            except DataError:
                content = b""
            yield reply.metadata.reply_to_message_id, content

    def _connected(self) -> dict[int, str]:
        found = {each.node_id: self._keys.get(each.public_key, "") for each in self._grid.get_nodes()}
        return {node: name for node, name in found.items() if name in self.nodes}
