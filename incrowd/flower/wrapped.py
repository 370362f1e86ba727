"""A strategy of Flower's that is kept from nodes: what it would ask, and what it does with one mean."""

from collections.abc import Iterable
from typing import NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.run import Run

from incrowd._random import Floats
from incrowd.errors import ConfigError
from incrowd.flower.arrays import NamedArrays


class NoNodes(Grid):
    """A grid with as many nodes as a strategy may want, none of which can be asked anything."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        """Numbers that stand for nodes."""
        return range(1, self._nodes + 1)

    def push_messages(self, messages: Iterable[Message]) -> NoReturn:
        """Refused, as is all that reaches nodes."""
        raise _kept_apart()

    def pull_messages(self, message_ids: Iterable[str]) -> NoReturn:
        """See `push_messages`."""
        raise _kept_apart()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> NoReturn:
        """See `push_messages`."""
        raise _kept_apart()

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> NoReturn:
        """See `push_messages`."""
        raise _kept_apart()

    def set_run(self, run: Run) -> NoReturn:
        """See `push_messages`."""
        raise _kept_apart()

    @property
    def run(self) -> NoReturn:
        """See `push_messages`."""
        raise _kept_apart()


def question(
    strategy: Strategy, server_round: int, arrays: ArrayRecord, config: ConfigRecord, *, clients: int
) -> tuple[RecordDict, str]:
    """What a strategy asks nodes in a round, and the kind of its message.

    Edge cases: no question, several, and one without exactly one record of arrays are refused.
    """
    wanted = (clients, getattr(strategy, "min_available_nodes", 0), getattr(strategy, "min_train_nodes", 0))
    messages = list(strategy.configure_train(server_round, arrays, config, NoNodes(max(wanted))))
    if not messages:
        raise _refused(strategy, "it asks nobody to train: give it a fraction_train above 0")
    first = messages[0].content
    if any(message.content is not first and message.content != first for message in messages):
        raise _refused(strategy, "it asks nodes different things: give one that asks all the same")
    if len(first.array_records) != 1:
        raise _refused(strategy, f"it sends {len(first.array_records)} records of arrays: give one that sends one")
    return first, messages[0].metadata.message_type


def stepped(strategy: Strategy, server_round: int, asked: RecordDict, arrays: ArrayRecord) -> ArrayRecord:
    """The arrays after a strategy's step, as if one node had answered with these.

    Edge cases: a strategy that gives none is refused.
    """
    metrics = MetricRecord({str(getattr(strategy, "weighted_by_key", "num-examples")): 1})
    answer = RecordDict({next(iter(asked.array_records)): arrays, "metrics": metrics})
    found, _ = strategy.aggregate_train(server_round, [Message(answer, 1, MessageType.TRAIN)])
    if found is None:
        raise _refused(strategy, "it makes nothing of the mean: give one that averages")
    return found


def difference(arrays: NamedArrays, reply: Message) -> Floats | None:
    """How far a node has moved the arrays; None where its answer is none. Nothing else of it is looked at."""
    if reply.has_error():
        return None
    records = list(reply.content.array_records.values())
    return arrays.difference(records[0]) if len(records) == 1 else None


def _kept_apart() -> ConfigError:
    return ConfigError(field="grid", value="nodes", remedy="a strategy that is made private cannot ask nodes by itself")


def _refused(strategy: Strategy, remedy: str) -> ConfigError:
    return ConfigError(field="strategy", value=type(strategy).__name__, remedy=remedy)
