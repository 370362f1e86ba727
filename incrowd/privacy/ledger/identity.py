"""Which data a ledger is about: a name, and a fingerprint that tells nothing to who does not have its key."""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from incrowd.errors import ConfigError

PUBLIC_KEY = b"data that protect nobody"
"""The key for data that are declared public: whoever has them may recognise them."""

_MODULUS = 1 << 256


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """Some data, and who is protected in them.

    `name` is the operator's. `fingerprint` is of the content (`fingerprint`), or None where only the name is known.
    `public` data are declared to protect nobody. `unit` is what is protected, say "client", and `division` says what
    makes one: the column of a table, or how examples were divided; of records, how they were divided among silos.
    `whole` is the fingerprint of all that was divided, where these data are a part of it.

    Edge cases: a name of 0, or of more than 1000 characters raises `ConfigError`.
    """

    name: str
    fingerprint: str | None = None
    public: bool = False
    unit: str | None = None
    division: str = ""
    whole: str | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= 1000:
            raise ConfigError(field="data_identity", value=self.name, remedy="give a text of 1 to 1000 characters")

    def __str__(self) -> str:
        return f"public: {self.name}" if self.public else self.name

    def to_json(self) -> dict[str, object]:
        """The identity as JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DataIdentity":
        """What `to_json` wrote."""
        return cls(**content)


def fingerprint(rows: Iterable[bytes], *, key: bytes) -> str:
    """The fingerprint of these rows, whatever their order; its first part says which key made it.

    It is the multiset hash of Clarke, Devadas, van Dijk, Gassend and Suh (2003, "MSet-Add-Hash"): keyed digests of the
    rows are added up modulo 2^256, and the sum is hidden by one more. Who does not have the key learns nothing from it,
    not even how many rows there are.
    """
    total = 0
    for row in rows:
        total += int.from_bytes(hmac.digest(key, b"row:" + row, "sha256"), "big")
    total %= _MODULUS
    return f"{which(key)}:{hmac.digest(key, b'rows:' + total.to_bytes(32, 'big'), 'sha256').hex()}"


def which(key: bytes) -> str:
    """What tells keys apart, and nothing else about them."""
    return hmac.digest(key, b"which key", "sha256").hex()[:16]


def same(first: str | None, second: str | None) -> bool | None:
    """Whether two fingerprints are of the same content; None where that cannot be told: one is missing, or they were
    made with different keys.
    """
    if first is None or second is None or first.partition(":")[0] != second.partition(":")[0]:
        return None
    return hmac.compare_digest(first, second)
