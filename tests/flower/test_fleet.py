import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from hypothesis import given
from hypothesis import strategies as st

from incrowd.errors import DataError
from incrowd.flower import fleet
from incrowd.flower.grid import PIECE, pack, unpack


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
