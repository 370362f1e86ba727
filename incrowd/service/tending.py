"""What serves a pool: it hands out, takes answers through the desk, and shows figures, looked at now and then."""

import asyncio
import resource
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from incrowd._prometheus import metric
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.showing import PoolFigures, shown, three_adversaries
from incrowd.service.admission import Admission
from incrowd.service.store import HandedOut, PoolStore


def exposition(status: Mapping[str, Any], *, draws: int, refused: Mapping[str, int]) -> str:
    """The text. What is counted by the pool is all servers'; draws, refusals and memory are this process's own."""
    counts = (
        ("incrowd_accepted_total", "Answers in the pool.", {"": status["accepted"]}, ""),
        ("incrowd_repeated_total", "Answers that came again.", {"": status["repeated"]}, ""),
        ("incrowd_turned_away_total", "Answers that did not enter, by reason.", status["turned_away"], "reason"),
        ("incrowd_draws_total", "Instances that this process handed out.", {"": draws}, ""),
        ("incrowd_refused_requests_total", "Requests that this process refused, by reason.", refused, "reason"),
    )
    gauges = (
        ("incrowd_updates_per_second", "Accepted answers a second.", {"": status["updates_per_second"]}, ""),
        ("incrowd_spread", "How far instances are apart, measured and by theory.", status["spread"], "kind"),
        ("incrowd_store_up", "Whether the store is well.", {"": int(status["trouble"] is None)}, ""),
        ("process_resident_memory_bytes", "Memory of this process.", {"": resident()}, ""),
    )
    lines = [metric(name, told, dict(sorted(its.items())), label=by, kind="counter") for name, told, its, by in counts]
    return "".join([*lines, *(metric(name, told, its, label=by) for name, told, its, by in gauges)])


def resident() -> int:
    """The memory of this process in bytes; where the system does not tell, the most that it ever was."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


FRESH = 1.0
"""Figures are looked at again after so many seconds, whoever asks."""

_WINDOW = 10


class Tending:
    """A store and its desk, as requests use them.

    Guarantee: an answer is judged before it enters, and enters at most once; each answer counts under one reason. With
    an `admission` it enters on a token alone, and no account enters more in a day than that allows.

    An answer that was accepted before is `REPEATED` even where its parent is forgotten since, or another server took
    it. While the store is away all raise `StoreAway`.
    """

    def __init__(self, store: PoolStore, admission: Admission | None = None) -> None:
        self.store, self.admission = store, admission
        self.accepted = 0

    async def draw(self) -> HandedOut:
        """A random instance."""
        instance = await self.store.draw()
        self.accepted = instance.accepted
        return instance

    async def offer(self, update: Instance, ticket: bytes, token: str = "") -> tuple[Reason, HandedOut | None]:
        """What became of an answer, and the next instance where it counts."""
        store = self.store
        visit = None if self.admission is None else self.admission.visit(token)
        if self.admission is not None and visit is None:
            return self._counted(Reason.NOT_ADMITTED), None
        answer = store.desk.read(update, ticket)
        if isinstance(answer, Reason):
            return self._counted(answer), None
        answer = replace(answer, visit=visit)
        parent = await store.parent(answer)
        reason = parent if isinstance(parent, Reason) else store.desk.judge(answer, parent)
        if reason is None:
            reason, instance = await store.enter(answer)
            self.accepted = instance.accepted
            return self._counted(reason), None if reason is Reason.DAY_OVER else instance
        if reason is Reason.REPEATED or await store.repeated(answer):
            return self._counted(Reason.REPEATED), await self.draw()
        return self._counted(reason), None

    def _counted(self, reason: Reason) -> Reason:
        if reason is not Reason.ACCEPTED:
            self.store.count(reason.name.lower())
        return reason


class Board:
    """The figures of a pool, at most `FRESH` seconds old.

    However many ask, the pool is looked at once in that time, and computing goes on in a thread of its own. What is
    shown depends on contributions only through released weights and on how many came.
    """

    def __init__(self, tending: Tending) -> None:
        self._tending = tending
        self._turn = asyncio.Lock()
        self._seen: tuple[PoolFigures, dict[str, Any]] | None = None
        self._looked = 0.0
        self._ticks: deque[tuple[float, int]] = deque(maxlen=_WINDOW + 1)

    async def figures(self) -> PoolFigures:
        """The pool's figures."""
        return (await self._look())[0]

    async def status(self) -> dict[str, Any]:
        """The figures, the promise, and how the service is at present."""
        tending, (_, known) = self._tending, await self._look()
        admission = "open" if tending.admission is None else "by token"
        return {**known, "updates_per_second": self.rate, "trouble": tending.store.trouble, "admission": admission}

    def tick(self) -> None:
        """Note how many were accepted by now; once a second."""
        self._ticks.append((time.monotonic(), self._tending.accepted))

    @property
    def rate(self) -> float:
        """Accepted answers a second, over the last seconds."""
        if len(self._ticks) < 2:
            return 0.0
        (since, before), (now, accepted) = self._ticks[0], self._ticks[-1]
        return max(0.0, (accepted - before) / (now - since)) if now > since else 0.0

    async def _look(self) -> tuple[PoolFigures, dict[str, Any]]:
        async with self._turn:
            if self._seen is None or time.monotonic() - self._looked >= FRESH:
                figures = await self._tending.store.figures()
                self._seen = figures, await asyncio.to_thread(self._shown, figures)
                self._looked = time.monotonic()
                self._tending.accepted = max(self._tending.accepted, figures.accepted)
            return self._seen

    def _shown(self, figures: PoolFigures) -> dict[str, Any]:
        return shown(self._tending.store.desk.specification, figures, views=self._views)

    @cached_property
    def _views(self) -> list[dict[str, Any]]:
        return three_adversaries(self._tending.store.desk.specification)
