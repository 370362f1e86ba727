"""Where a run has got to: plain arrays in safetensors files, nothing that runs when it is read."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from incrowd.errors import DataError
from incrowd.runs import _files

Arrays = Mapping[str, NDArray[Any]]

_NAME = re.compile(r"round-(\d+)\.safetensors")


@dataclass(frozen=True)
class Checkpoints:
    """The last few states of a run, a file each, named after the number of rounds that are behind it.

    Guarantee: a file that is there is complete; after `save` returns, it is on disk, and the `keep` newest are kept.

    Edge cases: a newest file that cannot be read is a `DataError` that says what to do; without files, `latest` is
    None.
    """

    folder: Path
    keep: int = 2

    def save(self, rounds: int, arrays: Arrays) -> None:
        """Keep the state after so many rounds."""
        self.folder.mkdir(parents=True, exist_ok=True)
        _files.write(self.folder / f"round-{rounds:06d}.safetensors", to_bytes(arrays))
        for old in self.rounds()[: -self.keep]:
            (self.folder / f"round-{old:06d}.safetensors").unlink(missing_ok=True)
        for cut_off in self.folder.glob(f"*{_files.PART}"):
            cut_off.unlink(missing_ok=True)

    def rounds(self) -> list[int]:
        """After how many rounds there is a state, in rising order."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.glob("round-*.safetensors"))
        return sorted(int(match[1]) for match in found if match)

    def latest(self) -> dict[str, NDArray[Any]] | None:
        """The newest state."""
        rounds = self.rounds()
        return self.at(rounds[-1]) if rounds else None

    def at(self, rounds: int) -> dict[str, NDArray[Any]] | None:
        """The state after so many rounds, or None where it is not kept."""
        path = self.folder / f"round-{rounds:06d}.safetensors"
        if not path.exists():
            return None
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}): delete it, to go on from the one before") from error


def to_bytes(arrays: Arrays) -> bytes:
    """The arrays as a safetensors file holds them."""
    return save({name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()})
