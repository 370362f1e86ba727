"""What serves a pool: it hands out, takes answers through the desk, and remembers what it has seen go by."""

from dataclasses import replace

from incrowd.drawdiscard.desk import Reason
from incrowd.drawdiscard.pool import Instance
from incrowd.service.admission import Admission
from incrowd.service.store import HandedOut, PoolStore


class Tending:
    """A store and its desk, as requests use them.

    Guarantee: an answer is judged before it enters, and enters at most once; each answer counts under one reason. With
    an `admission` it enters on a token alone, and no account enters more in a day than that allows.

    Edge cases: an answer that was accepted before is `REPEATED` even where its parent is forgotten since, or another
    server took it. While the store is away all raise `StoreAway`.
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
