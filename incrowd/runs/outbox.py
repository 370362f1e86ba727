"""Released states on disk: checkpoints of a run, and the answers of a silo, which gives each of them again for free.

All of it is plain arrays in safetensors files; nothing of it is executed when it is read.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from incrowd import _files
from incrowd._random import Floats
from incrowd.algorithms import Answer, Silo
from incrowd.errors import DataError, LedgerRolledBack

Arrays = Mapping[str, NDArray[Any]]

REPORT = "report.json"

_NAME = re.compile(r"round-(\d+)\.safetensors")
_OVERHEAD = 4096
"""Bytes of an answer's file around the update itself, at most."""


@dataclass(frozen=True)
class Checkpoints:
    """The last few states of a run, a file each, named after the number of rounds that are behind it.

    Guarantee: a file that is there is complete; after `save` returns, it is on disk, and the `keep` newest are kept.
    Only the user can read them. Without `dated` the files do not tell the duration of a round.

    Edge cases: a newest file that cannot be read is a `DataError` that says what to do; without files, `latest` is
    None.
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
        _files.write(self._path(rounds), to_bytes(arrays), dated=self.dated)

    def leave(self, wanted: Sequence[int]) -> None:
        """Remove all states but these, and every file that was cut off while it was written."""
        for old in set(self.rounds()) - set(wanted):
            _files.remove(self._path(old))
        for cut_off in self.folder.glob(f"*{_files.PART}"):
            _files.remove(cut_off)
        if not self.dated and self.folder.is_dir():
            _files.undate(self.folder)

    def rounds(self) -> list[int]:
        """The numbers of rounds after which there is a state, in rising order."""
        matches = (_NAME.fullmatch(path.name) for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(match[1]) for match in matches if match)

    def latest(self) -> dict[str, NDArray[Any]] | None:
        """The newest state."""
        rounds = self.rounds()
        return self.at(rounds[-1]) if rounds else None

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


def to_bytes(arrays: Arrays) -> bytes:
    """The arrays as a safetensors file holds them."""
    return save({name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()})


@dataclass(frozen=True, eq=False)
class DurableSilo:
    """A silo that can be killed at any moment and started again.

    Guarantee: an answer is on disk before it is given, and its round was on the ledger before it was computed. Asked
    for a round again, the silo gives the same answer and charges nothing. Room for an answer is on the disk before its
    round is charged. A round that was charged and not kept is lost in a deployment, and repeated in a simulation (see
    `Silo`).

    Edge cases: answers older than the last few are gone, so their rounds count as lost. A ledger that does not know a
    round that was sent is an old copy, and refused in any round. A disk that is full, or may not be
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
            self.sent.save(number, {"update": answer.update, "epsilon": np.array([answer.epsilon])})
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

    def _check_ledger(self) -> None:
        paid = self.silo.run.rounds
        for number in self.sent.rounds():
            if number not in paid:
                raise LedgerRolledBack(
                    f"{self.sent.folder} holds what was sent in round {number}, and the ledger of "
                    f"{self.silo.name} does not know that round: put the latest ledger back"
                )

    def _read(self, number: int, arrays: Arrays) -> Answer:
        try:
            [epsilon] = map(float, arrays["epsilon"])
            update = np.asarray(arrays["update"], dtype=np.float64)
        except (KeyError, ValueError) as error:
            raise DataError(f"{self.sent.folder}: round {number} cannot be read ({error}): delete its file") from error
        return Answer(silo=self.silo.name, round=number, epsilon=epsilon, update=update)
