"""Flower's `Grid` without a network."""

from collections.abc import Callable, Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run


class TestGrid(Grid):
    """Every node answers at once, but for those that are gone."""

    __test__ = False  # it is no test

    def __init__(self, answer: Callable[[Message], Message], *, gone: set[int]) -> None:
        self._answer = answer
        self._gone = gone
        self._answers: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = []
        for message in messages:
            if message.metadata.dst_node_id in self._gone:
                continue
            number = str(len(self._answers))
            message.metadata.__dict__["_message_id"] = number
            self._answers[number] = self._answer(message)
            found.append(number)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._answers.pop(number) for number in message_ids if number in self._answers]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError
