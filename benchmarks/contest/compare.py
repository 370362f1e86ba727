"""Competitors take turns at the same work, after their results have been compared."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np

from contest.flower import FlowerProcess
from contest.lean import Lean
from contest.memory import large_round
from contest.ours import Ours
from contest.peak import describe, matrix_peak, one_processor, processors
from contest.pfl import Pfl
from contest.report import Match, Report, Timing
from contest.works import CLIP_NORM, Task, Work
from harness import checks
from harness.arrays import Floats
from incrowd import ConfigError, DataError, IncrowdError
from incrowd.learning import Execution, ieee, one_thread

PEERS = {
    "lean": ("torch", "pip install 'incrowd[train]'"),
    "pfl": ("pfl", "pip install pfl==0.6.0"),
    "flower": ("flwr", "pip install 'incrowd[flower]'"),
}
"""Whom to compare with: the package that each needs, and how to get it."""

ELSEWHERE = {"opacus": "it trains on records: give --work records"}

ALIKE = 0.1
"""How far two sums may be apart, as a share of what other batches change.

Rounding alone moves a sum by 1e-7 of its norm, and whole steps of our grid by up to 1e-3. But where it pushes a unit
over the kink of its rectifier, a client goes another way from there on, so no fixed tolerance fits all models.
"""

LEAST = 2e-3
"""So far two sums may be apart in any case: where a batch is all examples, other batches change nothing."""

STEP = 2.0**-19
"""What every number of a contribution is rounded to, towards zero, beside the bound of its norm."""

SHORT = 100
"""Of how many examples a pass is short: it carries rounding less far than a whole one may, to wholly other weights."""


TURN = 0.5
"""Seconds that a turn lasts at least: a run has its rounds one after the other, too, and short ones are many."""


class OtherWork(IncrowdError):
    """Somebody computes something else than we do."""


class Competitor(Protocol):
    """Something that can do a task."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    @property
    def threads(self) -> int:
        """How many threads it computes with."""
        ...

    def update(self) -> Floats:
        """The sum of the clipped contributions to the first weights in round 0, without noise."""
        ...

    def round(self, number: int) -> float:
        """Do a whole private round; its seconds."""
        ...

    def close(self) -> None:
        """Give back what it holds."""
        ...


Factory = Callable[[Task], Competitor]


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What to measure: every work at every batch size, against these, in so many turns of a round or more."""

    works: Sequence[Work]
    batch_sizes: Sequence[int] = (10, 100)
    against: Sequence[str] = tuple(PEERS)
    folder: Path | None = None
    turns: int = 3
    turn_s: float = TURN
    memory: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        checks.count(turns=self.turns)
        Execution(device=self.device)  # which refuses one that is not there
        for field, values in (("work", self.works), ("batch", self.batch_sizes)):
            if not values:
                raise ConfigError(field=field, value=values, remedy="name at least one")
        for name in self.against:
            if name not in PEERS:
                remedy = ELSEWHERE.get(name, f"give one or several of {', '.join((*PEERS, *ELSEWHERE))}")
                raise ConfigError(field="against", value=name, remedy=remedy)

    @property
    def tasks(self) -> list[Task]:
        """The works at all batch sizes."""
        sizes = self.batch_sizes
        shared = partial(Task, folder=self.folder, device=self.device)
        return [shared(work=work, batch_size=size) for work in self.works for size in sizes]

    @property
    def skipped(self) -> dict[str, str]:
        """Who cannot take part here, and why."""
        missing = [name for name in self.against if find_spec(PEERS[name][0]) is None]
        skipped = {name: f"not installed: {PEERS[name][1]}" for name in missing}
        if self.device != "cpu":
            alone = {"flower": "it is measured on processors only", "incrowd on 2 threads": "an accelerator has one"}
            skipped |= {name: why for name, why in alone.items() if name in (*self.against, "incrowd on 2 threads")}
        elif len(processors()) < 2:
            skipped["incrowd on 2 threads"] = "this process may use one processor only"
        return skipped

    def run(self, say: Callable[[str], object] = lambda _: None) -> Report:
        """Measure; `say` hears of the progress."""
        machine = describe(self.device) | {"data": "synthetic" if self.folder is None else "MNIST"}
        matches, skipped = [], self.skipped
        with FlowerProcess() as flower:
            others = self._others(flower)
            for task in self.tasks:
                say(f"{task.name}: incrowd, {', '.join(others)}")
                try:
                    matches.append(match(task, others, turns=self.turns, seconds=self.turn_s))
                except DataError:  # there is nothing to measure on
                    raise
                except Exception as error:  # what the other works took minutes for is not lost
                    if not matches and task == self.tasks[-1]:
                        raise
                    skipped[task.name] = str(error) or type(error).__name__
        memory = None
        if self.memory:
            say("a large round, for its memory")
            memory = large_round(self.folder)
        return Report.of(matches, skipped=skipped, machine=machine, memory=memory)

    def _others(self, flower: FlowerProcess) -> dict[str, Factory]:
        known: dict[str, Factory] = {"lean": Lean, "pfl": Pfl, "flower": flower.competitor}
        others = {name: factory for name, factory in known.items() if name in self.against}
        others["incrowd on 2 threads"] = partial(Ours, threads=2)
        return {name: factory for name, factory in others.items() if name not in self.skipped}


def match(task: Task, others: Mapping[str, Factory], *, turns: int, seconds: float = 0.0) -> Match:
    """One task: check that all do the same work, which also warms them up; then let them take turns of so many seconds,
    and of one round at least.

    Edge cases: an error that names whoever computes something else than we do, before anything is timed.
    """
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        stack.enter_context(ieee(task.device))  # on an accelerator torch's own convolutions are not float32 otherwise
        ours = stack.enter_context(closing(Ours(task)))
        players: list[Competitor] = [ours, *(stack.enter_context(closing(make(task))) for make in others.values())]
        try:
            found = differences(task, ours, players)
        except OtherWork:
            if not _alike_at_first(task, others):
                raise
            found = differences(task, ours, players, alike=math.inf)
        taken: list[list[float]] = [[] for _ in players]
        peaks = []
        for _ in range(turns):
            for player, own in zip(players, taken, strict=True):
                with one_processor() if player.threads == 1 and task.device == "cpu" else nullcontext():
                    take_turn(player, own, seconds)
            peaks.append(matrix_peak(device=task.device))
        timings = [
            Timing(name=player.name, threads=player.threads, seconds=own, difference=difference)
            for player, own, difference in zip(players, taken, found, strict=True)
        ]
        return Match(task=task, timings=timings, overheads=ours.overheads, peak=max(peaks))


def take_turn(player: Competitor, taken: list[float], seconds: float) -> None:
    """Rounds one after the other, as in a run: the first of a turn finds in the caches what others have left."""
    begin = time.perf_counter()
    while True:
        taken.append(player.round(len(taken)))
        if time.perf_counter() - begin >= seconds:
            return


def differences(task: Task, ours: Ours, players: Sequence[Competitor], *, alike: float = ALIKE) -> list[float]:
    """How far everyone's sum is from ours, relative to it.

    Edge cases: one that differs by more than rounding does is an error that names whose it is.
    """
    expected = ours.update()
    other_batches = _apart(ours.update(round=1), expected)
    found = []
    for player in players:
        found.append(0.0 if player is ours else _apart(player.update(), expected))
        if not found[-1] <= max(alike * other_batches, LEAST, _rounded(expected, task.work.cohort)):
            raise OtherWork(
                f"{player.name} does other work than incrowd at {task.name}: their sums of contributions differ by "
                f"{found[-1]:.2g}, where other batches make {other_batches:.2g}; nothing was timed"
            )
    return found


def _rounded(total: Floats, contributions: int) -> float:
    """How far whole steps take such a sum, relative to it: half a step a number and contribution, all in one direction.

    Steps of little length, over few examples, make contributions far shorter than the bound, to which steps belong.
    """
    return float(contributions * CLIP_NORM * STEP / 2 * math.sqrt(total.size) / np.linalg.norm(total))


def _apart(update: Floats, expected: Floats) -> float:
    return float(np.linalg.norm(update - expected) / np.linalg.norm(expected))


def _alike_at_first(task: Task, others: Mapping[str, Factory]) -> bool:
    """Whether all do the same work in a short pass, which tells chaos from another computation."""
    short = replace(task, work=replace(task.work, examples=max(SHORT, task.batch_size)))
    if short.work.examples >= task.work.examples:
        return False
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Ours(short)))
        try:
            differences(short, ours, [stack.enter_context(closing(make(short))) for make in others.values()])
        except OtherWork:
            return False
    return True
