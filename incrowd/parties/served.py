"""A run whose silos are real parties on their own machines; the server holds no records or ledgers of theirs."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from incrowd._random import Floats
from incrowd.algorithms import State
from incrowd.algorithms.silos import Answer
from incrowd.errors import ConfigError, DataError
from incrowd.parties.claims import recomputed
from incrowd.parties.masked import SumNetwork
from incrowd.parties.network import Network, SiloServer
from incrowd.privacy.statement import Claims, Statement
from incrowd.runs.folder import Record
from incrowd.runs.round_loop import RoundLoop
from incrowd.runs.run import Run
from incrowd.runs.silo_work import RecordWork, SiloSession, SiloWork
from incrowd.runs.work import ClientWork


def served(run: Run, network: Network) -> Run:
    """The same run over a network whose parties have accepted its offer.

    Edge cases: silos on this machine, or checkpoints that skip rounds, are a `ConfigError`.
    """
    work = run.work
    masked = SumNetwork(network=network) if network.offer.roster else None
    if isinstance(work, ClientWork):
        return run.trained_by(network.trainer if masked is None else masked.trainer)
    if isinstance(work, RecordWork):
        return run.summed_by(network.records) if masked is None else run.summed_by(shared=masked.records)
    if not isinstance(work, SiloWork) or not work.elsewhere:
        remedy = 'silos that are asked are real parties: set privacy.unit = "record" and data.name = "parties"'
        raise ConfigError(field="data.name", value=work.config.data.name, remedy=remedy)
    return Run(run.folder, ServedSilos(**vars(work), server=SiloServer(network=network, descent=work.config.local)))


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedSilos(SiloWork):
    """A federation of silos over a network, which hold all ledgers.

    Guarantee: a server that was killed and restarted asks the same questions, and so gets the same bytes.

    Edge cases: it needs a checkpoint after every round, because a silo may be absent at times: `ConfigError`.
    """

    server: SiloServer

    def __post_init__(self) -> None:
        every = self.config.run.checkpoint_every
        if every != 1:
            remedy = "silos that are asked are asked once: leave it out, and every round is kept"
            raise ConfigError(field="run.checkpoint_every", value=every, remedy=remedy)

    @property
    def asks_others(self) -> bool:
        """See `SiloWork.asks_others`."""
        return True

    @contextmanager
    def open(self, folder: Path) -> Iterator["ServedSession"]:
        """Ready to train, for as long as the `with` block lasts."""
        heard = Heard(self.server)
        algorithm = replace(self, together=heard.answers).asking(tuple(map(_not_here, self.plans)))
        yield ServedSession(work=self, algorithm=algorithm, outboxes=(), heard=heard)


class Heard:
    """The server's latest answers and claims of its silos in a run."""

    def __init__(self, server: SiloServer) -> None:
        names = server.offer.parties
        self.server = server
        self.epsilons: dict[str, float] = dict.fromkeys(names, 0.0)
        self.answered: dict[str, set[int]] = {name: set() for name in names}
        self.last: Mapping[str, Statement] = {}

    def answers(self, number: int, weights: Floats) -> Sequence[Answer]:
        """See `SiloServer.answers`; a silent silo has spent at least its last figure."""
        heard = self.server.answers(number, weights)
        for answer in heard:
            if answer.absence not in ("no answer", "refused"):
                self.epsilons[answer.silo] = answer.epsilon
        return [replace(answer, epsilon=self.epsilons[answer.silo]) for answer in heard]

    def remember(self, number: int, standings: Iterable[Mapping[str, Any]]) -> None:
        """Remember the state of the silos after a round."""
        for standing in standings:
            name = standing["silo"]
            self.epsilons[name] = standing["epsilon"]
            if standing["absence"] is None:
                self.answered[name].add(number)

    def claims(self) -> Claims:
        """The claims of all silos; for a missing or wrong claim, the recomputed statement."""
        offer = self.server.offer
        return Claims(
            by_party={
                name: self.last.get(name) or recomputed(offer.plan_of(name), len(self.answered[name]))
                for name in offer.parties
            }
        )

    def ask_last(self, weights: Floats) -> None:
        """Ask the silos for their claims."""
        self.last = self.server.last(weights, {name: len(rounds) for name, rounds in self.answered.items()})
        self.epsilons |= {name: said.epsilon for name, said in self.last.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedSession(SiloSession):
    """The work, ready to ask the silos."""

    work: ServedSilos
    heard: Heard = field(repr=False)

    def restored(self, loop: RoundLoop) -> State:
        """See `SiloSession.restored`: silos state their own spending."""
        past = loop.database.rounds()
        done = max((record.round + 1 for record in past), default=0)
        state = loop.start_from(self.algorithm.init(), charged=done)
        for record in past:
            if record.round < state.round:
                self.heard.remember(record.round, record.silos or ())
        return state

    def rehearse(self, state: State) -> None:
        """Nothing: each silo has tried the plan before it accepted."""

    def step(self, state: State) -> tuple[State, Record]:
        """Take a state through its round."""
        after, record = super().step(state)
        self.heard.remember(record.round, record.silos or ())
        return after, record

    def claims(self, state: State) -> Claims:
        """The claim of each silo about its records, for which it is asked."""
        self.heard.ask_last(state.published)
        return self.heard.claims()

    @property
    def _spent(self) -> dict[str, float]:
        return dict(self.heard.epsilons)


def _not_here(_: object) -> Callable[[int, Floats], Answer]:
    def ask(number: int, _: Floats) -> Answer:
        raise DataError(f"silos that are elsewhere are asked together, in round {number} too")

    return ask
