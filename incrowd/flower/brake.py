"""What holds a party back, whatever it trains: its memory, its ledger and the owner's limits, in a folder."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd import _files
from incrowd.errors import IncrowdError, LedgerRolledBack, SpecificationRefused
from incrowd.flower.given import LEDGER, MEMORY
from incrowd.flower.history import DIGEST, chained
from incrowd.flower.memory import PartyMemory
from incrowd.flower.policy import PartyPolicy
from incrowd.flower.wire import Request
from incrowd.privacy.account.accounting import Relation
from incrowd.privacy.daily import DailyLimit
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.ledger.tally import DataIdentity

TURN = "party.lock"
MOST_OFFERED = 2**26
"""Bytes of accepted offers: an offer may be so small a part of a budget that this has no other end."""

ProtectedUnit = Literal["client", "record"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Identity:
    """Who a party is, and whom it listens to: its name and key, and the public key of the server."""

    name: str
    key: Ed25519PrivateKey = field(repr=False)
    server: Ed25519PublicKey

    @property
    def server_name(self) -> str:
        """What a ledger notes of the server: a part of its key's SHA-256."""
        return hashlib.sha256(self.server.public_bytes_raw()).hexdigest()[:16]


class Brake:
    """The folder of a party: what it was asked and has answered, what it has spent, and who has its turn.

    Guarantee: one answer a round, and rounds in order, through all lives of the party: see `kept`. There is one ledger
    for all plans of all servers, of the policy's budget, and a day's charges cost at most what the policy allows.

    Edge cases: two processes of one party wait for each other. A clock that is put back does not bring a day back.
    """

    def __init__(
        self, folder: Path, *, identity: Identity, policy: PartyPolicy, unit: ProtectedUnit, today: Callable[[], date]
    ) -> None:
        _files.folder(folder)
        self.folder = folder
        self.unit = unit
        self.identity = identity
        self.policy = policy
        self.memory = PartyMemory.open(folder / MEMORY)
        self.turn = _files.Turn(folder / TURN)
        self._today = today
        self._ledger: Ledger | None = None

    def close(self) -> None:
        """Let go of the files."""
        self.memory.close()
        if self._ledger is not None:
            self._ledger.close()

    @contextmanager
    def noting(self, plan: str, number: int | None, *refusals: type[IncrowdError]) -> Iterator[None]:
        """Note what is refused of a plan and round; of its offer there is no round."""
        try:
            yield
        except refusals as error:
            self.note(str(error), plan, number)
            raise

    def note(self, why: str, plan: str, number: int | None) -> None:
        """Note, for the owner of the data, what was not done and why."""
        self.memory.refuse(why, server=self.identity.server_name, plan=plan, number=number)

    def check_offers(self, frame: object) -> None:
        """Refuse (`SpecificationRefused`) an offer that there is no place for: each is kept for good."""
        more = len(frame) if isinstance(frame, bytes) else 0
        if self.memory.offered() + more > MOST_OFFERED:
            raise SpecificationRefused(f"this party keeps no more than {MOST_OFFERED} bytes of offers")

    def kept(self, request: Request) -> bytes | None:
        """The answer that was given to this question before; None for one that is new, or was not answered yet.

        Edge cases: another question in a round that was asked for, a round before the last, and a server that does not
        know what it asked before: `SpecificationRefused`.
        """
        plan, number = request.place.plan, request.place.round
        before, last = self.memory.question(plan, number), self.memory.last(plan)
        if before is not None and before.digest != request.digest:
            raise SpecificationRefused(
                f"another question was asked in round {number}: the server was restarted from nothing or from an old "
                "copy, or there are two of it"
            )
        if before is not None and before.answer is not None:
            return before.answer
        if number < last:
            raise SpecificationRefused(
                f"round {number} comes after round {last}: the server was restarted from nothing or from an old copy"
            )
        self._check_history(request, last)
        return None

    def take_up(self, request: Request) -> None:
        """Remember a question, before anything is done for it."""
        plan, number = request.place.plan, request.place.round
        if self.memory.question(plan, number) is None:
            whole = chained(request.history + bytes.fromhex(request.digest))
            self.memory.take_up(plan, number, request.digest, whole)

    def _check_history(self, request: Request, last: int) -> None:
        """Refuse a server that does not know what this party was asked last, and all that was asked before that."""
        if len(request.history) != DIGEST * request.place.round:
            raise SpecificationRefused("a question that does not say what was asked in the rounds before it")
        known = self.memory.question(request.place.plan, last)
        whole = request.history + bytes.fromhex(request.digest)
        if known is not None and chained(whole[: DIGEST * (last + 1)]) != known.history:
            raise SpecificationRefused(
                f"up to round {last} the server says it asked something else than it did: it was restarted from an old "
                "copy, or there are two of it"
            )

    def ledger(self, relation: Relation) -> Ledger:
        """The party's ledger, begun where there is none.

        Edge cases: one whose prices are those of another promise: `SpecificationRefused`, or, in the process that opens
        it, `LedgerMismatch`, as one that protects another unit. None is begun by a party that has accepted an offer
        before, whose ledger is lost: `LedgerRolledBack`.
        """
        if self._ledger is None:
            self._ledger = self._opened(relation)
        if self._ledger.relation != relation:
            raise SpecificationRefused(
                f"the plan is priced under {relation.name}, and this party's ledger under {self._ledger.relation.name}"
            )
        return self._ledger

    def check_ledger(self) -> None:
        """See, before any question, that a ledger which was begun is there and is what is stated now.

        Edge cases: as `ledger`: for the party's owner, while a server is told nothing.
        """
        if self._ledger is None and (self.memory.offered() or any(self.folder.glob(f"{LEDGER}*"))):
            self._ledger = self._opened(None)

    def _opened(self, relation: Relation | None) -> Ledger:
        path = self.folder / LEDGER
        if self.memory.offered() and not path.exists():
            raise LedgerRolledBack(f"{path} is gone, and this party has accepted offers on it: put it back")
        own = DataIdentity(name=self.identity.name, unit=self.unit)
        return Ledger.open(path, budget=self.policy.budget, relation=relation, data_identity=own)

    def daily(self, ledger: Ledger) -> DailyLimit:
        """The owner's limit for a day."""
        return DailyLimit(ledger=ledger, epsilon=self.policy.daily_epsilon, today=self._today)
