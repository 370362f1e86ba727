"""The rounds of a run: states on disk, answers of silos, and sessions that take a state through its round."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from incrowd import _files
from incrowd._log import note
from incrowd._random import Floats
from incrowd.algorithms.fedavg import FedAvg, RoundReport, State
from incrowd.algorithms.silos import Answer, Silo
from incrowd.errors import DataError, LedgerRolledBack, RoundLost
from incrowd.privacy.release import PrivateRun
from incrowd.privacy.statement import Claims, Statement
from incrowd.runs.build import spent_after
from incrowd.runs.config import RunOptions
from incrowd.runs.folder import CHECKPOINTS, LOCK, PRIVATE, Database, Record, Summary, database_in

if TYPE_CHECKING:
    from incrowd.runs.work import SiloWork, Work

_log = logging.getLogger(__name__)

Arrays = Mapping[str, NDArray[Any]]

_NAME = re.compile(r"round-(\d+)\.safetensors")
_OVERHEAD = 4096  # the most bytes of an answer's file around the update


@dataclass(frozen=True)
class Checkpoints:
    """The last few states of a run, a file each, named after the number of rounds that are behind it.

    Guarantee: every file is complete; after `save` returns, it is on disk, and the `keep` newest are kept.
    Only the user can read them. Without `dated` the files do not tell the duration of a round.
    """

    folder: Path
    keep: int = 2
    dated: bool = True

    def save(self, rounds: int, arrays: Arrays) -> None:
        """Keep the state after so many rounds, and no more than the newest."""
        self.add(rounds, arrays)
        self.leave(self.rounds()[-self.keep :])

    def add(self, rounds: int, arrays: Arrays) -> None:
        """Keep the state after so many rounds."""
        _files.folder(self.folder)
        content = save({name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()})
        _files.write(self._path(rounds), content, dated=self.dated)

    def leave(self, wanted: Sequence[int]) -> None:
        """Remove all states but these, and every file that was cut off while it was written."""
        for old in set(self.rounds()) - set(wanted):
            _files.remove(self._path(old))
        for cut_off in self.folder.glob(f"*{_files.PART}"):
            _files.remove(cut_off)
        if not self.dated and self.folder.is_dir():
            _files.undate(self.folder)

    def rounds(self) -> list[int]:
        """The numbers of rounds after which a state is kept, in rising order."""
        matches = (_NAME.fullmatch(path.name) for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(match[1]) for match in matches if match)

    def at(self, rounds: int) -> dict[str, NDArray[Any]] | None:
        """The state after so many rounds, or None where it is not kept."""
        path = self._path(rounds)
        if not path.exists():
            return None
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): delete it, to go on from the one before") from error

    def _path(self, rounds: int) -> Path:
        return self.folder / f"round-{rounds:06d}.safetensors"


@dataclass(frozen=True, eq=False)
class DurableSilo:
    """A silo that can be killed at any moment and started again.

    Guarantee: an answer is on disk before it is given, and its round was on the ledger before it was computed. Asked
    for a round again, the silo gives the same answer and charges nothing. Room for an answer is on the disk before its
    round is charged (`DataError`). A round that was charged and not kept is lost in a deployment, and repeated in a
    simulation. A ledger that does not know a round that was sent is an old copy, and refused.

    Answers older than the last few are gone, so their rounds count as lost.
    """

    silo: Silo
    sent: Checkpoints

    def answer(self, number: int, weights: Floats) -> Answer:
        """See `Silo.answer`."""
        paid = self.silo.run.rounds
        if unknown := [each for each in self.sent.rounds() if each not in paid]:
            raise LedgerRolledBack(
                f"{self.sent.folder} holds what was sent in round {unknown[0]}, and the ledger of "
                f"{self.silo.name} does not know that round: put the latest ledger back"
            )
        kept = self.sent.at(number)
        if kept is not None:
            return self._read(number, kept)
        room = self._room(weights.nbytes)
        answer = self.silo.answer(number, weights)
        room.unlink()
        if answer.update is not None:
            self.sent.save(number, {"update": answer.update, "epsilon": np.array([answer.epsilon])})
        return answer

    def _room(self, size: int) -> Path:
        """A file of the size of an answer, to be removed for it."""
        path = self.sent.folder / f"room{_files.PART}"
        try:
            _files.folder(self.sent.folder)
            _files.write(path, bytes(size + _OVERHEAD))
        except OSError as error:
            raise DataError(
                f"{self.sent.folder} cannot keep what the silo would send ({error.strerror}), and nothing was spent: "
                "make room, or let this user write there"
            ) from error
        return path

    def _read(self, number: int, arrays: Arrays) -> Answer:
        try:
            [epsilon] = map(float, arrays["epsilon"])
            update = np.asarray(arrays["update"], dtype=np.float64)
        except (KeyError, ValueError) as error:
            raise DataError(f"{self.sent.folder}: round {number} cannot be read ({error}): delete its file") from error
        return Answer(silo=self.silo.name, round=number, epsilon=epsilon, update=update)


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundLoop:
    """The database, the states and the secrets of a run, for the one process that trains in its folder.

    Guarantee: the secret part of a state lies in `private/`: it is on disk before the state is, and gone before any
    result is written (`DataError` if it cannot be removed). No other process can train in the folder (`ConfigError`).
    """

    folder: Path
    rounds: int
    database: Database
    checkpoints: Checkpoints
    secrets: Checkpoints

    @classmethod
    @contextmanager
    def begin(cls, folder: Path, wanted: RunOptions, *, rounds: int) -> Iterator["RoundLoop"]:
        """Keep others from the folder, and open what is written on the way."""
        simulated = wanted.seed is not None
        with _files.alone(folder / LOCK, what="trains in this folder"), database_in(folder) as database:
            yield cls(
                folder=folder,
                rounds=rounds,
                database=database,
                checkpoints=Checkpoints(folder / CHECKPOINTS, keep=wanted.keep, dated=simulated),
                secrets=Checkpoints(folder / PRIVATE, dated=simulated),
            )

    def start_from(self, first: State, *, charged: int) -> State:
        """The state in the last checkpoint; before the first round, this first one, which is kept."""
        newest = max(self.checkpoints.rounds(), default=None)
        arrays = None if newest is None else self.checkpoints.at(newest)
        if newest is None or arrays is None:
            if charged > 0:
                raise DataError(f"{self.checkpoints.folder} is empty, and {charged} rounds are paid for: put it back")
            self.write_state(first)
            return first
        state = first.restored(arrays, self.secrets.at(newest))
        if first.secret is not None and state.secret is None and state.round < self.rounds:
            raise DataError(f"{self.secrets.folder} has nothing of round {newest}, which the next needs: put it back")
        return state

    def finish(self, state: State) -> None:
        """Keep the last state; nothing needs secrets any more."""
        self.write_state(state)
        _files.remove(self.secrets.folder)

    def write_state(self, state: State) -> None:
        """Keep a state. Whenever this is cut off, the newest that is kept has its secrets, if it needs any."""
        if state.round in self.checkpoints.rounds():
            return
        if (secret := state.secret_arrays()) is not None:  # after the last round it is None
            self.secrets.add(state.round, secret)
        self.checkpoints.save(state.round, state.to_arrays())
        self.secrets.leave(self.checkpoints.rounds())


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """The work with its ledger open; for several ledgers see `SiloSession`."""

    work: "Work"
    algorithm: FedAvg[Any]

    @property
    def private(self) -> PrivateRun:
        """The rounds that this ledger pays for."""
        private: PrivateRun = self.algorithm.cohort.private
        return private

    def restored(self, loop: RoundLoop) -> State:
        """The state from which to go on, as far as both the last checkpoint and the ledger know.

        Rounds that were charged and are not in the state are repeated in simulations; elsewhere they are lost. More
        rounds in the state than were charged: `LedgerRolledBack`.
        """
        charged = self.private.next_round
        state = loop.start_from(self.algorithm.init(), charged=charged)
        if state.round > charged:
            raise LedgerRolledBack(
                f"{loop.folder} has a checkpoint after {state.round} rounds, its ledger knows {charged}: "
                "put the latest ledger back"
            )
        if state.round == charged or self.work.randomness.simulated:
            return state
        if state.secret is not None:
            raise DataError(
                f"{loop.folder} lost the memory of its correlated noise with round {charged - 1}, so no later round "
                f"can be released; the model after {state.round} rounds is in its last checkpoint"
            )
        for number in range(state.round, charged):
            loop.database.add(Record(round=number, epsilon=spent_after(self.work.plan, number + 1), lost=True))
        return replace(state, round=charged)

    def rehearse(self, state: State) -> None:
        """Nothing: clients cannot be tried without their examples."""

    def step(self, state: State) -> tuple[State, Record]:
        """Take a state through its round; a round that is lost moves nothing, and stays paid for."""
        try:
            return self.recorded(*self.algorithm.apply(state))
        except RoundLost as lost:
            note(_log, "round lost", level=logging.WARNING, round=state.round, why=str(lost))
            spent = spent_after(self.work.plan, state.round + 1)
            return replace(state, round=state.round + 1), Record(round=state.round, epsilon=spent, lost=True)

    def recorded(self, after: State, report: RoundReport) -> tuple[State, Record]:
        """A state, and the record of the round that led to it."""
        plan, training = self.work.plan, report.seconds_of_training
        answers = self.work.answers(report.round)
        seen = {"observed": report.observed, "diagnostics": report.diagnostics}
        record = Record(
            round=report.round,
            epsilon=spent_after(plan, report.round + 1),
            seconds=report.seconds,
            clients_per_second=None if training is None else answers / max(training, 1e-9),
            clip_norm=report.clip_norm,
            noise_std=report.noise_std,
            simulation={name: asdict(value) for name, value in seen.items() if value is not None} or None,
        )
        return after, record

    def claims(self, state: State) -> Statement | Claims:
        """The statement about a run that ends in this state."""
        return self.private.statement()

    def facts(self, records: Sequence[Record]) -> Summary:
        """Rounds and spending, by the expected cohorts, which are public; speed in simulations alone."""
        plan = self.work.plan
        done = [record for record in records if not record.lost]
        expected = sum(self.work.answers(record.round) for record in done)
        simulated = self.work.randomness.simulated
        seconds = sum(record.seconds or 0.0 for record in records) if simulated else None
        return {
            "rounds": len(done),
            "rounds_lost": len(records) - len(done),
            "communications": expected,
            "client_updates_per_second": expected / seconds if seconds else None,
            "seconds": seconds,
            "epsilon": self.private.statement().epsilon,
            "delta": plan.budget.delta,
            "budget": asdict(plan.budget),
            "noise_multiplier": plan.noise_multiplier,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class SiloSession(Session):
    """The session of silos with a ledger each."""

    work: "SiloWork"
    outboxes: Sequence[DurableSilo]

    def restored(self, loop: RoundLoop) -> State:
        """The state of the run, as far as the last checkpoint and the ledgers know."""
        paid = max((number + 1 for outbox in self.outboxes for number in outbox.silo.run.rounds), default=0)
        return loop.start_from(self.algorithm.init(), charged=paid)

    def rehearse(self, state: State) -> None:
        """Every silo can go on from this state: no silo pays before all are ready."""
        for outbox in self.outboxes:
            outbox.silo.rehearse(state.weights)

    def claims(self, state: State) -> Claims:
        """The statement of each silo about its records."""
        return Claims(by_party={outbox.silo.name: outbox.silo.statement() for outbox in self.outboxes})

    def facts(self, records: Sequence[Record]) -> Summary:
        """The spending of each silo, and which of them had to stop."""
        standings = next((record.silos for record in reversed(records) if record.silos), ())
        simulated = self.work.randomness.simulated
        return {
            "rounds": sum(not record.lost for record in records),
            "epsilon": max(self._spent.values()),
            "delta": self.work.config.privacy.delta,
            "epsilon_by_silo": self._spent,
            "stopped": [standing["silo"] for standing in standings if standing["absence"] == "budget spent"],
            "noise_multiplier": self.work.plan.noise_multiplier,
            "seconds": sum(record.seconds or 0.0 for record in records) if simulated else None,
        }

    @property
    def _spent(self) -> dict[str, float]:
        return {outbox.silo.name: outbox.silo.epsilon for outbox in self.outboxes}

    def recorded(self, after: State, report: RoundReport) -> tuple[State, Record]:
        """See `Session.recorded`."""
        sent = sum(standing.absence is None for standing in report.silos)
        record = Record(
            round=report.round,
            epsilon=report.epsilon,
            seconds=report.seconds,
            clients_per_second=None if report.seconds is None else sent / max(report.seconds, 1e-9),
            clip_norm=self.work.config.privacy.clip_norm,
            silos=[asdict(standing) for standing in report.silos],
        )
        return after, record
