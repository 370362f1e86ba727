"""The service of one pool: it hands out instances, judges answers before they enter, and reports figures."""

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

from incrowd._log import metric
from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.server import PoolFigures, shown, three_adversaries
from incrowd.service.admission import Admission
from incrowd.service.store import HandedOut, PoolStore

FRESH_S = 1.0
_RATE_SECONDS = 10


class PoolService:
    """The requests and figures of a store's pool.

    Guarantee: an answer is judged before it enters, and enters at most once; the pool counts each refused answer under
    one reason. An `admission` requires a token, and limits the accepted answers of an account in a day. Figures depend
    on contributions through released weights and their number alone.

    Edge cases: an answer that was accepted before is `REPEATED`, also after its parent was forgotten or another server
    took it. All methods raise `StoreAway` while the store is away. Figures are at most `FRESH_S` seconds old, however
    many clients read them.
    """

    def __init__(self, store: PoolStore, admission: Admission | None = None) -> None:
        self.store, self.admission = store, admission
        self.accepted = 0
        self._turn = asyncio.Lock()
        self._seen: tuple[PoolFigures, dict[str, Any]] | None = None
        self._seen_at = 0.0
        self._ticks: deque[tuple[float, int]] = deque(maxlen=_RATE_SECONDS + 1)

    async def draw(self) -> HandedOut:
        """Hand out a random instance."""
        instance = await self.store.draw()
        self.accepted = instance.accepted
        return instance

    async def offer(self, update: Instance, ticket: bytes, token: str = "") -> tuple[Reason, HandedOut | None]:
        """Judge an answer and enter it; an answer that counts brings the next instance."""
        store, visit = self.store, None
        if self.admission is not None:
            visit = self.admission.visit(token)
            if visit is None:
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
            self.store.turned[reason.name.lower()] += 1
        return reason

    async def figures(self) -> PoolFigures:
        """Return the pool's figures."""
        return (await self._look())[0]

    async def status(self) -> dict[str, Any]:
        """Return the figures, the promise and the present state of the service."""
        known = (await self._look())[1]
        admission = "open" if self.admission is None else "by token"
        return {**known, "updates_per_second": self.rate, "trouble": self.store.trouble, "admission": admission}

    def tick(self) -> None:
        """Note the number of accepted answers; the service calls this once a second."""
        self._ticks.append((time.monotonic(), self.accepted))

    @property
    def rate(self) -> float:
        """Accepted answers a second, over the last seconds."""
        if len(self._ticks) < 2:
            return 0.0
        (since, before), (now, accepted) = self._ticks[0], self._ticks[-1]
        return max(0.0, (accepted - before) / (now - since)) if now > since else 0.0

    async def _look(self) -> tuple[PoolFigures, dict[str, Any]]:
        async with self._turn:
            if self._seen is None or time.monotonic() - self._seen_at >= FRESH_S:
                figures = await self.store.figures()
                self._seen = figures, await asyncio.to_thread(self._shown, figures)
                self._seen_at = time.monotonic()
                self.accepted = max(self.accepted, figures.accepted)
            return self._seen

    def _shown(self, figures: PoolFigures) -> dict[str, Any]:
        return shown(self.store.desk.specification, figures, views=self._adversaries)

    @cached_property
    def _adversaries(self) -> list[dict[str, Any]]:
        return three_adversaries(self.store.desk.specification)


def prometheus_text(status: Mapping[str, Any], *, draws: int, refused: Mapping[str, int]) -> str:
    """Write the figures for Prometheus. All servers share the pool's counts; draws, refusals and memory are this
    process's.
    """
    counts = (
        ("incrowd_accepted_total", "Answers in the pool.", {"": status["accepted"]}, ""),
        ("incrowd_repeated_total", "Answers that came again.", {"": status["repeated"]}, ""),
        ("incrowd_turned_away_total", "Answers that did not enter, by reason.", status["turned_away"], "reason"),
        ("incrowd_draws_total", "Instances that this process handed out.", {"": draws}, ""),
        ("incrowd_refused_requests_total", "Requests that this process refused, by reason.", refused, "reason"),
    )
    gauges = (
        ("incrowd_updates_per_second", "Accepted answers a second.", {"": status["updates_per_second"]}, ""),
        ("incrowd_spread", "Spread over the instances, measured and by theory.", status["spread"], "kind"),
        ("incrowd_store_up", "Whether the store is well.", {"": int(status["trouble"] is None)}, ""),
        ("process_resident_memory_bytes", "Memory of this process.", {"": resident_bytes()}, ""),
    )
    lines = [metric(name, told, dict(sorted(its.items())), label=by, kind="counter") for name, told, its, by in counts]
    return "".join([*lines, *(metric(name, told, its, label=by) for name, told, its, by in gauges)])


def resident_bytes() -> int:
    """Return the memory of this process; its maximum so far on a system without /proc."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
