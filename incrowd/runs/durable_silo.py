"""What a silo has sent, kept on its own disk: a round that is asked for again is answered again, and costs nothing."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from incrowd import _files
from incrowd._random import Floats
from incrowd.algorithms import Answer, Silo
from incrowd.errors import DataError, LedgerRolledBack
from incrowd.runs.checkpoints import Arrays, Checkpoints

_BESIDE = 4096
"""Bytes of an answer's file beside the update itself, at most."""

REPORT = "report.json"


@dataclass(frozen=True, eq=False)
class DurableSilo:
    """A silo that can be killed at any moment and started again.

    Guarantee: an answer is on disk before it is given, and its round was on the ledger before it was computed. Asked
    for a round again, the silo gives the same answer and charges nothing. Room for an answer is on the disk before its
    round is charged. A round that was charged and not kept is lost
    in a deployment, and repeated in a simulation (see `Silo`).

    Edge cases: answers older than the last few are gone, so their rounds count as lost. A ledger that does not know a
    round that was sent is an old copy, and refused, whichever round is asked for. A disk that is full, or may not be
    written to, is a `DataError`, and nothing is spent.
    """

    silo: Silo
    sent: Checkpoints

    def answer(self, number: int, weights: Floats) -> Answer:
        """See `Silo.answer`."""
        self._check_ledger()
        kept = self.sent.at(number)
        if kept is not None:
            return self._read(number, kept)
        room = self._room(weights.nbytes)
        answer = self.silo.answer(number, weights)
        room.unlink()
        if answer.update is not None:
            self.sent.save(number, _to_arrays(answer, answer.update))
        return answer

    def report(self, weights: Floats, *, classes: int) -> Floats | None:
        """See `Silo.report`; asked for again, it is the same, whatever the weights."""
        path = self.sent.folder.parent / REPORT
        if path.exists():
            return np.asarray(json.loads(path.read_text()), dtype=np.float64)
        if self.silo.run.plan.config.report_std is None:
            return None
        room = self._room(32 * classes * (classes + 1))
        table = self.silo.report(weights, classes=classes)
        room.unlink()
        if table is not None:
            _files.write(path, json.dumps(table.tolist()))
        return table

    def _room(self, size: int) -> Path:
        """A file that takes what an answer will take, to be given up for it."""
        path = self.sent.folder / f"room{_files.PART}"
        try:
            _files.folder(self.sent.folder)
            _files.write(path, bytes(size + _BESIDE))
        except OSError as error:
            raise DataError(
                f"{self.sent.folder} cannot keep what the silo would send ({error.strerror}), and nothing was spent: "
                "make room, or let this user write there"
            ) from error
        return path

    def _check_ledger(self) -> None:
        paid = self.silo.run.rounds
        for number in self.sent.rounds():
            if number not in paid:
                raise LedgerRolledBack(
                    f"{self.sent.folder} holds what was sent in round {number}, and the ledger of "
                    f"{self.silo.name} does not know that round: put the latest ledger back"
                )

    def _read(self, number: int, arrays: Arrays) -> Answer:
        """The answer that was kept."""
        try:
            [epsilon] = map(float, arrays["epsilon"])
            update = np.asarray(arrays["update"], dtype=np.float64)
        except (KeyError, ValueError) as error:
            raise DataError(f"{self.sent.folder}: round {number} cannot be read ({error}): delete its file") from error
        return Answer(silo=self.silo.name, round=number, epsilon=epsilon, update=update)


def _to_arrays(answer: Answer, update: Floats) -> dict[str, NDArray[np.float64]]:
    return {"update": update, "epsilon": np.array([answer.epsilon])}
