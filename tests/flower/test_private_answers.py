"""What a stock node answers counts once, within its clip, or not at all."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as its
from numpy.typing import NDArray

from incrowd.flower.strategy import values_in
from incrowd.privacy.plan.sampling import Poisson
from tests.flower.stock import (
    NODES,
    START,
    Arrays,
    StockGrid,
    arrays_in,
    but,
    by_hand,
    by_node,
    honest,
    identify,
    made,
    planned,
    record,
    reply,
    same,
    sent,
    still,
    trained,
)

FLOATS = its.floating_dtypes(endianness="<", sizes=(16, 32, 64)) | its.floating_dtypes(endianness=">", sizes=(32, 64))
ARRAYS = its.arrays(FLOATS, its.array_shapes(min_dims=0, max_dims=4, max_side=5) | st.just((0, 3)))
NUMBERS = st.floats(width=64) | st.floats(min_value=-2.0, max_value=2.0)
METRICS = st.dictionaries(st.text(min_size=1, max_size=5), st.floats() | st.integers(-(2**62), 2**62), max_size=3)


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)


@pytest.mark.slow
@given(array=ARRAYS, turned=st.booleans())
@settings(deadline=None)
def test_what_numpy_writes_is_read_to_the_last_bit(array: NDArray[Any], turned: bool) -> None:
    array = np.asfortranarray(array) if turned else array
    found = values_in(Array(array), array.shape)
    assert found is not None
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)


@given(data=st.binary(max_size=300), begun=st.booleans())
@settings(deadline=None)
def test_bytes_that_are_none_are_none(data: bytes, begun: bool) -> None:
    data = b"\x93NUMPY\x01\x00" + data if begun else data
    assert values_in(Array("float32", (3,), "numpy.ndarray", data), (3,)) is None


def with_data(good: Arrays, data: bytes, stype: str = "numpy.ndarray") -> ArrayRecord:
    return ArrayRecord({"w": Array("float32", (2, 3), stype, data), "b": Array(good["b"])})


def bytes_of(good: Arrays) -> bytes:
    return bytes(Array(good["w"]).data)


WRONG: dict[str, Callable[[Arrays], ArrayRecord]] = {
    "not a number": lambda good: record(w=np.full((2, 3), np.nan, np.float32), b=good["b"]),
    "infinite": lambda good: record(w=good["w"], b=np.full(2, -np.inf)),
    "too large to measure, and infinite once it is a difference": lambda good: record(
        w=good["w"], b=np.array([np.finfo(np.longdouble).max, 0], np.longdouble)
    ),
    "another shape": lambda good: record(w=good["w"].reshape(3, 2), b=good["b"]),
    "another name": lambda good: record(w=good["w"], c=good["b"]),
    "an array is missing": lambda good: record(w=good["w"]),
    "an array too many": lambda good: record(**good, extra=np.zeros(1, np.float32)),
    "whole numbers": lambda good: record(w=good["w"].astype(np.int32), b=good["b"]),
    "complex numbers": lambda good: record(w=good["w"].astype(np.complex64), b=good["b"]),
    "a claim of more": lambda good: with_data(good, bytes_of(good).replace(b"(2, 3)", b"(2, 3000000000)")),
    "cut off": lambda good: with_data(good, bytes_of(good)[:-1]),
    "garbage": lambda good: with_data(good, b"\x93NUMPY\x01\x00v\x00{" + b"[" * 200),
    "nothing": lambda good: with_data(good, b""),
    "another version": lambda good: with_data(good, b"\x93NUMPY\x03\x00" + bytes_of(good)[8:]),
    "another form": lambda good: with_data(good, bytes_of(good), "pickle"),
    "too long": lambda good: record(w=np.zeros((2, 300_000), np.float32), b=good["b"]),
    "Python objects": lambda good: with_data(good, bytes_of(good).replace(b"'<f4'", b"'|O' ")),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_answer_counts_as_zero(wrong: str) -> None:
    def answer(message: Message) -> Message:
        return reply(message, WRONG[wrong](by_node(NODES[2], message)))

    nothing = trained(StockGrid(NODES, but(NODES[2], still)))
    assert same(trained(StockGrid(NODES, but(NODES[2], answer))), nothing)
    assert not same(trained(StockGrid(NODES, honest)), nothing)  # the control


def test_an_error_and_two_records_of_arrays_count_as_zero() -> None:
    def twice(message: Message) -> Message:
        arrays = record(**by_node(NODES[2], message))
        return sent(Message(RecordDict({"arrays": arrays, "more": arrays}), reply_to=message), message)

    nothing = trained(StockGrid(NODES, but(NODES[2], still)))
    for answer in (twice, lambda message: sent(Message(Error(1, "gone"), reply_to=message), message)):
        assert same(trained(StockGrid(NODES, but(NODES[2], answer))), nothing)


def test_a_claim_takes_no_memory() -> None:
    def answer(message: Message) -> Message:
        node = message.metadata.dst_node_id
        return honest(message) if node == NODES[0] else reply(message, WRONG["a claim of more"](by_node(node, message)))

    trained(StockGrid(NODES, answer))
    tracemalloc.start()
    trained(StockGrid(NODES, answer))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000  # the claim is 24 GB


def test_a_node_counts_once_and_who_was_not_asked_not_at_all() -> None:
    def twice_and_strangers(answers: list[Message]) -> list[Message]:
        stranger = sent(Message(answers[0].content, reply_to=answers[0]), answers[0], 4711)
        return [stranger, *answers, *answers[::-1], answers[0]]

    def others_too(answers: list[Message]) -> list[Message]:
        others = set(NODES) - {answer.metadata.src_node_id for answer in answers}
        first = answers[0]
        return answers + [sent(Message(first.content, reply_to=first), first, node) for node in others]

    assert same(trained(StockGrid(NODES, honest, twice_and_strangers)), trained(StockGrid(NODES, honest)))
    plan = planned(Poisson)
    assert same(trained(StockGrid(NODES, honest, others_too), strategy=made(plan)), by_hand(plan, 1))


@pytest.mark.slow
@given(by_one=its.arrays(np.float64, (2, 3), elements=NUMBERS), metrics=METRICS, times=st.integers(0, 3))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_one_node_sends_it_moves_the_release_by_no_more_than_its_share(
    by_one: NDArray[np.float64], metrics: dict[str, int | float | list[int] | list[float]], times: int
) -> None:
    def answer(message: Message) -> Message:
        content = RecordDict({"arrays": record(w=by_one, b=START["b"]), "metrics": MetricRecord(metrics)})
        return sent(Message(content, reply_to=message), message)

    def again(answers: list[Message]) -> list[Message]:
        return answers + [each for each in answers if each.metadata.src_node_id == NODES[3]] * times

    found, without_it = (
        arrays_in(made(planned()).start(grid, record(**START), num_rounds=1).arrays)
        for grid in (StockGrid(NODES, but(NODES[3], answer), again), StockGrid(NODES, but(NODES[3], still)))
    )
    apart = np.concatenate([(found[name] - without_it[name]).ravel() for name in START])
    assert np.isfinite(apart).all()
    assert np.linalg.norm(apart) <= 0.5 / len(NODES) * (1 + 1e-4)  # in float32
