"""A small federation of stock nodes without a network: a grid, a strategy that was made private, and the plan alone."""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.flower import PrivateStrategy, private
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, Layout
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun

CLIENTS, ROUNDS = 6, 3
BUDGET = Budget(epsilon=8.0, delta=1e-5)
SEED = SeededRandomness(seed=7)
NODES = [11, 23, 35, 47, 59, 61]
"""In the order of their numbers, which is that of the plan's clients."""

Answer = Callable[[Message], Message]
Arrays = dict[str, NDArray[Any]]

START: Arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float64)}


def _unused(*_: object, **__: object) -> NoReturn:
    raise NotImplementedError


class StockGrid(Grid):
    """Nodes of these ids, each of which answers at once; `asked` is what they were asked, in order.

    `change` is what happens to their answers on the way back.
    """

    set_run = create_message = _unused
    run = property(_unused)

    def __init__(
        self, nodes: Iterable[int], answer: Answer, change: Callable[[list[Message]], list[Message]] = list
    ) -> None:
        self.nodes, self._answer, self._change = list(nodes), answer, change
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
        return self._change([self._answer(message) for message in sent]) if sent else []


def identify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say that this process is a server app's, in which Flower makes messages."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def record(**arrays: NDArray[np.generic]) -> ArrayRecord:
    """Arrays as Flower carries them."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def arrays_in(arrays: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in arrays.items()}


def reply(message: Message, arrays: ArrayRecord, **metrics: float) -> Message:
    """A node's answer, as a stock ClientApp writes it."""
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1, **metrics})})
    return sent(Message(content, reply_to=message), message)


def sent(answer: Message, message: Message, node: int | None = None) -> Message:
    """An answer, with the node that Flower says it is from."""
    answer.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id if node is None else node
    return answer


def moved(message: Message) -> Message:
    """What a node answers that moves every number by a tenth."""
    arrays = arrays_in(message.content.array_records["arrays"])
    return reply(message, record(**{name: array + np.float32(0.1) for name, array in arrays.items()}))


def planned(sampling: Sampling = Everyone, *, clip: Clip | None = None) -> Plan:
    schedule = constant(rounds=ROUNDS, cohort=CLIENTS if sampling is Everyone else 3)
    chosen = FixedClip(clip_norm=0.5) if clip is None else clip
    return PlanConfig(members=CLIENTS, schedule=schedule, sampling=sampling, clip=chosen).calibrate(BUDGET)


def ledger_for(plan: Plan) -> Ledger:
    return Ledger.in_memory(budget=BUDGET, relation=plan.relation)


def made(plan: Plan, *, fraction_train: float = 1.0, nodes: int = CLIENTS) -> PrivateStrategy:
    wrapped = FedAvg(fraction_train=fraction_train, min_available_nodes=nodes)
    return private(wrapped, plan, ledger_for(plan), randomness=SEED)


def by_node(node: int, message: Message) -> Arrays:
    """What an honest node sends: each moves the arrays somewhere else."""
    rng, arrays = np.random.default_rng(node), arrays_in(message.content.array_records["arrays"])
    return {name: (value + rng.normal(size=value.shape)).astype(value.dtype) for name, value in arrays.items()}


def honest(message: Message) -> Message:
    return reply(message, record(**by_node(message.metadata.dst_node_id, message)))


def still(message: Message) -> Message:
    """What a node answers that moves nothing, which counts as much as no answer."""
    return reply(message, message.content.array_records["arrays"])


def but(node: int, answer: Answer) -> Answer:
    """All nodes are honest but one."""
    return lambda message: (answer if message.metadata.dst_node_id == node else honest)(message)


def trained(grid: Grid, *, strategy: PrivateStrategy | None = None, rounds: int = 1) -> Arrays:
    strategy = strategy or made(planned())
    return arrays_in(strategy.start(grid, record(**START), num_rounds=rounds).arrays)


def same(one: Arrays, other: Arrays) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one
    )


def by_hand(plan: Plan, rounds: int) -> Arrays:
    """The same federation without Flower: the plan's own run, a contribution at a time."""
    layout = Layout.of(START)
    run = PrivateRun(plan, ledger=ledger_for(plan), randomness=SEED, size=layout.size)
    arrays: Arrays = dict(START)
    for number in range(rounds):
        before = layout.flatten(arrays)
        message = Message(RecordDict({"arrays": record(**arrays)}), 1, "train")
        opened = run.round(number)
        for client in run.cohort(number):
            contribution = layout.flatten(by_node(NODES[client], message)) - before
            opened.add(contribution, clients=[int(client)])
        after = layout.unflatten(before + opened.release().mean)
        arrays = {name: after[name].astype(START[name].dtype) for name in START}
    return arrays
