"""The path: clients side by side, always as many, whose batches are equally wide."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from incrowd.errors import IncrowdError
from incrowd.learning.arithmetic import ieee, in_one_order
from incrowd.learning.contributions import Contributions
from incrowd.learning.deltas import FlatDelta
from incrowd.learning.dropout import has_dropout
from incrowd.learning.losses import LOSSES
from incrowd.learning.paths.path import ClientRound, TrainingPath, TrainingTask
from incrowd.learning.paths.together.plan import steps_of, widened, width_of
from incrowd.learning.paths.together.step import Abreast, OfClients, step
from incrowd.learning.paths.together.trial import SideBySideTrial, most_at_once
from incrowd.learning.replay import Notes, Take
from incrowd.learning.threads import one_thread
from incrowd.learning.trial import MadeUp

_log = logging.getLogger(__name__)
_EVEN = 8  # numbers: matrices of as many rows begin where accelerators like it


def make(task: TrainingTask) -> "Together | None":
    """The path, if `vmap` takes the module and its steps are what they are for one client alone.

    Guarantee: of the examples only shapes, types and each client's own number of them are read. A client's gradient
    has been seen to have the same bits in another place, again, and whatever others hold. Why there is no path is
    logged.

    Edge cases: with dropout at work, whose masks a client draws itself, with a loss of one's own, of which nobody knows
    that it is a mean, and with a module that remembers anything, there is none.
    """
    if has_dropout(task.model.module) or task.loss not in LOSSES.values() or len(task.data.indices) == 0:
        return None
    with one_thread(), ieee(task.execution.device), torch.no_grad():
        tried = {width: _tried(task, width) for width in np.unique(_widths(task)).tolist() if width}
    for reason in sorted({found for found in tried.values() if isinstance(found, str)}):
        _say(task, reason)
    sizes = {width: found for width, found in tried.items() if isinstance(found, Size)}
    return Together(task, sizes) if sizes else None


def _tried(task: TrainingTask, width: int) -> "Size | str":
    """How clients with batches so wide go: as they are, or filled up, which libraries round more evenly; or why not."""
    reason = ""
    for wide in dict.fromkeys((width, -(-width // _EVEN) * _EVEN)):
        with MadeUp() as attempt:
            trial = SideBySideTrial(task, wide)
            return Size(width=wide, clients=trial.clients_at_once(), gradients=trial.gradients)
        # Others' texts may say how many examples somebody has.
        reason = str(attempt.error) if isinstance(attempt.error, IncrowdError) else type(attempt.error).__name__
    return reason


def _say(task: TrainingTask, reason: str) -> None:
    """Of how many clients, or of what batches, is nobody's business."""
    _log.warning("clients of %s are trained one by one: %s", type(task.model.module).__name__, reason)


def _widths(task: TrainingTask) -> NDArray[np.int64]:
    """How wide the batches of each client are; 0 for who has no examples."""
    counts, places = np.unique(np.diff(task.data.offsets), return_inverse=True)
    return np.array([width_of(int(count), task.local) if count else 0 for count in counts])[places]


@dataclass(frozen=True, kw_only=True, eq=False)
class Size:
    """So many clients side by side, whose batches are so wide, and how their gradients come about."""

    width: int
    clients: int
    gradients: OfClients


class Together(TrainingPath):
    """Trains clients side by side.

    Guarantee: a client's steps are the same operations on as many matrices whoever else is there: a group is always
    filled up to the same number, with copies of its last client, and batches are as wide as the client's own examples
    ask for. Who has taken all its steps keeps its weights while others go on.
    """

    def __init__(self, task: TrainingTask, sizes: dict[int, Size]) -> None:
        """`sizes` are those of groups, by how wide the clients' own batches are."""
        self._task, self._sizes = task, sizes
        self.at_once = most_at_once(task)
        self.takes = np.isin(_widths(task), [0, *sizes])  # who has nothing is trained by nobody
        self._notes = Notes(task.device)
        self._there: dict[Size, Abreast] = {}
        self._steps: dict[tuple[Size, bool], Take] = {}

    def kind(self, client: int) -> int:
        """See `TrainingPath.kind`."""
        return width_of(len(self._task.data.examples(client)), self._task.local)

    def effort(self, client: int) -> int:
        """See `TrainingPath.effort`."""
        return steps_of(len(self._task.data.examples(client)), self._task.local)

    @torch.no_grad()
    def train(self, weights: Tensor, clients: Sequence[ClientRound]) -> list[Contributions]:
        """See `TrainingPath.train`."""
        size, starts = self._sizes[self.kind(clients[0].client)], self._task.model.by_parameter(weights)
        groups = (clients[begin : begin + size.clients] for begin in range(0, len(clients), size.clients))
        return [self._train(starts, group, size) for group in groups]

    def _train(self, starts: Sequence[Tensor], group: Sequence[ClientRound], size: Size) -> Contributions:
        own, task = self._clients(size), self._task
        filled = [*group, *[group[-1]] * (size.clients - len(group))]
        offsets = [task.offset(one.client) for one in group]
        own.begin(starts, [*offsets, *offsets[-1:] * (size.clients - len(group))])
        batches = [one.batches for one in filled]
        planned = widened(task.data, [one.client for one in filled], batches, width=size.width)
        rows, shares = (torch.from_numpy(one).to(task.device) for one in (planned.rows, planned.shares))
        take = self._steps[size, all(one.steps == batches[0].steps for one in batches)]
        with in_one_order(task.device):
            for t in range(len(rows)):
                own.rows.copy_(rows[t])
                own.shares.copy_(shares[t])
                take()
        changes = own.changes()[: len(group)]
        return Contributions(tuple(one.client for one in group), FlatDelta(changes))

    def _clients(self, size: Size) -> Abreast:
        """Room for so many clients with such batches; their steps are noted while nothing is in it."""
        if size not in self._there:
            own = self._there[size] = Abreast.of(self._task, clients=size.clients, width=size.width)
            with in_one_order(self._task.device):
                for everyone in (True, False):
                    take = partial(step, self._task, size.gradients, own, everyone=everyone)
                    self._steps[size, everyone] = self._notes.noted(take)
        return self._there[size]
