"""A strategy of Flower's with our cohort, clip, sum, noise and denominator in place of its own.

Stock nodes train, and send arrays. A round yields one `Release`, paid for in the ledger; the wrapped strategy takes its
server step as if a single node had answered with it.
"""

import copy
import math
import re
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from logging import INFO
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as stock
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log
from numpy.typing import NDArray

from incrowd._random import Floats, Randomness
from incrowd.errors import BudgetExceeded, ConfigError, RehearsalFailed
from incrowd.parties.asking import Attendance
from incrowd.privacy.ledger.ledger import EARNEST, Ledger
from incrowd.privacy.mechanism.clipping import Layout, QuantileClip
from incrowd.privacy.plan.forms import check_ours
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import Carry, PrivateRound, PrivateRun
from incrowd.privacy.statement import Statement


@dataclass(frozen=True, kw_only=True)
class NamedArrays:
    """The arrays of a model: their layout in one vector, and the vector."""

    layout: Layout
    dtypes: tuple[np.dtype[Any], ...]
    vector: Floats = field(repr=False)

    @classmethod
    def of(cls, record: "ArrayRecord") -> "NamedArrays":
        """The program's own arrays."""
        arrays = {name: array.numpy() for name, array in record.items()}
        for name, array in arrays.items():
            if array.dtype.kind != "f":
                remedy = (
                    "only floating point numbers are clipped and noised: leave counters and other whole numbers at "
                    "the nodes, and out of what is sent (for num_batches_tracked: use a group norm)"
                )
                raise ConfigError(field=f"arrays[{name!r}]", value=str(array.dtype), remedy=remedy)
        layout = Layout.of(arrays)
        if layout.size == 0:
            raise ConfigError(field="arrays", value=list(arrays), remedy="give a model that has weights")
        vector = layout.flatten(arrays)
        if not np.isfinite(vector).all():
            raise ConfigError(field="arrays", value="not finite", remedy="begin with weights that are numbers")
        return cls(layout=layout, dtypes=tuple(array.dtype for array in arrays.values()), vector=vector)

    def moved(self, mean: Floats) -> "ArrayRecord":
        """These arrays plus a mean, as a record."""
        named = self.layout.unflatten(self.vector + mean)
        kinds = zip(named.items(), self.dtypes, strict=True)
        return ArrayRecord({name: Array(np.asarray(array, dtype)) for (name, array), dtype in kinds})

    def difference(self, reply: Message) -> Floats | None:
        """A node's arrays less these; None for an invalid answer. The rest of its answer is ignored.

        Guarantee: it takes no more memory than the answer and the vector.
        """
        records = [] if reply.has_error() else list(reply.content.array_records.values())
        if len(records) != 1 or set(record := records[0]) != set(self.layout.names):
            return None
        shapes = zip(self.layout.names, self.layout.shapes, strict=True)
        found = {name: array for name, shape in shapes if (array := values_in(record[name], shape)) is not None}
        if len(found) < len(self.layout.names):
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # counts as zero if not finite
            return self.layout.flatten(found) - self.vector


def values_in(array: "Array", shape: tuple[int, ...]) -> NDArray[Any] | None:
    """A node's array; None unless it is floating point and of this shape.

    Guarantee: the bytes are never evaluated, and not copied.
    """
    data = array.data
    if array.stype != "numpy.ndarray" or len(data) > math.prod(shape) * _WIDEST + _LONGEST_HEADER:
        return None
    header = _HEADER.match(data[:_LONGEST_HEADER])
    if header is None or header.end() != int.from_bytes(header["length"], "little") + header.end("length"):
        return None
    if tuple(map(int, _NUMBER.findall(header["shape"]))) != shape:
        return None
    dtype = np.dtype(header["dtype"].decode())
    if len(data) - header.end() != math.prod(shape) * dtype.itemsize:
        return None
    values = np.frombuffer(data, dtype, offset=header.end())
    return values.reshape(shape, order="F" if header["order"] == b"True" else "C")


_WIDEST = np.dtype(np.longdouble).itemsize
_LONGEST_HEADER = 1024
_NUMBER = re.compile(rb"\d{1,18}")
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00(?P<length>..)"
    rb"\{'descr': '(?P<dtype>[<>](?:f2|f4|f8|f16))', 'fortran_order': (?P<order>True|False), "
    rb"'shape': \((?P<shape>[\d, ]*)\), ?\} *\n",
    re.DOTALL,
)
"""The head of NumPy's format 1.0 for an array of floating point numbers."""


LOOKS_AT_ONE: tuple[type[Strategy], ...] = (
    *(stock.Bulyan, stock.FedMedian, stock.FedTrimmedAvg, stock.Krum, stock.MultiKrum, stock.QFedAvg),
    *(stock.FedXgbBagging, stock.FedXgbCyclic),
    *(stock.DifferentialPrivacyClientSideAdaptiveClipping, stock.DifferentialPrivacyClientSideFixedClipping),
    *(stock.DifferentialPrivacyServerSideAdaptiveClipping, stock.DifferentialPrivacyServerSideFixedClipping),
)
"""Strategies that use the single answers of nodes, which none gets here."""


def _kept_apart(*_: object, **__: object) -> NoReturn:
    raise ConfigError(field="grid", value="nodes", remedy="a strategy that is made private cannot ask nodes by itself")


def no_nodes(nodes: int) -> Grid:
    """A grid with as many nodes as a strategy may want. Each call that would reach one is refused."""
    refused: dict[str, Any] = dict.fromkeys(Grid.__abstractmethods__, _kept_apart)
    refused |= {"run": property(_kept_apart), "get_node_ids": lambda _: range(1, nodes + 1)}
    made: type[Grid] = type("NoNodes", (Grid,), refused)
    return made()


def question(
    strategy: Strategy, server_round: int, arrays: ArrayRecord, config: ConfigRecord, *, clients: int
) -> tuple[RecordDict, str]:
    """A strategy's question to nodes in a round, and the kind of its message."""
    wanted = (clients, getattr(strategy, "min_available_nodes", 0), getattr(strategy, "min_train_nodes", 0))
    messages = list(strategy.configure_train(server_round, arrays, config, no_nodes(max(wanted))))
    if not messages:
        raise _refused(strategy, "it asks nobody to train: give it a fraction_train above 0")
    first = messages[0].content
    if any(message.content is not first and message.content != first for message in messages):
        raise _refused(strategy, "it asks nodes different things: give one that asks all the same")
    if len(first.array_records) != 1:
        raise _refused(strategy, f"it sends {len(first.array_records)} records of arrays: give one that sends one")
    return first, messages[0].metadata.message_type


def stepped(strategy: Strategy, server_round: int, asked: RecordDict, arrays: ArrayRecord) -> ArrayRecord:
    """The arrays after a strategy's step, as if one node had answered with these."""
    metrics = MetricRecord({str(getattr(strategy, "weighted_by_key", "num-examples")): 1})
    answer = RecordDict({next(iter(asked.array_records)): arrays, "metrics": metrics})
    found, _ = strategy.aggregate_train(server_round, [Message(answer, 1, MessageType.TRAIN)])
    if found is None:
        raise _refused(strategy, "it makes nothing of the mean: give one that averages")
    return found


def _refused(strategy: Strategy, remedy: str) -> ConfigError:
    return ConfigError(field="strategy", value=type(strategy).__name__, remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class _AskedNodes:
    """The nodes of a round in progress; its cohort is private."""

    number: int
    round: PrivateRound = field(repr=False)
    arrays: NamedArrays = field(repr=False)
    question: RecordDict = field(repr=False)
    clients: dict[int, int] = field(repr=False)
    """The client of each node."""


class PrivateStrategy(Strategy):
    """A strategy that averages (FedAvg, FedAvgM, FedAdam, FedProx and others), over stock nodes, under a plan.

    Each connected node is one of the plan's clients. The strategy reads only the arrays of its answer.

    Guarantee: each round asks the clients that the plan draws, clips their updates and adds them up on the public grid.
    It charges the ledger, adds the plan's noise, and divides by the plan's denominator. A node counts once a round. An
    answer counts as zero if it is not finite, not of the model's names and shapes, too long, an error, or of a node
    that was not asked. A round in which none counts ends the run (`RoundUnanswered`). Numbers of examples, metrics and
    errors of nodes are not used, passed on or logged. The wrapped strategy sees the question and the released mean, and
    no node. `start` ends with the plan's last round, also after restarts. Every refusal precedes the charge, and a copy
    of the strategy is tried first on arrays that do not move.

    Edge cases: nodes do not evaluate, which is not paid for: score public data in an `evaluate_fn`.
    If more nodes are connected than the plan has clients, the round is refused; missing ones count as zero. It refuses
    a plan with local noise, a clip that follows a quantile after a restart, and a strategy that needs single answers or
    has a `start` of its own.
    """

    def __init__(
        self, strategy: Strategy, plan: Plan, ledger: Ledger, *, label: str = "run", randomness: Randomness = EARNEST
    ) -> None:
        _check_averages(strategy)
        check_ours(plan)
        if plan.config.groups is not None:
            remedy = "noise that is correlated over rounds needs clients that keep their numbers: use another sampling"
            raise ConfigError(field="sampling", value=plan.config.sampling.__name__, remedy=remedy)
        if plan.noise_by == "party":
            remedy = 'stock nodes add no noise of their own: plan with noise_by="server"'
            raise ConfigError(field="noise_by", value=plan.noise_by, remedy=remedy)
        self.strategy = strategy
        self.plan = plan
        self._ledger = ledger
        self._label = label
        self._randomness = randomness
        self._run: PrivateRun | None = None
        self._carry: Carry | None = None
        self._asked: _AskedNodes | None = None
        self._attendance = Attendance()

    def start(  # the signature is Flower's
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train so many rounds, or as many as the plan has left."""
        config = ConfigRecord() if train_config is None else train_config
        run = self._begun(NamedArrays.of(initial_arrays), config)
        rounds = min(num_rounds, self.plan.rounds - self._number(run))
        return super().start(grid, initial_arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's question, for the nodes that the plan draws."""
        run = self._begun(NamedArrays.of(arrays), config)
        number = self._number(run)
        asked, kind = question(self.strategy, server_round, arrays, config, clients=self._clients)
        base = NamedArrays.of(next(iter(asked.array_records.values())))
        if base.layout.size != run.size:
            remedy = f"the model had {run.size} numbers in the round before: do not change it"
            raise ConfigError(field="arrays", value=base.layout.size, remedy=remedy)
        nodes, cohort = self._nodes(grid), set(run.cohort(number).tolist())
        drawn = {node: client for client, node in enumerate(nodes) if client in cohort}
        opened = run.round(number, carry=self._carry)
        self._asked = _AskedNodes(number=number, round=opened, arrays=base, question=asked, clients=drawn)
        return [Message(asked, node, kind) for node in drawn]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Pay, release, and let the wrapped strategy take its step. The plan has not paid for metrics."""
        asked, self._asked = self._asked, None
        if asked is None:
            raise ConfigError(field="round", value=server_round, remedy="ask nodes first: configure_train")
        drawn = len(asked.clients)
        for reply in replies:
            node = reply.metadata.src_node_id
            moved = asked.arrays.difference(reply) if node in asked.clients else None
            if moved is not None:
                asked.round.add(moved, clients=[asked.clients.pop(node)])
        if drawn:
            answers, everyone = drawn - len(asked.clients), drawn == self._clients
            self._attendance.check_answered(asked.number, answers=answers, refusals=0, everyone=everyone)
        release = asked.round.release()
        self._carry = asked.round.after
        log(INFO, "Round %s of the plan's %s is paid for and released", release.round + 1, self.plan.rounds)
        return stepped(self.strategy, server_round, asked.question, asked.arrays.moved(release.mean)), None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No evaluation at nodes, whose metrics nobody has paid for."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: see `configure_evaluate`."""

    def summary(self) -> None:
        """Log the plan, which draws the clients: the strategy's fractions are not used."""
        log(INFO, "\t├──> Private: epsilon %.4g, delta %g", self.plan.price.epsilon, self.plan.budget.delta)
        self.strategy.summary()

    def statement(self) -> Statement:
        """The statement of all charges."""
        if self._run is None:
            raise ConfigError(field="statement", value=None, remedy="start first: then something is promised")
        return self._run.statement()

    @property
    def _clients(self) -> int:
        return self.plan.config.members

    def _begun(self, arrays: NamedArrays, config: ConfigRecord) -> PrivateRun:
        """The run, whose plan the ledger reserves once all else is in order."""
        if self._run is None:
            self._try(arrays, config)
            run = PrivateRun(
                self.plan, ledger=self._ledger, randomness=self._randomness, size=arrays.layout.size, label=self._label
            )
            if run.next_round and isinstance(self.plan.config.clip, QuantileClip):
                remedy = "its bound is gone with the program that stopped: begin under a new label, or fix the clip"
                raise ConfigError(field="clip", value=self.plan.config.clip, remedy=remedy)
            self._run = run
        return self._run

    def _number(self, run: PrivateRun) -> int:
        number = run.next_round
        if number == self.plan.rounds:
            raise BudgetExceeded(
                f"all {number} rounds of the plan are charged: make a new plan, if the budget has room"
            )
        return number

    def _try(self, arrays: NamedArrays, config: ConfigRecord) -> None:
        """Try a round with a copy of the strategy and arrays that did not move, before any charge."""
        still = arrays.moved(0 * arrays.vector)
        with ExitStack() as trial:
            trial.push(_refuse_failed)
            strategy, config = copy.deepcopy((self.strategy, config))
            asked, _ = question(strategy, 1, still, config, clients=self._clients)
            found = NamedArrays.of(stepped(strategy, 1, asked, still))
        if found.layout != arrays.layout:
            remedy = "the strategy gives other arrays back than it got: use one that keeps them"
            raise ConfigError(field="arrays", value=found.layout.names, remedy=remedy)

    def _nodes(self, grid: Grid) -> list[int]:
        """All connected nodes, once as many are there as the wrapped strategy waits for."""
        least = min(self._clients, max(1, getattr(self.strategy, "min_available_nodes", 1)))
        if len(set(grid.get_node_ids())) < least:
            log(INFO, "Waiting until %s nodes are connected", least)
        while len(nodes := sorted(set(grid.get_node_ids()))) < least:
            time.sleep(_LOOK)
        if len(nodes) > self._clients:
            remedy = f"{len(nodes)} nodes are connected: plan for as many clients as there can be"
            raise ConfigError(field="clients", value=self._clients, remedy=remedy)
        return nodes


_LOOK = 0.5


def _refuse_failed(_kind: object, error: BaseException | None, _trace: object) -> None:
    """Name the trial in the error, whatever a strategy raises."""
    if isinstance(error, Exception) and not isinstance(error, ConfigError):
        raise RehearsalFailed(
            f"a copy of the strategy was tried on arrays that do not move, and failed with {type(error).__name__}: "
            f"{error}. Nothing was spent: repair the strategy, which gets no metrics of nodes, and keep what cannot be "
            "copied outside of it"
        ) from error


def _check_averages(strategy: Strategy) -> None:
    if isinstance(strategy, (*LOOKS_AT_ONE, PrivateStrategy)):
        remedy = "give one that averages, such as FedAvg, FedAvgM, FedAdam or FedProx: it gets the private mean alone"
        raise _refused(strategy, remedy)
    if type(strategy).start is not Strategy.start:
        raise _refused(strategy, "its own start would not be used: give one that keeps Flower's")


private = PrivateStrategy
"""Make a strategy of Flower's private: see `PrivateStrategy`."""
