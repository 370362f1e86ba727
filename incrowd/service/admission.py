"""The operator admits accounts by tokens, and limits the contributions of each account in a day."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from incrowd import _files, _validate
from incrowd._private import make_ours, read_ours
from incrowd.drawdiscard.desk import Visit
from incrowd.errors import ConfigError

KEY_BYTES = 32
_ACCOUNT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_TOKEN = 64 + 1 + 64


def key_in(path: Path) -> bytes:
    """Read the key from a file that only this user can read; make the file if it is missing."""
    if not path.exists():
        make_ours(path.parent)
        _files.write(path, secrets.token_bytes(KEY_BYTES))
        path.chmod(0o600)
    return read_ours(path, secret=True)


def today() -> str:
    """Return the present day, in UTC."""
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Sign and check the tokens of accounts, each with `daily` accepted contributions a day.

    A token is ``ACCOUNT.SIGNATURE``: the HMAC-SHA256 of the account under the key, in hexadecimal. A login service that
    has the key can sign its own account ids.

    Guarantee: only the key makes a token. The pool keeps a keyed digest of an account for one day.
    """

    key: bytes = field(repr=False)
    daily: int = 1
    today: Callable[[], str] = today

    def __post_init__(self) -> None:
        _validate.count(daily=self.daily)
        if len(self.key) != KEY_BYTES:
            raise ConfigError(field="key", value=f"{len(self.key)} bytes", remedy=f"give {KEY_BYTES} random bytes")

    def token(self, account: str) -> str:
        """Sign the token of an account."""
        if not _ACCOUNT.fullmatch(account):
            raise ConfigError(field="account", value=account, remedy="give 1 to 64 letters, digits, _ or -")
        return f"{account}.{self._signature(account)}"

    def visit(self, token: str) -> Visit | None:
        """Return the account and the day of a token; None for a token that the key did not sign."""
        account, _, signature = token.partition(".")
        if len(token) > _LONGEST_TOKEN or not _ACCOUNT.fullmatch(account) or not signature.isascii():
            return None
        if not hmac.compare_digest(signature, self._signature(account)):
            return None
        day = self.today()
        digest = hashlib.blake2b(f"{day} {account}".encode(), key=self.key, digest_size=16).digest()
        return Visit(day, digest, self.daily)

    def _signature(self, account: str) -> str:
        return hmac.digest(self.key, f"incrowd admission {account}".encode(), "sha256").hex()
