"""A training loop of your own over the rounds of a run: the run keeps its folder, ledger, resume and report."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from incrowd._random import Floats
from incrowd.algorithms import ClientCohort, State
from incrowd.data.examples import Inputs
from incrowd.errors import ConfigError
from incrowd.learning.inputs import chosen, meant
from incrowd.learning.modules import trainable
from incrowd.privacy.release import PrivateRound
from incrowd.runs.folder import Record
from incrowd.runs.run import Rounds, Run
from incrowd.runs.work import ClientWork, Session
from incrowd.types import Tracker

_THIRD_PARTY = "training loop (not tried)"


@dataclass(eq=False)
class OwnRound:
    """One round of a training loop: the present clients of its `cohort`, and the `weights` to start from.

    Guarantee: each client's update is clipped, and enters once. The cohort and its updates are private: they are for
    the training on this machine.
    """

    number: int
    cohort: tuple[int, ...] = field(repr=False)
    weights: Floats = field(repr=False)
    _work: ClientWork = field(repr=False)
    _open: PrivateRound = field(repr=False)
    submitted: bool = field(default=False, init=False, repr=False)

    def module(self) -> nn.Module:
        """A copy of the federation's module with the round's weights, for one client to train."""
        return self._work.model.with_weights(self.weights)

    def examples(self, client: int) -> tuple[Inputs, Tensor]:
        """The features of a client of the cohort, as the model sees them, and its labels."""
        if client not in self.cohort:
            raise ConfigError(field="client", value=client, remedy="give one of this round's cohort")
        data = self._work.engine.data
        rows = torch.as_tensor(data.examples(client).astype(np.int64))
        features = meant(chosen(data.features, rows), scale=data.scale, offset=data.offset)
        return features, data.labels.index_select(0, rows)

    def submit(self, updates: Mapping[int, ArrayLike | nn.Module]) -> None:
        """Hand over what clients learnt: a trained module, or the difference to the round's weights as one vector.

        Clients that are left out contribute nothing; the denominator stays the plan's.

        Edge cases: a second submission, a client of another round and a vector of another size are refused.
        """
        if self.submitted:
            raise ConfigError(field="round", value=self.number, remedy="its updates are submitted: go on to the next")
        vectors = {client: self._vector(update) for client, update in updates.items()}
        for client, vector in vectors.items():
            if client not in self.cohort or vector.shape != self.weights.shape:
                remedy = f"give clients of the cohort, and {self.weights.size} numbers for each"
                raise ConfigError(field="updates", value=f"{client}: {vector.shape}", remedy=remedy)
        for client, vector in vectors.items():
            self._open.add(vector[None], clients=[client])
        self.submitted = True

    def _vector(self, update: ArrayLike | nn.Module) -> Floats:
        if not isinstance(update, nn.Module):
            return np.asarray(update, dtype=np.float64)
        trained = torch.cat([one.detach().reshape(-1) for _, one in trainable(update)])
        moved: Floats = trained.double().cpu().numpy() - self.weights
        return moved


class OwnLoop(AbstractContextManager["OwnLoop"]):
    """The rounds of a run, for a loop that trains clients itself: see `incrowd.Federation.session`.

    Edge cases: a round without a submission ends the loop with a `ConfigError`; the same loop goes on with that round
    later. Runs of silos, runs whose data are elsewhere and local algorithms with more numbers than weights are refused.
    """

    def __init__(self, run: Run, watchers: Sequence[Tracker] = ()) -> None:
        work = run.work
        if not isinstance(work, ClientWork) or work.asks_others:
            remedy = 'a loop of your own trains whole clients on this machine: use privacy.unit = "client"'
            raise ConfigError(field="privacy.unit", value=run.config.privacy.unit, remedy=remedy)
        if work.engine.size != work.model.size:
            remedy = "your loop takes its place: leave it out"
            raise ConfigError(field="local.algorithm", value=work.config.local.algorithm, remedy=remedy)
        self.run = run
        self._work = work
        self._rounds: Rounds = run.rounds(watchers)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep the latest state, from which the same loop goes on."""
        self._rounds.close()

    def __iter__(self) -> Iterator[OwnRound]:
        """The rounds that are left."""
        try:
            session, state = next(self._rounds)
            while True:
                if session.algorithm.cohort.queries and state.round == 0:
                    session, state = self._rounds.send(session.step(state))
                    continue
                opened = _opened(session, state, self._work)
                yield opened
                session, state = self._rounds.send(_taken(session, state, opened))
        except StopIteration:
            return


def _opened(session: Session, state: State, work: ClientWork) -> OwnRound:
    cohort: ClientCohort = session.algorithm.cohort
    cohort.private.name_third_party(_THIRD_PARTY)
    clients = cohort.present(cohort.private.cohort(state.round), number=state.round)
    return OwnRound(
        number=state.round,
        cohort=tuple(map(int, clients)),
        weights=state.weights.astype(np.float32).astype(np.float64),
        _work=work,
        _open=cohort.private.round(state.round, carry=state.carry),
    )


def _taken(session: Session, state: State, done: OwnRound) -> tuple[State, Record]:
    if not done.submitted:
        raise ConfigError(field="round", value=done.number, remedy="submit its updates before the next round")
    algorithm = session.algorithm
    answers = algorithm.cohort.released(done._open)
    return session.recorded(*algorithm.applied(state, answers))
