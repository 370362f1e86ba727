"""Flower's stock side without a network: a grid whose nodes answer in this process, and a program that trains on it.

    python tests/flower/stock.py LEDGER ROUNDS

starts a stock app with Flower's own DP strategy, whose accountant is a ledger; it prints what it and Flower's own
accountant say.
"""

import json
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.supercore.privacy_accounting import GaussianPrivacyEvent
from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from incrowd.flower.accountant import LedgerAccountant
from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from tests.flower.grid import TestGrid

CLIENTS = 4
NOISE_MULTIPLIER = 2.0
BUDGET = Budget(epsilon=8.0, delta=1e-5)

IDENTITY = ("_task_id", "_run_id", "_node_id")
"""What Flower sets in the process of a server app, which messages are made in."""

Answer = Callable[[Message], Message]


class StockGrid(TestGrid):
    """Nodes of these ids, each of which answers at once; `asked` is what they were asked, in order."""

    def __init__(self, nodes: Iterable[int], answer: Answer) -> None:
        super().__init__(answer, gone=set())
        self.nodes = list(nodes)
        self.asked: list[Message] = []

    def get_node_ids(self) -> Iterable[int]:
        return self.nodes

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


def main(path: Path, rounds: int) -> None:
    with Ledger.open(path, budget=BUDGET, relation=Relation.REPLACE_SPECIAL, data_identity="stock") as ledger:
        accountant = LedgerAccountant(ledger, clients=CLIENTS)
        averaging = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        strategy = DifferentialPrivacyServerSideFixedClipping(
            averaging, NOISE_MULTIPLIER, 1.0, CLIENTS, accountant=accountant
        )
        theirs = RdpAccountant(accountant.config)
        grid, before, stopped = StockGrid(range(1, CLIENTS + 1), moved), accountant.num_releases, False
        try:
            strategy.start(grid, record(w=np.zeros(10, np.float32)), num_rounds=rounds)
        except PrivacyBudgetExhausted:
            stopped = True
        for _ in range(accountant.num_releases - before):  # all that it knows of: this life of the program
            theirs.compose(GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS))
        spent = accountant.get_privacy_spent()
        found = {
            "stopped": stopped,
            "releases": spent.num_releases,
            "epsilon": spent.epsilon,
            "theirs": theirs.get_epsilon(BUDGET.delta) if theirs.num_releases else 0.0,
        }
        sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in IDENTITY:
        setattr(TaskIdentity, name, 1)
    main(Path(sys.argv[1]), int(sys.argv[2]))
