"""Where a pool lies: in this process with a file behind it, or in a Redis that several processes share.

Both do the same for the desk in front of them, and are held to it by one suite of tests.
"""

from typing import NamedTuple, Protocol

from incrowd.drawdiscard.desk import Desk, Reason, Returned
from incrowd.drawdiscard.pool import Instance
from incrowd.drawdiscard.showing import PoolFigures
from incrowd.errors import IncrowdError


class StoreAway(IncrowdError):
    """The store does not answer at present; nothing is known of what was asked of it last."""


class HandedOut(NamedTuple):
    """A version of the pool to hand out, and how many answers were accepted so far."""

    version: int
    row: Instance
    accepted: int


class PoolStore(Protocol):
    """A pool, the digests of what it took, the key of its tickets and its counts.

    Guarantee (of every store): `enter` happens as a whole or not at all, and merges an answer once, however often and
    through however many desks it comes. A row never changes: an answer makes a new version. The random choices are
    those of `Pool`, from the same named streams.

    Edge cases: a store that cannot be reached raises `StoreAway`; whoever asked may ask again.
    """

    @property
    def desk(self) -> Desk:
        """What looks at answers; its key is the store's."""
        ...

    @property
    def paused(self) -> bool:
        """Whether answers are to wait."""
        ...

    @property
    def trouble(self) -> str | None:
        """What is wrong with the store at present, for who looks after it."""
        ...

    async def open(self) -> None:
        """Begin, or go on from what is there."""
        ...

    async def draw(self) -> HandedOut:
        """A random instance."""
        ...

    async def parent(self, answer: Returned) -> Instance | Reason | None:
        """What an answer was drawn from; None where that is forgotten, `REPEATED` where the answer is known already."""
        ...

    async def repeated(self, answer: Returned) -> bool:
        """Whether an answer was accepted before, by any desk of this pool."""
        ...

    async def enter(self, answer: Returned) -> tuple[Reason, HandedOut]:
        """Merge an answer into a random instance; the next instance to hand out comes with it."""
        ...

    async def figures(self) -> PoolFigures:
        """What a page and a monitor show."""
        ...

    def count(self, reason: str) -> None:
        """Count something that happened to an answer."""
        ...

    async def pause(self, *, paused: bool) -> None:
        """Let answers wait, or go on."""
        ...

    async def keep(self) -> None:
        """Put on disk what is not there yet."""
        ...

    async def close(self) -> None:
        """Keep everything, and let go."""
        ...
