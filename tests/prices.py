"""Prices that the processes of one test session have computed, for each other.

The package itself never reads a price that another process left: whoever can write a folder of prices would decide
what a ledger allows. The processes of a test session trust each other and would compute the same plans anew. The
folder is empty when a session begins, so that no price outlives the code that computed it. The tests of the
accountants do without.
"""

import contextlib
import hashlib
import secrets
from collections.abc import Hashable
from pathlib import Path


class SharedPrices(dict[Hashable, float]):
    """What `incrowd.privacy.account.accounting` computed in this process, and what others wrote into the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __contains__(self, key: object) -> bool:
        if not super().__contains__(key):
            with contextlib.suppress(OSError):
                super().__setitem__(key, float.fromhex(self._path(key).read_text()))
        return super().__contains__(key)

    def __setitem__(self, key: Hashable, value: float) -> None:
        super().__setitem__(key, value)
        unfinished = self._folder / secrets.token_hex(8)
        with contextlib.suppress(OSError):  # a test that lets writing fail is not about this file
            unfinished.write_text(value.hex())
            unfinished.replace(self._path(key))

    def _path(self, key: object) -> Path:
        return self._folder / hashlib.sha256(repr(key).encode()).hexdigest()
