"""A strategy of Flower's with our cohort, clip, sum, noise and denominator in place of its own.

Stock nodes train, and send what they please. What comes of a round is one `Release`, paid for in the ledger; the
wrapped strategy gets that as if it were the answer of a single node, and does its server step with it.
"""

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from logging import INFO
from typing import Literal, get_args

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as stock
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from incrowd._random import Randomness
from incrowd.errors import BudgetExceeded, ConfigError, RehearsalFailed
from incrowd.flower.arrays import NamedArrays
from incrowd.flower.attendance import Attendance
from incrowd.flower.wrapped import difference, question, stepped
from incrowd.privacy.ledger.ledger import EARNEST, Ledger
from incrowd.privacy.mechanism.clipping import QuantileClip
from incrowd.privacy.plan.forms import check_ours
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.release import Carry, PrivateRound, PrivateRun
from incrowd.privacy.statement import Statement

StockEvaluation = Literal["none", "public"]

LOOKS_AT_ONE: tuple[type[Strategy], ...] = (
    stock.Bulyan,
    stock.DifferentialPrivacyClientSideAdaptiveClipping,
    stock.DifferentialPrivacyClientSideFixedClipping,
    stock.DifferentialPrivacyServerSideAdaptiveClipping,
    stock.DifferentialPrivacyServerSideFixedClipping,
    stock.FedMedian,
    stock.FedTrimmedAvg,
    stock.FedXgbBagging,
    stock.FedXgbCyclic,
    stock.Krum,
    stock.MultiKrum,
    stock.QFedAvg,
)
"""Strategies that do something with the single answers of nodes, which none gets here."""


def private(
    strategy: Strategy,
    plan: Plan,
    ledger: Ledger,
    *,
    label: str = "run",
    evaluation: StockEvaluation = "none",
    randomness: Randomness = EARNEST,
) -> "PrivateStrategy":
    """A strategy of Flower's, made private: it is used as the strategy is. See `PrivateStrategy`."""
    return PrivateStrategy(strategy, plan, ledger, label=label, evaluation=evaluation, randomness=randomness)


@dataclass(frozen=True, kw_only=True)
class _AskedNodes:
    """A round that nodes were asked about; who is in it is private."""

    number: int
    round: PrivateRound = field(repr=False)
    arrays: NamedArrays = field(repr=False)
    question: RecordDict = field(repr=False)
    clients: dict[int, int] = field(repr=False)
    """The client that each node is."""


class PrivateStrategy(Strategy):
    """A strategy that averages (FedAvg, FedAvgM, FedAdam, FedProx and others), over stock nodes, under a plan.

    Each connected node is one of the plan's clients. Of what a node sends only its arrays are looked at.

    Guarantee: each round asks the clients that the plan draws, clips how far each moved, adds up on the public grid,
    charges the ledger, adds the plan's noise, and divides by the plan's denominator. A node counts once a round; what
    is not finite, not of the model's names and shapes, too long, an error, or of a node that was not asked counts as
    zero, and a round in which nothing counts ends the run (`RoundUnanswered`). Numbers of examples, metrics and errors
    that nodes report are not used, passed on or logged. The wrapped strategy sees the question and the released mean,
    and no node. `start` ends with the plan's last round, in whatever life of the program that is. Everything else is
    refused before anything is charged, and the strategy is tried, as a copy, on arrays that do not move.

    Edge cases: evaluation at nodes is not paid for, so nobody is asked unless `evaluation="public"` says that what is
    evaluated on is public. Where more nodes are connected than the plan has clients, the round is refused; where fewer
    are, the others count as zero. A plan with local noise, a clip that follows a quantile after a restart, and a
    strategy that needs single answers or has a `start` of its own are refused.
    """

    def __init__(
        self,
        strategy: Strategy,
        plan: Plan,
        ledger: Ledger,
        *,
        label: str = "run",
        evaluation: StockEvaluation = "none",
        randomness: Randomness = EARNEST,
    ) -> None:
        _check_averages(strategy)
        check_ours(plan)
        if plan.config.groups is not None:
            remedy = "noise that is correlated over rounds needs clients that keep their numbers: use another sampling"
            raise ConfigError(field="sampling", value=plan.config.sampling.__name__, remedy=remedy)
        if plan.noise_by == "party":
            remedy = 'stock nodes add no noise of their own: plan with noise_by="server"'
            raise ConfigError(field="noise_by", value=plan.noise_by, remedy=remedy)
        if evaluation not in get_args(StockEvaluation):
            remedy = f"give one of {', '.join(get_args(StockEvaluation))}"
            raise ConfigError(field="evaluation", value=evaluation, remedy=remedy)
        self.strategy = strategy
        self.plan = plan
        self.evaluation = evaluation
        self._ledger = ledger
        self._label = label
        self._randomness = randomness
        self._run: PrivateRun | None = None
        self._carry: Carry | None = None
        self._asked: _AskedNodes | None = None
        self._attendance = Attendance()

    def __repr__(self) -> str:
        return f"PrivateStrategy({type(self.strategy).__name__}, {self.plan!r})"

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
        """Train so many rounds, or as many as the plan has left. Edge cases: none left is `BudgetExceeded`."""
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
        """Pay, release, and let the wrapped strategy take its step. There are no metrics: nobody has paid for them."""
        asked, self._asked = self._asked, None
        if asked is None:
            raise ConfigError(field="round", value=server_round, remedy="ask nodes first: configure_train")
        drawn = len(asked.clients)
        for reply in replies:
            node = reply.metadata.src_node_id
            moved = difference(asked.arrays, reply) if node in asked.clients else None
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
        """Nobody is asked, unless what nodes evaluate on is public."""
        if self.evaluation == "none":
            return []
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing, unless what nodes evaluate on is public."""
        return None if self.evaluation == "none" else self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        """Log what is promised."""
        budget, price = self.plan.budget, self.plan.price
        log(INFO, "\t├──> Private: epsilon %.4g of %g, delta %g", price.epsilon, budget.epsilon, budget.delta)
        log(INFO, "\t│\t├── Clients: %s, drawn by the plan (fractions below are not used)", self._clients)
        log(INFO, "\t│\t├── Noise multiplier: %.4g | %s", self.plan.noise_multiplier, self.plan.config.clip)
        log(INFO, "\t│\t└── StockEvaluation at nodes: %s", self.evaluation)
        self.strategy.summary()

    def statement(self) -> Statement:
        """What all that was charged promises. Edge cases: before the first round there is none (`ConfigError`)."""
        if self._run is None:
            raise ConfigError(field="statement", value=None, remedy="start first: then something is promised")
        return self._run.statement()

    @property
    def _clients(self) -> int:
        return self.plan.config.members

    def _begun(self, arrays: NamedArrays, config: ConfigRecord) -> PrivateRun:
        """The run, whose plan is reserved in the ledger as soon as everything else is in order."""
        if self._run is None:
            self._try(arrays, config)
            run = PrivateRun(
                self.plan,
                ledger=self._ledger,
                randomness=self._randomness,
                size=arrays.layout.size,
                label=self._label,
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
        """Take a round's way with a copy of the strategy and arrays that did not move, before anything is charged."""
        still = arrays.moved(0 * arrays.vector)
        with _TrialStrategy():
            strategy, config = copy.deepcopy((self.strategy, config))
            asked, _ = question(strategy, 1, still, config, clients=self._clients)
            found = NamedArrays.of(stepped(strategy, 1, asked, still))
        if found.layout != arrays.layout:
            remedy = "the strategy gives other arrays back than it got: use one that keeps them"
            raise ConfigError(field="arrays", value=found.layout.names, remedy=remedy)

    def _nodes(self, grid: Grid) -> list[int]:
        """All nodes that are connected, as soon as there are as many as the wrapped strategy waits for."""
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


class _TrialStrategy:
    """Says what was tried when it fails, whatever a strategy of somebody's own may raise."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ConfigError):
            raise RehearsalFailed(
                f"a copy of the strategy was tried on arrays that do not move, and failed with {type(error).__name__}: "
                f"{error}. Nothing was spent: repair the strategy, which gets no metrics of nodes, and keep what "
                "cannot be copied outside of it"
            ) from error


def _check_averages(strategy: Strategy) -> None:
    if isinstance(strategy, (*LOOKS_AT_ONE, PrivateStrategy)):
        remedy = "give one that averages, such as FedAvg, FedAvgM, FedAdam or FedProx: it gets the private mean alone"
        raise ConfigError(field="strategy", value=type(strategy).__name__, remedy=remedy)
    if type(strategy).start is not Strategy.start:
        remedy = "its own start would not be used: give one that keeps Flower's"
        raise ConfigError(field="strategy", value=type(strategy).__name__, remedy=remedy)
