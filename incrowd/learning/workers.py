"""Several processes that share the work on cohorts, because Python's interpreter lock keeps threads from it.

They are forked once, so they see the model and the data without a copy. Each trains every n-th group of a cohort with
one thread, and returns the contributions, or their sum alone, in shared memory.
"""

import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from incrowd._random import Floats
from incrowd.learning.contributions import Contributions, FlatDelta, ShortenedSum, Shortening, summed
from incrowd.learning.execution import ieee

ClientGroup = list[int]
Assignment = TypeVar("Assignment")
_Form = tuple[tuple[int, ...], Floats | None]
"""The clients of a chunk, and the squares of their updates if they were measured."""
GroupWork = Callable[[Assignment, ClientGroup], Sequence[Contributions]]  # together they have all of the group

CAN_FORK = sys.platform == "linux"
_SLOTS = 2  # contributions of so many groups may wait for each worker


class WorkerPool(Generic[Assignment]):
    """Workers that do what they are assigned, group by group. A contribution has `size` numbers, and a group at most
    `most` contributions.

    Guarantee: at most two chunks a worker wait in memory; workers end when this object or its process does.

    Edge cases: this process does the work of a worker that failed or was killed, so that an error appears as without
    workers; after that, or after an assignment that was broken off, the pool is not `fit` for another.
    """

    def __init__(self, work: GroupWork[Assignment], *, workers: int, size: int, most: int) -> None:
        self.fit = True
        self._size = size
        self._workers: list[_Worker[Assignment]] = []
        for _ in range(workers):
            self._workers.append(_Worker(work, size, most, [worker.pipe for worker in self._workers]))
        self.dismiss = weakref.finalize(self, _dismiss, self._workers)

    def in_order(
        self, assignment: Assignment, groups: Sequence[ClientGroup], *, here: GroupWork[Assignment]
    ) -> Iterator[Contributions]:
        """The chunks of each group, in the order of the groups; they hold until those of the next are requested.

        `here` is the same work, for groups that this process has to do.
        """
        self._start(assignment, groups, None)
        several, done_here = len(self._workers), 0
        for number, group in enumerate(groups):
            chunks = self._workers[number % several].next_chunks()
            done_here += chunks is None
            yield from here(assignment, group) if chunks is None else chunks
        self.fit = done_here == 0

    def summed(
        self,
        assignment: Assignment,
        groups: Sequence[ClientGroup],
        shortening: Shortening,
        *,
        here: GroupWork[Assignment],
    ) -> ShortenedSum:
        """The sum of all contributions, as one process gives it: the addition is exact in any order."""
        self._start(assignment, groups, shortening)
        norms, total = [], np.zeros(self._size)
        for worker in self._workers:
            share = worker.sum()
            if share is None:
                chunks = (chunk for group in groups for chunk in here(assignment, group))
                return summed(chunks, shortening, size=self._size)
            norms.append(share.norms)
            total += share.total
        self.fit = True
        return ShortenedSum(norms=np.concatenate(norms), total=total)

    def _start(self, assignment: Assignment, groups: Sequence[ClientGroup], shortening: Shortening | None) -> None:
        self.fit = False
        for first, worker in enumerate(self._workers):
            worker.start(assignment, groups[first :: len(self._workers)], shortening)


class _Worker(Generic[Assignment]):
    """A process, seen from here."""

    def __init__(self, work: GroupWork[Assignment], size: int, most: int, pipes: Sequence[Connection]) -> None:
        self._slots = [torch.frombuffer(mmap(-1, 4 * size * most), dtype=torch.float32) for _ in range(_SLOTS)]
        self._sum: Floats = np.frombuffer(mmap(-1, 8 * size), dtype=np.float64)
        self.pipe, there = multiprocessing.Pipe()
        self._left = self._received = 0
        self._employer = os.getpid()

        def serve() -> None:
            for ours in (*pipes, self.pipe):
                ours.close()  # or no worker would notice that this process is gone
            _serve(work, there, self._slots, self._sum)

        self._process = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the child uses no lock that another thread may hold.
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            self._process.start()
        there.close()

    def start(self, assignment: Assignment, groups: Sequence[ClientGroup], shortening: Shortening | None) -> None:
        """Have the worker hand over every chunk, or shorten all contributions and hand over their sum."""
        self._received, self._left = 0, len(groups)
        with suppress(OSError):  # a worker that is gone will be noticed when something is due
            self.pipe.send((assignment, groups, shortening))

    def next_chunks(self) -> list[Contributions] | None:
        """The contributions of the worker's next group, or None if it cannot go on."""
        try:
            if self._received and self._left >= _SLOTS:
                self.pipe.send(None)  # the chunk before this one has been used, and its slot is needed
            forms = self.pipe.recv()
        except (EOFError, OSError):
            return None
        slot = self._slots[self._received % _SLOTS]
        self._received, self._left = self._received + 1, self._left - 1
        return _unpacked(forms, slot, len(self._sum))

    def sum(self) -> ShortenedSum | None:
        """The worker's sum, or None if it cannot go on; it holds until the next assignment."""
        try:
            return ShortenedSum(norms=self.pipe.recv(), total=self._sum)
        except (EOFError, OSError):
            return None

    def dismiss(self) -> None:
        """End the process, whatever it does."""
        if self._employer != os.getpid():
            return  # a fork has copies of all objects, but must not end the parent's workers
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _dismiss(workers: Sequence[_Worker[Assignment]]) -> None:
    for worker in workers:
        worker.dismiss()


def _serve(work: GroupWork[Assignment], pipe: Connection, slots: Sequence[Tensor], total: Floats) -> None:
    """Do a worker's assignments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and this is how; its own handlers are not for here
    torch.set_num_threads(1)
    with suppress(Exception), ieee():  # the parent meets the error again when it does the work itself
        while True:
            assignment, groups, shortening = pipe.recv()
            if shortening is None:
                _hand_over(work, assignment, groups, pipe, slots)
            else:
                chunks = (chunk for group in groups for chunk in work(assignment, group))
                found = summed(chunks, shortening, size=total.size)
                total[:] = found.total
                pipe.send(found.norms)
    pipe.close()


def _hand_over(
    work: GroupWork[Assignment],
    assignment: Assignment,
    groups: Sequence[ClientGroup],
    pipe: Connection,
    slots: Sequence[Tensor],
) -> None:
    for number, group in enumerate(groups):
        chunks = work(assignment, group)
        if number >= _SLOTS:
            pipe.recv()
        pipe.send(_packed(chunks, slots[number % _SLOTS]))


def _packed(chunks: Sequence[Contributions], slot: Tensor) -> list[_Form]:
    """Put the numbers of some chunks into a slot; what they are."""
    place, packed = 0, []
    for chunk in chunks:
        delta = chunk.delta.moved()
        end = place + delta.changes.numel()
        slot[place:end].view(delta.changes.shape).copy_(delta.changes)
        packed.append((chunk.clients, delta.known))
        place = end
    return packed


def _unpacked(packed: Sequence[_Form], slot: Tensor, size: int) -> list[Contributions]:
    place, chunks = 0, []
    for clients, known in packed:
        end = place + len(clients) * size
        chunks.append(Contributions(clients, FlatDelta(slot[place:end].view(len(clients), size), known)))
        place = end
    return chunks
