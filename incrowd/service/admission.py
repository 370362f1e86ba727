"""Who may contribute: tokens that the operator issues, and how many contributions of each count in a day."""

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
"""Random bytes of the key that signs tokens."""

_ACCOUNT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST = 64 + 1 + 64


def key_in(path: Path) -> bytes:
    """The key in a file that only this user can read, made if there is none."""
    try:
        return read_ours(path, secret=True)
    except FileNotFoundError:
        make_ours(path.parent)
        _files.write(path, secrets.token_bytes(KEY_BYTES))
        path.chmod(0o600)
        return read_ours(path, secret=True)


def today() -> str:
    """The present day, in UTC."""
    return datetime.now(UTC).date().isoformat()


@dataclass(frozen=True, kw_only=True)
class Admission:
    """The operator's key, and how many contributions of one account are accepted in a day.

    A token is ``ACCOUNT.SIGNATURE``: the HMAC-SHA256 of the account under the key, in hexadecimal. Whoever has the key
    makes tokens, say a login service for its own accounts.

    Guarantee: without the key nobody makes a token for an account that has none. The pool keeps of an account a keyed
    digest for one day.
    """

    key: bytes = field(repr=False)
    daily: int = 1
    today: Callable[[], str] = today

    def __post_init__(self) -> None:
        _validate.count(daily=self.daily)
        if len(self.key) != KEY_BYTES:
            raise ConfigError(field="key", value=f"{len(self.key)} bytes", remedy=f"give {KEY_BYTES} random bytes")

    def token(self, account: str) -> str:
        """The token of an account."""
        if not _ACCOUNT.fullmatch(account):
            raise ConfigError(field="account", value=account, remedy="give 1 to 64 letters, digits, _ or -")
        return f"{account}.{self._signature(account)}"

    def visit(self, token: str) -> Visit | None:
        """The account and the day that a token stands for; None where the key did not sign it."""
        account, _, signature = token.partition(".")
        if len(token) > _LONGEST or not _ACCOUNT.fullmatch(account) or not signature.isascii():
            return None
        if not hmac.compare_digest(signature, self._signature(account)):
            return None
        day = self.today()
        digest = hashlib.blake2b(f"{day} {account}".encode(), key=self.key, digest_size=16).digest()
        return Visit(day, digest, self.daily)

    def _signature(self, account: str) -> str:
        return hmac.digest(self.key, f"incrowd admission {account}".encode(), "sha256").hex()
