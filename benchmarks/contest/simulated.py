"""Whole runs of ours, on this machine's engine and on Flower's simulation, whose rounds are asked for one at a time."""

import hashlib
import multiprocessing
import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from contest.flower import SILENCE
from contest.peak import one_processor
from contest.works import CLIP_NORM, Task
from incrowd import Federation, FixedClip, IncrowdError, Private, RunOptions

Place = Literal["here", "on Ray"]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A run of so many rounds: where it is trained, and with how many processes of one thread each."""

    task: Task
    place: Place
    workers: int
    rounds: int


class RunProcess:
    """A run in a process of its own, which takes a round whenever it is asked to. It shows its weights at its end.

    Edge cases: a process that stops by itself is an error.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there, assignment))
        self._process.start()
        there.close()
        self.seconds_to_start: float = self._heard()

    def round(self, number: int) -> float:
        """Take the next round; its seconds, from having been asked to the round's row in the run's database."""
        self._pipe.send(number)
        seconds: float = self._heard()
        return seconds

    @property
    def number(self) -> int | None:
        """The process's number."""
        return self._process.pid

    def digest(self) -> str:
        """A digest of the weights that the run has released, after its last round."""
        self._pipe.send("the weights")
        found: str = self._heard()
        return found

    def close(self) -> None:
        """End the process, and Ray with it."""
        self._pipe.close()  # which the process takes for the end
        self._process.join(timeout=30)
        self._process.kill()

    def _heard(self) -> Any:
        try:
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise IncrowdError(f"the run {self.assignment.place} stopped: see above") from error


class _Turns:
    """A tracker that waits until the next round is asked for."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._begin = time.perf_counter()

    def start(self, settings: Mapping[str, Any], past: Sequence[object]) -> None:
        """See `Tracker.start`."""
        self._say(time.perf_counter() - self._begin)

    def round(self, record: object) -> None:
        """See `Tracker.round`."""
        self._say(time.perf_counter() - self._begin)

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """See `Tracker.end`."""

    def _say(self, seconds: float) -> None:
        self._pipe.send(seconds)
        self._pipe.recv()
        self._begin = time.perf_counter()


def federation_of(task: Task, *, threads: int, rounds: int) -> Federation:
    """Everyone of the cohort in every round, under seeded randomness."""
    return Federation(
        task.work.model(),
        replace(task.data, public=True),
        privacy=Private(
            epsilon=1e4,
            delta=1e-6,
            rounds=rounds,
            cohort=task.work.cohort,
            sampling="everyone",
            clip=FixedClip(clip_norm=CLIP_NORM),
        ),
        local=task.local,
        run=RunOptions(randomness="seeded", seed=0, threads=threads),
    )


def _serve(pipe: Connection, assignment: Assignment) -> None:
    os.environ.update(SILENCE)
    os.dup2(2, 1)  # nothing but results belongs on standard output
    warnings.simplefilter("ignore")
    from incrowd.flower import Simulation

    workers = assignment.workers
    with TemporaryDirectory(prefix="incrowd-bench-") as folder, one_processor() if workers == 1 else nullcontext():
        begin = _Turns(pipe)
        federation = federation_of(assignment.task, threads=workers, rounds=assignment.rounds)
        run = federation.start(Path(folder) / "run")
        try:
            if assignment.place == "here":
                run.train([begin])
            else:
                Simulation(workers=workers).train(run, [begin])
            pipe.send(hashlib.sha256((run.folder / "model.safetensors").read_bytes()).hexdigest())
        except EOFError:  # nobody asks any more
            pass
