"""Which data a ledger is about: a name, and a fingerprint that tells nothing to who does not have its key."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from incrowd.errors import ConfigError
from incrowd.privacy.content import Content

PUBLIC_KEY = b"data that protect nobody"
"""The key for data that are declared public: whoever has them may recognise them."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Data that are declared public: those of a run, or the ones that it is measured on. `names` are all that they may
    be known by, and `remedy` is for private data.
    """

    names: tuple[str, ...]
    content: Content
    remedy: str


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """Some data, and who is protected in them.

    `name` is the operator's. `fingerprint` is of the content (`fingerprint`), or None where only the name is known.
    `public` data are declared to protect nobody. `unit` is what is protected, say "client", and `division` says what
    makes one: the column of a table, or how examples were divided; of records, how they were divided among silos.
    `whole` is the fingerprint of all that was divided, where these data are a part of it. `released` says that they
    were released without privacy before. `content` is what they are recognised by under another name, and `declared`
    what their run declares public; neither is written down with the identity.

    Edge cases: a name of 0, or of more than 1000 characters raises `ConfigError`.
    """

    name: str
    fingerprint: str | None = None
    public: bool = False
    unit: str | None = None
    division: str = ""
    whole: str | None = None
    released: bool = False
    content: Content | None = field(default=None, compare=False, repr=False)
    declared: tuple[Declared, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= 1000:
            raise ConfigError(field="data_identity", value=self.name, remedy="give a text of 1 to 1000 characters")

    def __str__(self) -> str:
        return f"public: {self.name}" if self.public else self.name

    def to_json(self) -> dict[str, object]:
        """The identity as JSON can hold it."""
        return {name: value for name, value in vars(self).items() if name not in ("content", "declared")}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DataIdentity":
        """What `to_json` wrote."""
        return cls(**content)


def same(first: str | None, second: str | None) -> bool | None:
    """Whether two fingerprints are of the same content; None where that cannot be told: one is missing, or they were
    made with different keys.
    """
    if first is None or second is None or first.partition(":")[0] != second.partition(":")[0]:
        return None
    return hmac.compare_digest(first, second)
