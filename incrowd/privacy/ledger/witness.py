"""A second memory of how far a ledger had come, so that an older copy of it, put back, does not go unnoticed."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from incrowd import _files
from incrowd.errors import LedgerDamaged, LedgerRolledBack, LedgerUnwritable
from incrowd.privacy.ledger.chain import Chain


@dataclass(frozen=True, kw_only=True)
class Mark:
    """How many entries a ledger had, and the hash of the last of them."""

    entries: int
    head: str


@dataclass(frozen=True)
class Witness:
    """A small JSON file that holds a ledger's latest mark; best kept on another disk than the ledger.

    Guarantee: whatever happens while it is written, the file holds the old mark or the new one, and the new one is on
    disk (fsync) when `write` returns.

    Edge cases: it cannot tell when ledger and witness are put back together. Against that, keep a head hash elsewhere
    (on paper, in a log of another machine) and have it looked up by `Ledger.verify`.
    """

    path: Path

    def read(self) -> Mark | None:
        """The mark, or None where there is no file."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerUnwritable(f"the witness {self.path} cannot be read ({error}): allow this user to") from error
        except UnicodeDecodeError as error:
            raise self._damaged() from error
        try:
            mark = Mark(**json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged() from error
        if type(mark.entries) is not int or mark.entries < 1 or type(mark.head) is not str:
            raise self._damaged()
        return mark

    def write(self, mark: Mark) -> None:
        """Replace the mark. Only for who holds the ledger's write lock, so that marks never go back."""
        fresh = self.path.with_name(self.path.name + ".new")
        try:
            _files.create(fresh)
            with fresh.open("w", encoding="utf-8") as file:
                file.write(json.dumps(asdict(mark)) + "\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
            _sync_folder(self.path.parent)
        except OSError as error:
            raise LedgerUnwritable(
                f"the witness {self.path} cannot be written ({error}): what was just charged stays charged, but "
                "nothing may be released for it; free some space or allow this user to write there"
            ) from error

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
                    f"{chain.path} has lost its witness {self.path}: put that file back; if it is gone for good and "
                    "you know from elsewhere that no entry is missing, make a new one with `renew_witness`"
                )
        elif length < mark.entries:
            raise LedgerRolledBack(
                f"{chain.path} has {length} entries, its witness {self.path} saw {mark.entries}: put the latest copy "
                "of the ledger back; starting afresh on spent data needs a new data identity and a new path"
            )
        elif chain.hash_at(mark.entries - 1) != mark.head:
            raise LedgerRolledBack(
                f"{chain.path} is not the ledger that its witness {self.path} saw: entry {mark.entries - 1} is "
                "another. Put the right ledger back"
            )

    def _damaged(self) -> LedgerDamaged:
        return LedgerDamaged(f"the witness {self.path} is damaged: put an intact copy back")


def _sync_folder(folder: Path) -> None:
    """A renamed file is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
