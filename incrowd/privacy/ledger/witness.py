"""A second memory of how far a ledger had come, so that an older copy of it, put back, does not go unnoticed."""

import json
import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

from incrowd.errors import LedgerDamaged, LedgerRolledBack, LedgerUnwritable
from incrowd.privacy.ledger.chain import Chain, check_own
from incrowd.privacy.ledger.state import sync


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How many entries a ledger had, and the hash of the last of them."""

    entries: int
    head: str


class Witness(ABC):
    """Something that remembers a ledger's latest mark: a file (`WitnessFile`), or the registry of all ledgers."""

    @abstractmethod
    def read(self) -> Mark | None:
        """The mark, or None where there is none."""

    @abstractmethod
    def write(self, mark: Mark) -> None:
        """Replace the mark; it is on disk afterwards. Only for who holds the ledger's write lock, so that marks never
        go back.
        """

    def check(self, chain: Chain) -> None:
        """The ledger still has every entry that the witness saw.

        Edge cases: a ledger with more entries is fine, since a crash may have come between. Without a witness, a ledger
        that has more than its first entry is refused: whether entries are missing could not be told.
        """
        mark = self.read()
        length = chain.length()
        if mark is None:
            if length > 1:
                raise LedgerRolledBack(
                    f"{chain.path} has lost its witness {self}: put that file back; if it is gone for good and "
                    "you know from elsewhere that no entry is missing, make a new one with `renew_witness`"
                )
        elif length < mark.entries:
            raise LedgerRolledBack(
                f"{chain.path} has {length} entries, its witness {self} saw {mark.entries}: put the latest copy "
                "of the ledger back; starting afresh on spent data is `incrowd ledger fresh`, which says so for good"
            )
        elif chain.hash_at(mark.entries - 1) != mark.head:
            raise LedgerRolledBack(
                f"{chain.path} is not the ledger that its witness {self} saw: entry {mark.entries - 1} is "
                "another. Put the right ledger back"
            )


@dataclass(frozen=True)
class WitnessFile(Witness):
    """A small JSON file that holds a ledger's latest mark; best kept on another disk than the ledger.

    Guarantee: whatever happens while it is written, the file holds the old mark or the new one, and the new one is on
    disk (fsync) when `write` returns. It is for this user alone (0600, whatever the umask).

    Edge cases: it cannot tell when ledger and witness are put back together; the registry can
    (`incrowd.privacy.ledger.registry`), and so can a head hash that was kept elsewhere (`Ledger.verify`). A witness
    that another user may write is refused with `LedgerMisplaced`.
    """

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> Mark | None:
        """See `Witness.read`."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerUnwritable(f"the witness {self.path} cannot be read ({error}): allow this user to") from error
        except UnicodeDecodeError as error:
            raise self._damaged() from error
        check_own(self.path)
        try:
            mark = Mark(**json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged() from error
        if type(mark.entries) is not int or mark.entries < 1 or type(mark.head) is not str:
            raise self._damaged()
        return mark

    def write(self, mark: Mark) -> None:
        """See `Witness.write`."""
        fresh = self.path.with_name(self.path.name + ".new")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                os.fchmod(descriptor, 0o600)
                file.write(json.dumps(asdict(mark)) + "\n")
                file.flush()
                os.fsync(descriptor)
            fresh.replace(self.path)
            sync(self.path.parent)
        except OSError as error:
            raise LedgerUnwritable(
                f"the witness {self.path} cannot be written ({error}): what was just charged stays charged, but "
                "nothing may be released for it; free some space or allow this user to write there"
            ) from error

    def _damaged(self) -> LedgerDamaged:
        return LedgerDamaged(f"the witness {self.path} is damaged: put an intact copy back")
