"""Which way each client goes: the first that takes it, whoever else there is."""

from collections.abc import Sequence

import numpy as np

from incrowd.errors import ConfigError
from incrowd.learning.paths.path import MakePath, TrainingPath, TrainingTask


class FirstWay:
    """The paths that somebody goes, fastest first, and which of them each client goes.

    Guarantee: a client goes the first path that takes it, so nobody else has a say in that.

    Edge cases: clients whom no path takes are a `ConfigError`.
    """

    def __init__(self, makes: Sequence[MakePath], task: TrainingTask) -> None:
        self.paths: list[TrainingPath] = []
        self._place = np.zeros(task.data.present, np.intp)
        left = task.everyone
        for make in makes:
            path = make(task) if left.any() else None
            if path is not None and (path.takes & left).any():
                self._place[path.takes & left] = len(self.paths)
                self.paths.append(path)
                left &= ~path.takes
        if left.any():
            remedy = "none of them takes this model: leave out fewer"
            raise ConfigError(field="paths", value=len(makes), remedy=remedy)

    @property
    def at_once(self) -> int:
        """So many clients come together at most."""
        return max((path.at_once for path in self.paths), default=1)

    @property
    def shares(self) -> int:
        """See `TrainingPath.shares`."""
        return max((path.shares for path in self.paths), default=1)

    def path(self, client: int) -> TrainingPath:
        """The way of a client."""
        return self.paths[int(self._place[client])]

    def kind(self, client: int) -> int:
        """Only clients of one kind come together: of one path, and of one kind there."""
        return self.path(client).kind(client) * len(self.paths) + int(self._place[client])
