"""The identity of data: their name, and keyed digests of rows by which they are recognised under other names."""

import hashlib
import hmac
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from incrowd.errors import ConfigError

Digests = NDArray[np.uint64]

KEPT = 256
"""So many digests of each kind are kept of some data."""

PUBLIC_KEY = b"data that protect nobody"
"""The key for data that are declared public: any holder of them may recognise them."""

_LEAST = 0.05  # the share of two samples that is the same by more than chance
_STANDARD_ERRORS = 4.0
_ALL = np.iinfo(np.uint64).max


def digests(rows: Iterable[bytes | memoryview], *, key: bytes) -> Digests:
    """One keyed digest of 64 bits for each row (BLAKE2b): it tells nothing to who does not have the key."""
    begun = hashlib.blake2b(digest_size=8, key=key)
    each = []
    for row in rows:
        hashed = begun.copy()  # which is faster than to begin with the key again
        hashed.update(row)
        each.append(hashed.digest())
    return np.frombuffer(b"".join(each), np.uint64)


def which(key: bytes) -> str:
    """A name that tells keys apart, and nothing else about them."""
    return hmac.digest(key, b"which key, version 2", "sha256").hex()[:16]


def fingerprint(rows: Digests, owners: NDArray[np.int64], *, key: bytes) -> str:
    """The fingerprint of rows, which does not depend on their order; its first part names the key that made it.

    The digests of an owner are added up modulo 2^64 (a keyed multiset hash); the sums, in order, are hidden by one
    more digest. Without the key it tells nothing, not even how many rows there are.
    """
    order = np.argsort(owners, kind="stable")
    starts = np.flatnonzero(np.diff(owners[order], prepend=-1))
    sums = np.add.reduceat(rows[order], starts) if len(rows) else rows
    return f"{which(key)}:{hmac.digest(key, b'rows:' + np.sort(sums).tobytes(), 'sha256').hex()}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The lowest digests of rows that one owner alone has, at most `KEPT`; `shared` is as in `Rows`."""

    kind: str
    digests: Digests
    shared: float


@dataclass(frozen=True, eq=False)
class Rows:
    """The digests of rows, one for each owner of a row.

    `shared` is the share of them that another owner has, too: so often rows are equal by chance.
    """

    each: Digests
    own: Digests
    shared: float

    @classmethod
    def of(cls, rows: Digests, owners: NDArray[np.int64]) -> "Rows":
        """Rows of these digests and owners."""
        order = np.lexsort((owners, rows))
        rows, owners = rows[order], owners[order]
        each = rows[(np.diff(rows, prepend=~rows[:1]) != 0) | (np.diff(owners, prepend=-1) != 0)]
        different, holders = np.unique(each, return_counts=True)
        own = different[holders == 1]
        return cls(each, own, 1 - len(own) / len(each))

    def holds(self, others: "Rows") -> bool:
        """Whether others' rows are among these: any of them, or more than are equal by chance."""
        if np.array_equal(self.each, others.each):
            return True
        return _beyond_chance(_among(others.each, self.each), len(others.each), self.shared)

    def sample(self, kind: str) -> Sample:
        """The sample that is kept of them."""
        return Sample(kind=kind, digests=self.own[:KEPT], shared=self.shared)

    def like(self, sample: Sample) -> bool:
        """Whether a part of the rows that were sampled are among these, or of these among those."""
        theirs, shared = sample.digests, max(self.shared, sample.shared)
        last = theirs[-1] if len(theirs) == KEPT else _ALL
        mine = self.own[self.own <= last]
        both = ((theirs, self.each), (mine, theirs))
        return any(_beyond_chance(_among(some, all_), len(some), shared, least=_LEAST) for some, all_ in both)


@dataclass(frozen=True, kw_only=True, eq=False)
class Content:
    """The marks by which some data are recognised, made with the user's key.

    `whole` is the fingerprint of all that rows hold, and `people` that of what is learned from: the same people with
    other labels have the same. `kinds` are digests of "cells", whatever columns are called and however they are
    ordered, without whose the row is, and of "features" in their order, without the label.
    """

    whole: str
    people: str
    kinds: Mapping[str, Rows]

    def holds(self, others: "Content") -> bool:
        """Whether rows of others are among these: see `Rows.holds`."""
        return any(rows.holds(others.kinds[kind]) for kind, rows in self.kinds.items())

    def samples(self) -> list[Sample]:
        """The samples that the registry keeps of them."""
        return [rows.sample(kind) for kind, rows in self.kinds.items()]

    def like(self, samples: Iterable[Sample]) -> bool:
        """Whether they are the data of which these samples were kept, or partly: see `Rows.like`."""
        return any(self.kinds[sample.kind].like(sample) for sample in samples)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Data that are declared public, under all names that they may have; `remedy` is for private data."""

    names: tuple[str, ...]
    content: Content
    remedy: str


@dataclass(frozen=True, kw_only=True)
class DataIdentity:
    """Some data, and the unit that is protected in them, say "client".

    `fingerprint` is of the content, or None if only the name is known. `public` data protect no unit. `division` says
    how units are made: the column of a table, or how examples were divided; for records, how silos divide them.
    `whole` is the fingerprint of all that was divided, if these data are a part of it. `released` says that they were
    released without privacy before. `content` recognises them under another name, and `declared` holds the public data
    of their run. `parts` are the fingerprints of each silo, if one ledger is for all. None of these is in the ledger.
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
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= 1000:
            raise ConfigError(field="data_identity", value=self.name, remedy="give a text of 1 to 1000 characters")

    def __str__(self) -> str:
        return f"public: {self.name}" if self.public else self.name

    def to_json(self) -> dict[str, Any]:
        """The identity as JSON can hold it: `DataIdentity(**identity.to_json())` is equal to it."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.compare}


def same(first: str | None, second: str | None) -> bool | None:
    """Whether two fingerprints are of the same content; None where one is missing, or their keys differ."""
    if first is None or second is None or first.partition(":")[0] != second.partition(":")[0]:
        return None
    return hmac.compare_digest(first, second)


def _among(some: Digests, ordered: Digests) -> int:
    """How many of some digests are among others, which are in order."""
    places = np.minimum(np.searchsorted(ordered, some), len(ordered) - 1)
    return int((ordered[places] == some).sum()) if len(ordered) else 0


def _beyond_chance(found: int, among: int, shared: float, *, least: float = 0.0) -> bool:
    """Whether more of some rows are found than are equal by chance, and than a least share."""
    chance = among * shared
    return found > chance + _STANDARD_ERRORS * math.sqrt(chance * (1 - shared)) + least * among
