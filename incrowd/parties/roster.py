"""The parties that share noise: their cards, and the fingerprint that their owners compare.

A card is a name and an Ed25519 key. A server distributes the cards, and may invent some. So owners compare the roster's
fingerprint with each other, by telephone for example, and never by the server's word.
"""

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd.errors import ConfigError, DataError
from incrowd.privacy.ledger.chain import canonical

MOST_PARTIES = 100
"""Each answer has a mask for every other party, and a silent party loses a round: more need another protocol."""

_LONGEST_NAME = 60


@dataclass(frozen=True, kw_only=True)
class Card:
    """The name of a party, in Latin letters, and its public Ed25519 key, as hexadecimal digits."""

    name: str
    key: str

    def __post_init__(self) -> None:
        usable = 0 < len(self.name) <= _LONGEST_NAME and all(map(_plain, self.name))
        if not usable or self.name != unicodedata.normalize("NFKC", self.name).strip():
            remedy = f"give 1 to {_LONGEST_NAME} Latin letters, digits and signs, without spaces at the ends"
            raise ConfigError(field="name", value=self.name, remedy=remedy)
        signer_of(self.key, field="key")

    @classmethod
    def of(cls, name: str, key: Ed25519PrivateKey) -> "Card":
        """The card for a private key."""
        return cls(name=name, key=key.public_key().public_bytes_raw().hex())

    @cached_property
    def public(self) -> Ed25519PublicKey:
        """The key that checks the party's signatures."""
        return signer_of(self.key, field="key")


@dataclass(frozen=True)
class Roster:
    """The cards of all parties that share noise, in the order of their names.

    Guarantee: no two parties have one key, nor names that people would take for one.
    """

    cards: tuple[Card, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "cards", tuple(sorted(self.cards, key=lambda card: card.name)))
        if not 2 <= len(self.cards) <= MOST_PARTIES:
            raise ConfigError(field="parties", value=len(self.cards), remedy=f"give 2 to {MOST_PARTIES} cards")
        for what, values in (("name", map(_alike, self.names)), ("key", (card.key for card in self.cards))):
            if len(set(values)) != len(self.cards):
                remedy = f"two cards have the same {what}, or nearly: give each party one of its own"
                raise ConfigError(field=what, value=list(self.names), remedy=remedy)

    @classmethod
    def from_json(cls, form: Sequence[Mapping[str, Any]]) -> "Roster":
        """Read a form of `to_json`."""
        try:
            return cls(tuple(Card(**card) for card in form))
        except (AttributeError, TypeError) as error:
            raise ConfigError(field="roster", value=form, remedy="it is not whole: have it sent again") from error

    def to_json(self) -> list[dict[str, str]]:
        """The cards as plain JSON data."""
        return [{"name": card.name, "key": card.key} for card in self.cards]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parties, in order."""
        return tuple(card.name for card in self.cards)

    def card(self, name: str) -> Card:
        """The card of this name."""
        for card in self.cards:
            if card.name == name:
                return card
        raise DataError(f"the roster has no party {name!r}")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all cards."""
        return digest("roster", self.to_json())

    @property
    def shown(self) -> str:
        """The fingerprint's first 160 bits in groups, to read aloud and compare."""
        return " ".join(self.fingerprint[at : at + 5] for at in range(0, 40, 5))


def signer_of(key: str, *, field: str) -> Ed25519PublicKey:
    """The public key with these hexadecimal digits."""
    try:
        found = bytes.fromhex(key)
        if found.hex() != key:
            raise ValueError("it is written otherwise")
        return Ed25519PublicKey.from_public_bytes(found)
    except (TypeError, ValueError) as error:
        remedy = "give the 64 hexadecimal digits of an Ed25519 key, in small letters"
        raise ConfigError(field=field, value=key, remedy=remedy) from error


def _plain(each: str) -> bool:
    """Whether a character of a name looks like no other: a Latin letter, or an ASCII digit, sign or space."""
    return each.isprintable() and (each.isascii() or unicodedata.name(each, "").startswith("LATIN "))


def _alike(name: str) -> str:
    """A form that ignores case, accents, spaces and signs, and equates 0 with O, and 1 with I and l."""
    plain = unicodedata.normalize("NFKD", name.casefold()).translate(str.maketrans("01i|", "olll"))
    return "".join(each for each in plain if each.isalnum())


def digest(*values: object) -> str:
    """An unambiguous SHA-256 of some JSON values."""
    return hashlib.sha256(canonical({"of": list(values)}).encode()).hexdigest()
