"""Several runs side by side, a process each; interruptions that are not lost."""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar

import torch

from incrowd import _validate
from incrowd.errors import IncrowdError
from incrowd.learning.workers import CAN_FORK
from incrowd.runs.database import Record
from incrowd.types import Facts

Job = TypeVar("Job")

_A_MOMENT = 0.01  # seconds


def side_by_side(
    tasks: Sequence[Job], *, jobs: int, first: Callable[[Job], None], work: Callable[[Job], None]
) -> Iterator[Job]:
    """Do the work on each task, at most `jobs` at a time; yields every task when it is done.

    `first` happens here, in the order of the tasks, right before a task's work begins. The processes are forked, so
    they see what this one has loaded, and compute with one thread. With one job, or where processes cannot fork, the
    work happens here, too.

    Edge cases: after a failure the tasks that have begun end, no other begins, and the first error is raised (as
    `IncrowdError` if it happened in a process). The number of failures may be secret.
    An interruption interrupts all.
    """
    _validate.count(jobs=jobs)
    if jobs == 1 or not CAN_FORK:
        for task in tasks:
            first(task)
            work(task)
            yield task
        return
    waiting, running, failures = list(tasks), dict[int, _Process[Job]](), list[str]()
    try:
        while running or (waiting and not failures):
            while waiting and not failures and len(running) < jobs:
                task = waiting.pop(0)
                first(task)
                with interrupted_later():
                    begun = _Process.begin(task, work)
                    running[begun.sentinel] = begun
            ready = wait(list(running))
            for sentinel in [one for one in running if one in ready]:
                ended = running.pop(sentinel)
                failure = ended.failure()
                if failure is None:
                    yield ended.task
                else:
                    failures.append(failure)
    finally:
        for process in running.values():
            process.stop()
    if failures:
        raise IncrowdError(failures[0])


class Orphan:
    """A tracker that stops a run, resumable, when the process that was to wait for it is gone."""

    def __init__(self) -> None:
        self._parent = os.getppid()

    def start(self, settings: Facts, past: Sequence[Record]) -> None:
        """See `Tracker.start`."""

    def round(self, record: Record) -> None:
        """See `Tracker.round`."""
        if multiprocessing.parent_process() is not None and os.getppid() != self._parent:
            raise KeyboardInterrupt

    def end(self, summary: Facts | None) -> None:
        """See `Tracker.end`."""


@dataclass(frozen=True, kw_only=True)
class _Process(Generic[Job]):
    """A process with its task, seen from here."""

    task: Job
    process: "multiprocessing.context.ForkProcess"
    pipe: Connection

    @classmethod
    def begin(cls, task: Job, work: Callable[[Job], None]) -> "_Process[Job]":
        here, there = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_serve, args=(task, work, there))
        with warnings.catch_warnings():
            # Python 3.12 warns of forks beside threads; the child uses no lock that another thread may hold.
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            process.start()
        there.close()
        return cls(task=task, process=process, pipe=here)

    @property
    def sentinel(self) -> int:
        return self.process.sentinel

    def failure(self) -> str | None:
        """Why a process that has ended did not do its task, if it did not."""
        self.process.join()
        message = None
        with suppress(EOFError):
            message = self.pipe.recv() if self.pipe.poll() else None
        self.pipe.close()
        return message or (
            f"a run's process ended with status {self.process.exitcode}" if self.process.exitcode else None
        )

    def stop(self) -> None:
        """Let the process come to a point from which its task can go on later, and end."""
        self.process.terminate()
        self.process.join()
        self.pipe.close()


def _serve(task: Job, work: Callable[[Job], None], pipe: Connection) -> None:
    """The work of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # and this is how: as an interruption
    torch.set_num_threads(1)
    try:
        with again_where_dropped(signal.SIGTERM):
            work(task)
    except KeyboardInterrupt:
        pipe.send("a run was stopped")
    except IncrowdError as error:
        pipe.send(str(error))


@contextmanager
def again_where_dropped(number: int = signal.SIGINT) -> Iterator[None]:
    """Python drops what is raised in a finalizer or in a weak reference's callback: an interruption that it drops in
    here comes once more a moment later, as the signal of this number, and no word is printed about it.

    Edge cases: other errors that Python drops are told as ever.
    """
    told = sys.unraisablehook

    def dropped(what: "sys.UnraisableHookArgs") -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            threading.Timer(_A_MOMENT, os.kill, (os.getpid(), number)).start()
        else:
            told(what)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = told


@contextmanager
def interrupted_later() -> Iterator[None]:
    """An interruption waits until this is over: while Python forks it would be dropped between two steps that belong
    together.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came = list[int]()
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)
