from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import DataError
from incrowd.flower import fleet
from incrowd.flower.grid import PIECE, GridLink, pack, unpack
from incrowd.parties.keys import Enrolment, new_party
from tests.flower.stock import StockGrid, identify


@given(st.binary(max_size=1000))
def test_what_was_packed_is_unpacked(content: bytes) -> None:
    assert unpack(pack(content), 1000) == content


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_long_contents_are_pieces(size: int) -> None:
    content = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    record = pack(content)
    assert len(record) == -(-size // PIECE)
    assert unpack(record, size) == content


def test_one_byte_too_many_is_refused() -> None:
    with pytest.raises(DataError, match="too long"):
        unpack(pack(b"x" * 11), 10)


@pytest.mark.parametrize(
    "record",
    [
        RecordDict({"0": ConfigRecord({"other": b"x"})}),
        RecordDict({"0": ConfigRecord({"bytes": "x"})}),
        RecordDict({"0": ConfigRecord({"bytes": b"x", "more": 1})}),
        RecordDict({"1": ConfigRecord({"bytes": b"x"})}),
        RecordDict({"0": ConfigRecord({"bytes": b"x"}), "2": ConfigRecord({"bytes": b"x"})}),
        RecordDict({"0": ArrayRecord()}),
    ],
)
def test_what_pack_does_not_write_is_refused(record: RecordDict) -> None:
    with pytest.raises(DataError):
        unpack(record, 100)


def objects(record: RecordDict) -> tuple[str, dict[str, bytes]]:
    """A message's objects, as they come over the network."""
    metadata = Metadata(1, "", 2, 1, "x", "", 1.0, 1.0, "train")
    message = make_message(metadata, content=record)
    return message.object_id, {number: each.deflate() for number, each in get_all_nested_objects(message).items()}


@pytest.mark.parametrize("broken", ["none", "cut", "other", "head", "missing"])
def test_objects_that_cannot_be_read_are_refused_in_our_words(broken: str) -> None:
    number, contents = objects(pack(b"hello"))
    first = min(set(contents) - {number})
    if broken == "none":
        contents = {}
    elif broken == "cut":
        contents = {each: content[: len(content) // 2] for each, content in contents.items()}
    elif broken == "other":
        contents[number] = contents[first]
    elif broken == "head":
        contents[number] = b"Message " + contents[first]
    else:
        del contents[first]
    with pytest.raises(DataError):
        fleet._read(number, contents, 100)


@pytest.mark.slow
def test_one_piece_that_is_said_to_be_there_many_times_is_not_joined_as_often() -> None:
    piece = ConfigRecord({"bytes": b"x" * 1000})
    number, contents = objects(RecordDict({str(each): piece for each in range(1000)}))
    assert len(contents) == 3
    with pytest.raises(DataError, match="too long"):
        fleet._read(number, contents, 10_000)


def test_an_array_in_place_of_pieces_is_refused() -> None:
    number, contents = objects(RecordDict({"0": ArrayRecord({"a": Array("uint8", (5,), "x", b"hello")})}))
    with pytest.raises(DataError):
        fleet._read(number, contents, 100)


def test_more_objects_than_an_answer_can_have_are_refused_before_any_is_fetched() -> None:
    record = RecordDict({str(number): ConfigRecord({"bytes": bytes([number])}) for number in range(50)})
    message = make_message(Metadata(1, "", 2, 1, "x", "", 1.0, 1.0, "train"), content=record)
    with pytest.raises(DataError, match="too many pieces"):
        fleet._numbers(get_object_tree(message), 1000)
    assert len(fleet._numbers(get_object_tree(message), 50 * PIECE)) == 52


def test_more_bytes_than_an_answer_can_have_are_not_kept() -> None:
    contents: dict[str, bytes] = {}
    fleet._add(contents, "a", b"x" * 1000, 1000)
    with pytest.raises(DataError, match="too long"):
        fleet._add(contents, "b", b"x" * 70_000, 1000)


class PartyGrid(StockGrid):
    """Two parties and a stranger, of which one sends what it likes; what was pushed is answered at the next pull."""

    def __init__(self, parties: list[Enrolment], odd: Callable[[Message], Message]) -> None:
        super().__init__([7, 8, 9], lambda message: reply(message, pack(b"answer")))
        self.keys, self.odd, self.pushed = [each.node_pem() for each in parties], odd, dict[str, Message]()

    def get_nodes(self) -> list[NodeInfo]:
        found = zip(self.nodes, [*self.keys, b"somebody else"], strict=True)
        return [NodeInfo(node_id=node, public_key=key) for node, key in found]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        new = {str(len(self.pushed) + at): message for at, message in enumerate(messages)}
        for number, message in new.items():
            message.metadata.__dict__["_message_id"] = number
        self.pushed |= new
        return list(new)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        asked = [self.pushed[number] for number in message_ids]
        return [(self.odd if message.metadata.dst_node_id == 8 else self._answer)(message) for message in asked]


def reply(message: Message, content: RecordDict) -> Message:
    return Message(content, reply_to=message)


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        (lambda message: reply(message, pack(b"honest")), b"honest"),
        (lambda message: reply(message, pack(b"x" * 101)), b""),
        (lambda message: reply(message, RecordDict({"0": ArrayRecord()})), b""),
        (lambda message: Message(Error(1, "gone"), reply_to=message), None),
    ],
    ids=["honest", "too long", "another record", "an error"],
)
def test_over_a_grid_each_party_is_asked_and_an_odd_answer_keeps_no_other(
    odd: Callable[[Message], Message], expected: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identify(monkeypatch)
    parties = [new_party(tmp_path / name, name) for name in ("amber", "birch")]
    grid = PartyGrid(parties, odd)
    link = GridLink(grid, [*parties, new_party(tmp_path / "cedar", "cedar")])
    assert link.nodes == {"amber": 1, "birch": 2, "cedar": 3}
    assert link.present() == {"amber", "birch"}
    pushed = link.push([1, 2, 3], b"question", 60.0)
    assert sorted(pushed.values()) == [1, 2], "who is not connected is not asked"
    assert {message.metadata.dst_node_id for message in grid.pushed.values()} == {7, 8}
    found = {pushed[number]: answer for number, answer in link.pull(list(pushed), 100)}
    assert found == {1: b"answer"} | ({} if expected is None else {2: expected})
    link.remove("birch")
    assert link.nodes == {"amber": 1, "cedar": 3}
    assert link.present() == {"amber"}
