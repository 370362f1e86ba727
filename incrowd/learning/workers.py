"""Several processes that share the work on cohorts, because Python's interpreter lock keeps threads from it.

They are forked once and see the model and the data without a copy. Each trains every n-th group with one thread, and
returns the sum of the contributions in shared memory.
"""

import multiprocessing
import os
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from incrowd._random import Floats
from incrowd.learning.contributions import Contributions, ShortenedSum, Shortening, summed
from incrowd.learning.execution import ieee

ClientGroup = list[int]
GroupWork = Callable[[Any, ClientGroup], Iterable[Contributions]]
"""Trains a group by an assignment, which can be pickled."""

CAN_FORK = sys.platform == "linux"


class WorkerPool:
    """Workers that train groups and add up what these contribute, `size` numbers each.

    Guarantee: workers end when this object or its process does.

    Edge cases: if a worker fails or is killed, this process does all the work, so that an error appears as without
    workers; after that, or after an assignment that was broken off, the pool is not `fit` for another.
    """

    def __init__(self, work: GroupWork, *, workers: int, size: int) -> None:
        self.fit = True
        self._size = size
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(_Worker(work, size, [worker.pipe for worker in self._workers]))
        self.dismiss = weakref.finalize(self, _dismiss, self._workers)

    def summed(
        self, assignment: Any, groups: Sequence[ClientGroup], shortening: Shortening, *, here: GroupWork
    ) -> ShortenedSum:
        """The exact sum of all contributions; `here` is the same work in this process."""
        self.fit = False
        for first, worker in enumerate(self._workers):
            with suppress(OSError):  # a worker that is gone will be noticed when its sum is due
                worker.pipe.send((assignment, groups[first :: len(self._workers)], shortening))
        norms, total = [], np.zeros(self._size)
        for worker in self._workers:
            try:
                norms.append(worker.pipe.recv())
            except (EOFError, OSError):
                return _added_up(here, assignment, groups, shortening, self._size)
            total += worker.sum
        self.fit = True
        return ShortenedSum(norms=np.concatenate(norms), total=total)


class _Worker:
    """A process, seen from here; `sum` is its memory."""

    def __init__(self, work: GroupWork, size: int, pipes: Sequence[Connection]) -> None:
        self.sum: Floats = np.frombuffer(mmap(-1, 8 * size), dtype=np.float64)
        self.pipe, there = multiprocessing.Pipe()
        self._employer = os.getpid()

        def serve() -> None:
            for ours in (*pipes, self.pipe):
                ours.close()  # or no worker would notice that this process is gone
            _serve(work, there, self.sum)

        self._process = multiprocessing.get_context("fork").Process(target=serve, daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the child uses no lock that another thread may hold.
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            self._process.start()
        there.close()

    def dismiss(self) -> None:
        """End the process, whatever it does."""
        if self._employer != os.getpid():
            return  # a fork has copies of all objects, but must not end the parent's workers
        self.pipe.close()
        self._process.terminate()
        self._process.join()


def _dismiss(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.dismiss()


def _added_up(
    work: GroupWork, assignment: Any, groups: Sequence[ClientGroup], how: Shortening, size: int
) -> ShortenedSum:
    return summed((chunk for group in groups for chunk in work(assignment, group)), how, size=size)


def _serve(work: GroupWork, pipe: Connection, total: Floats) -> None:
    """Do a worker's assignments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # and this is how; its own handlers are not for here
    torch.set_num_threads(1)
    with suppress(Exception), ieee():  # the parent meets the error again when it does the work itself
        while True:
            assignment, groups, shortening = pipe.recv()
            found = _added_up(work, assignment, groups, shortening, total.size)
            total[:] = found.total
            pipe.send(found.norms)
    pipe.close()
