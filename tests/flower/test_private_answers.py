import tracemalloc
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as its
from numpy.typing import NDArray

from incrowd.privacy.plan.sampling import Poisson
from tests.flower.stock import Answer, StockGrid, identify, record, reply, sent
from tests.flower.stock_rounds import (
    NODES,
    START,
    Arrays,
    by_hand,
    by_node,
    honest,
    made,
    planned,
    same,
    trained,
    without,
)


@pytest.fixture(autouse=True)
def _in_a_server_app(monkeypatch: pytest.MonkeyPatch) -> None:
    identify(monkeypatch)


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


def test_a_claim_takes_no_memory() -> None:
    def answer(message: Message) -> Message:
        if message.metadata.dst_node_id == NODES[0]:
            return honest(message)
        return reply(message, WRONG["a claim of more"](by_node(message.metadata.dst_node_id, message)))

    trained(answer)
    tracemalloc.start()
    trained(answer)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5_000_000  # the claim is 24 GB


class Mixed(StockGrid):
    """A grid whose answers are changed on their way back."""

    def __init__(self, answer: Answer, change: Callable[[list[Message]], list[Message]]) -> None:
        super().__init__(NODES, answer)
        self.change = change

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.change(list(super().send_and_receive(messages, timeout=timeout)))


def twice_and_strangers(answers: list[Message]) -> list[Message]:
    if not answers:
        return []
    stranger = Message(answers[0].content, reply_to=answers[0])
    stranger.metadata.__dict__["_src_node_id"] = 4711
    return [stranger, *answers, *answers[::-1], answers[0]]


def test_a_node_counts_once_and_who_was_not_asked_not_at_all() -> None:
    strategy = made(planned())
    result = strategy.start(Mixed(honest, twice_and_strangers), record(**START), num_rounds=1)
    assert same({name: array.numpy() for name, array in result.arrays.items()}, trained(honest))
    plan = planned(Poisson)
    drawn = made(plan)

    def others_too(answers: list[Message]) -> list[Message]:
        if not answers:
            return []
        asked = {answer.metadata.src_node_id for answer in answers}
        for node in set(NODES) - asked:
            more = Message(answers[0].content, reply_to=answers[0])
            more.metadata.__dict__["_src_node_id"] = node
            answers.append(more)
        return answers

    result = drawn.start(Mixed(honest, others_too), record(**START), num_rounds=1)
    found = {name: array.numpy() for name, array in result.arrays.items()}
    assert same(found, by_hand(plan, 1))


NUMBERS = st.floats(width=64) | st.floats(min_value=-2.0, max_value=2.0)
METRICS = st.dictionaries(st.text(min_size=1, max_size=5), st.floats() | st.integers(-(2**62), 2**62), max_size=3)


@pytest.mark.slow
@given(
    sent_by_one=its.arrays(np.float64, (2, 3), elements=NUMBERS),
    metrics=METRICS,
    times=st.integers(min_value=0, max_value=3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_one_node_sends_it_moves_the_release_by_no_more_than_its_share(
    sent_by_one: NDArray[np.float64], metrics: dict[str, int | float | list[int] | list[float]], times: int
) -> None:
    start = {"w": np.zeros((2, 3))}

    def answer(message: Message) -> Message:
        if message.metadata.dst_node_id != NODES[3]:
            return honest(message)
        content = RecordDict({"arrays": record(w=sent_by_one), "metrics": MetricRecord(metrics)})
        return sent(Message(content, reply_to=message), message)

    def again(answers: list[Message]) -> list[Message]:
        its_own = [each for each in answers if each.metadata.src_node_id == NODES[3]]
        return answers + its_own * times

    found, without_it = (
        made(planned()).start(Mixed(each, again), record(**start), num_rounds=1).arrays["w"].numpy()
        for each in (answer, without([NODES[3]]))
    )
    assert np.isfinite(found).all()
    assert np.linalg.norm(found - without_it) <= 0.5 / len(NODES) * (1 + 1e-6)
