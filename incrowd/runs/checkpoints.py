"""Where a run has got to: plain arrays in safetensors files, nothing that runs when it is read."""

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
from incrowd.errors import DataError

Arrays = Mapping[str, NDArray[Any]]

_NAME = re.compile(r"round-(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoints:
    """The last few states of a run, a file each, named after the number of rounds that are behind it.

    Guarantee: a file that is there is complete; after `save` returns, it is on disk, and the `keep` newest are kept.
    Only the user can read them. Those that are not `dated` do not tell how long the rounds between them took.

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
        """Remove all states but these, and what was cut off while it was written."""
        for old in set(self.rounds()) - set(wanted):
            _files.remove(self._path(old))
        for cut_off in self.folder.glob(f"*{_files.PART}"):
            _files.remove(cut_off)
        if not self.dated and self.folder.is_dir():
            _files.undate(self.folder)

    def rounds(self) -> list[int]:
        """After how many rounds there is a state, in rising order."""
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
