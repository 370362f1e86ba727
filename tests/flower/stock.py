"""Flower's stock side without a network: a grid whose nodes answer in this process."""

from collections.abc import Callable, Iterable
from typing import NoReturn

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

IDENTITY = ("_task_id", "_run_id", "_node_id")
"""What Flower sets in the process of a server app, which messages are made in."""

Answer = Callable[[Message], Message]


def _unused(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError


class StockGrid(Grid):
    """Nodes of these ids, each of which answers at once; `asked` is what they were asked, in order."""

    set_run = create_message = _unused
    run = property(_unused)

    def __init__(self, nodes: Iterable[int], answer: Answer) -> None:
        self.nodes, self._answer = list(nodes), answer
        self.asked: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        sent = list(messages)
        self.asked += sent
        return [self._answer(message) for message in sent]


def identify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that this process is a server app's."""
    for name in IDENTITY:
        monkeypatch.setattr(TaskIdentity, name, 1)


def record(**arrays: NDArray[np.generic]) -> ArrayRecord:
    """Arrays as Flower carries them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def reply(message: Message, arrays: ArrayRecord, **metrics: float) -> Message:
    """A node's answer, as a stock ClientApp writes it."""
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, **metrics})})
    return sent(Message(content, reply_to=message), message)


def sent(answer: Message, message: Message) -> Message:
    """An answer, with the node that Flower says it is from."""
    answer.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
    return answer


def moved(message: Message) -> Message:
    """What a node answers that moves every number by a tenth."""
    arrays = message.content.array_records["arrays"]
    return reply(message, record(**{name: array.numpy() + np.float32(0.1) for name, array in arrays.items()}))
