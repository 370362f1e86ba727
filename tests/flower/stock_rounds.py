"""A small federation of stock nodes, with a strategy that was made private, and the same without Flower."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from incrowd._random import SeededRandomness
from incrowd.flower import PrivateStrategy, private
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import Clip, FixedClip, Layout
from incrowd.privacy.plan.plan import Plan, PlanConfig, Sampling
from incrowd.privacy.plan.sampling import Everyone, constant
from incrowd.privacy.release import PrivateRun
from tests.flower.stock import Answer, StockGrid, record, reply

CLIENTS = 6
ROUNDS = 3
BUDGET = Budget(epsilon=8.0, delta=1e-5)
SEED = SeededRandomness(seed=7)
NODES = [11, 23, 35, 47, 59, 61]
"""In the order of their numbers, which is that of the plan's clients."""

Arrays = dict[str, NDArray[Any]]

START: Arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float64)}


def planned(sampling: Sampling = Everyone, *, rounds: int = ROUNDS, clip: Clip | None = None) -> Plan:
    cohort = CLIENTS if sampling is Everyone else 3
    chosen = FixedClip(clip_norm=0.5) if clip is None else clip
    schedule = constant(rounds=rounds, cohort=cohort)
    return PlanConfig(members=CLIENTS, schedule=schedule, sampling=sampling, clip=chosen).calibrate(BUDGET)


def ledger_for(plan: Plan) -> Ledger:
    return Ledger.in_memory(budget=BUDGET, relation=plan.relation)


def averaging(*, fraction_train: float = 1.0) -> FedAvg:
    return FedAvg(fraction_train=fraction_train, min_available_nodes=CLIENTS)


def made(plan: Plan, strategy: Strategy | None = None) -> PrivateStrategy:
    wrapped = strategy or averaging()
    return private(wrapped, plan, ledger_for(plan), randomness=SEED)


def on_disk(path: Path, plan: Plan) -> Ledger:
    return Ledger.open(path, budget=BUDGET, relation=plan.relation, data_identity="stock")


def by_node(node: int, message: Message) -> Arrays:
    """What an honest node sends: each moves the arrays somewhere else."""
    rng = np.random.default_rng(node)
    arrays = message.content.array_records["arrays"]
    found = {}
    for name, array in arrays.items():
        value = array.numpy()
        found[name] = (value + rng.normal(size=value.shape)).astype(value.dtype)
    return found


def honest(message: Message) -> Message:
    return reply(message, record(**by_node(message.metadata.dst_node_id, message)))


def trained(answer: Answer, *, strategy: PrivateStrategy | None = None, rounds: int = 1) -> Arrays:
    strategy = strategy or made(planned())
    result = strategy.start(StockGrid(NODES, answer), record(**START), num_rounds=rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}


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


def without(nodes: Iterable[int]) -> Answer:
    """Nodes of which these have not moved."""
    still = set(nodes)

    def answer(message: Message) -> Message:
        if message.metadata.dst_node_id in still:
            return reply(message, message.content.array_records["arrays"])
        return honest(message)

    return answer
