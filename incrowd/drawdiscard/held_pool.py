"""A pool that a server holds in memory: the desk in front of it, what it took, and the folder behind it."""

from collections import Counter, OrderedDict
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from incrowd._random import Randomness, SystemRandomness
from incrowd.drawdiscard.desk import LIFETIME, Desk, Reason, Returned, Visit
from incrowd.drawdiscard.kept_pool import Keepsake, KeptPool
from incrowd.drawdiscard.pool import HISTORY, Instance, Pool
from incrowd.drawdiscard.specification import Specification
from incrowd.drawdiscard.tickets import KEY_BYTES
from incrowd.errors import DataError

REMEMBERED = 4096
"""So many of the last accepted answers are known again, at least: see `known_again`."""

AFTER_A_CRASH = 2**32
"""So many numbers of versions are left out after one: some of those may have been handed out and forgotten."""


class HeldPool:
    """The pool of a specification, fresh or as its folder has it; one thread at a time.

    Guarantee: what `write` kept goes on bit for bit under seeded randomness. An answer is merged once, however often
    it comes. The number of a version that may have been lost in a crash is never given to another row.

    Edge cases: see `KeptPool`; without a folder all is forgotten with the process.
    """

    def __init__(
        self,
        specification: Specification,
        *,
        folder: Path | None = None,
        turned_away: float = 0.01,
        history: int = HISTORY,
        lifetime: int = LIFETIME,
        randomness: Randomness | None = None,
    ) -> None:
        source = randomness or SystemRandomness()
        fresh = source.stream("tickets").bits(KEY_BYTES // 8).tobytes()
        self.desk = Desk(
            specification, key=fresh, turned_away=turned_away, lifetime=lifetime, randomness=source
        )  # refuses before it takes
        self.turned: Counter[str] = Counter()
        self.paused = False
        self._day, self._visits, self._unkept = "", Counter[bytes](), dict[bytes, int]()
        self._known_again = known_again(history=history, instances=specification.instances)
        self._taken: OrderedDict[bytes, None] = OrderedDict()
        self._kept = None if folder is None else KeptPool(folder, specification=specification.to_json())
        with ExitStack() as refused:
            refused.callback(self.close)
            self.pool = fresh_pool(specification, source, history=history)
            if self._kept is not None:
                key = self._kept.key(fresh)
                self.desk = Desk(specification, key=key, turned_away=turned_away, lifetime=lifetime, randomness=source)
                self._go_on(self._kept, source, history)
            refused.pop_all()

    def parent(self, answer: Returned) -> Instance | Reason | None:
        """What an answer was drawn from; None where that is forgotten, `REPEATED` where the answer is known already."""
        return Reason.REPEATED if answer.digest in self._taken else self.pool.version(answer.ticket.version)

    def enter(self, answer: Returned) -> Reason:
        """Merge an answer into a random instance, unless it is in there already."""
        if answer.digest in self._taken:
            return Reason.REPEATED
        if answer.visit is not None and not self._admitted(answer.visit):
            return Reason.DAY_OVER
        self.pool.take(answer.weights)
        self._taken[answer.digest] = None
        if len(self._taken) > self._known_again:
            self._taken.popitem(last=False)
        return Reason.ACCEPTED

    def _admitted(self, visit: Visit) -> bool:
        """Count an answer of an account, unless it has had those of the day; a clock put back brings no day back."""
        if visit.day > self._day:
            self._day = visit.day
            self._visits.clear()
            self._unkept.clear()
        if visit.day < self._day or self._visits[visit.account] >= visit.most:
            return False
        self._visits[visit.account] += 1
        self._unkept[visit.account] = self._visits[visit.account]
        return True

    def keepsake(self) -> Keepsake:
        """All there is to keep, at this moment; taking it costs next to nothing."""
        test = {name: np.array(array) for name, array in self.desk.test.state().items()}
        visits = self._day, dict(self._unkept)
        return Keepsake(self.pool.state(), test, tuple(self._taken), dict(self.turned), self.paused, visits)

    def write(self, keepsake: Keepsake, *, clean: bool) -> None:
        """Put it on disk. `clean` says that nothing will have been accepted since, should this be the last."""
        if self._kept is not None:
            self._kept.write(keepsake, clean=clean)
            for account, count in keepsake.visits[1].items():
                if self._unkept.get(account) == count:
                    del self._unkept[account]

    def close(self) -> None:
        """Let go of the folder, as it is."""
        if self._kept is not None:
            self._kept.close()

    def _go_on(self, kept: KeptPool, source: Randomness, history: int) -> None:
        found = kept.read()
        if found is None:
            return
        asked = self.desk.specification
        shape = len(found.pool.rows), len(found.pool.rows[0])
        if shape != (asked.instances, asked.size):
            raise DataError(f"the pool of that folder has instances {shape}, not {(asked.instances, asked.size)}")
        lost = 0 if kept.clean else AFTER_A_CRASH
        self.pool = Pool.restore(
            found.pool, randomness=source, lost=lost, merge=asked.merge, tail=asked.tail, history=history
        )
        self.desk.test.restore(found.test)
        self._taken = OrderedDict.fromkeys(found.taken)
        self.turned, self.paused = Counter(found.turned), found.paused
        self._day, self._visits = found.visits[0], Counter(found.visits[1])


def known_again(*, history: int, instances: int) -> int:
    """How many of the last accepted answers have to be known again, so that none is taken twice.

    A version that was answered is replaced at some time and forgotten `history` answers later, and then all that was
    drawn from it is late. One version in ten million outlives sixteen answers an instance.
    """
    return max(REMEMBERED, history + 16 * instances)


def fresh_pool(specification: Specification, randomness: Randomness, *, history: int = HISTORY) -> Pool:
    """The pool that a specification begins with: around zero, as far apart as answers will keep it."""
    return Pool.initial(
        np.zeros(specification.size),
        instances=specification.instances,
        update_variance=specification.update_variance,
        randomness=randomness,
        merge=specification.merge,
        tail=specification.tail,
        history=history,
    )
