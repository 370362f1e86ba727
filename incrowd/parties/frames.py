"""Signed frames of the network, checked before anything of them is decoded.

    "incrowd1" | bytes of the head (4) | bytes of the body (8) | head: canonical JSON | body | Ed25519 signature (64)

The head names the kind, the plan's fingerprint, the round and the party. The signature covers the SHA-256 of all before
it, so an answer of one round, plan or party cannot pass for another. A reader checks it before it parses, and takes
sizes, types and lengths from its own expectation, never from the sender.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

from incrowd import _files
from incrowd._random import Integers
from incrowd.algorithms.silos import Absence, Answer
from incrowd.errors import DataError
from incrowd.privacy.ledger.chain import canonical

DIGEST = 32
"""The bytes of a question's digest, which stand for it in a history; a round that was skipped has zeros."""

ASKED = "asked.bin"
"""The file in a run's folder."""


class AskedBefore:
    """The digests of all questions of a plan, each on disk before the server asks it.

    The file begins with the plan's fingerprint. Without a file the digests last as long as the process.

    Guarantee: `before(n)` is the same in every life of the server, unless its folder is exchanged for another copy.

    Edge cases: a second question for one round, or a file of another plan, is a `DataError`. A truncated last digest
    was never asked.
    """

    def __init__(self, path: Path | None = None, *, plan: str = "") -> None:
        self._plan = bytes.fromhex(plan)
        self._path = path
        content = path.read_bytes() if path is not None and path.exists() else self._plan
        if content[:DIGEST] != self._plan:
            raise DataError(f"{path} is the history of another plan: put back the folder's own")
        self._asked = bytearray(content[DIGEST : len(content) // DIGEST * DIGEST])

    def before(self, number: int) -> bytes:
        """The digests of all questions before a round."""
        return bytes(self._asked[: DIGEST * number].ljust(DIGEST * number, b"\0"))

    def add(self, number: int, digest: str) -> None:
        """Remember what is about to be asked in a round."""
        start, new, known = DIGEST * number, bytes.fromhex(digest), len(self._asked)
        if self._asked[start : start + DIGEST] == new:
            return
        if known > start:
            raise DataError(
                f"round {number} was asked for otherwise, or passed over, before: "
                "the run's folder is not whole, or an old copy"
            )
        self._asked[:] = self.before(number) + new
        if self._path is None:
            return
        if not self._path.exists():
            _files.write(self._path, self._plan)
        with self._path.open("r+b") as file:
            file.seek(DIGEST + known)
            file.write(self._asked[known:])
            file.flush()
            os.fsync(file.fileno())


def chained(history: bytes) -> str:
    """The hash of a history."""
    return hashlib.sha256(history).hexdigest()


SentWeights = NDArray[np.float32]

_MAGIC = b"incrowd1"
_LENGTHS = struct.Struct("<8sIQ")
_SIGNATURE = 64
# Clips list layers, and offers list parties.
_HEADS = {"request": 2**22, "offer": 2**22, "trial": 2**22, "refusal": 2**13, "statement": 2**16, "list": 2**16}
_HEAD = 2**12
"""The most bytes of a head, of these kinds and of all others."""

_ABSENCES: tuple[Absence, ...] = ("budget spent", "round lost", "daily limit")
_LONGEST_NAME = 128  # a plan or a party; parties remember it
_MOST_HISTORY = DIGEST * 100_000
_MOST_WORDS = 1000
MOST_BESIDE = max(_MOST_HISTORY, 2**23)
"""The most bytes of a server's frame beside its head and its weights."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The address of a frame: a plan's fingerprint, a round, and the party that is asked or answers."""

    plan: str
    round: int = 0
    party: str = ""


class Frame(NamedTuple):
    """A frame whose signature was right."""

    kind: str
    place: Place
    head: Mapping[str, Any]
    body: memoryview


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A server's question of a round: train from these weights, with this clip.

    Every party gets the same question. `history` holds the digests of all earlier questions, or is empty.
    """

    place: Place
    weights: SentWeights = field(repr=False)
    clip: dict[str, Any]
    history: bytes = field(repr=False, default=b"")

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the question without its addressee, because a server asks all parties alike."""
        head = canonical({"plan": self.place.plan, "round": self.place.round, "clip": self.clip})
        return hashlib.sha256(head.encode() + b"\0" + self.weights.tobytes()).hexdigest()

    def to_bytes(self, key: Ed25519PrivateKey) -> bytes:
        """The frame, signed by the server."""
        head = {"clip": self.clip, "size": self.weights.size}
        return sealed("request", self.place, head, self.weights.astype("<f4").tobytes() + self.history, key=key)

    @classmethod
    def read(cls, data: object, *, key: Ed25519PublicKey, most: int) -> "Request":
        """The request in a frame, with at most so many weights."""
        return cls.of(opened(data, ("request",), key=key, most=4 * most + _MOST_HISTORY), most=most)

    @classmethod
    def of(cls, frame: Frame, *, most: int) -> "Request":
        """The request in a frame that was opened."""
        place, head, body = frame.place, frame.head, frame.body
        clip, size = head.get("clip"), head.get("size")
        if not _is_natural(size) or size > most or len(body) - 4 * size not in (0, DIGEST * place.round):
            raise DataError("a request whose weights are not as many as it says: have it sent again")
        if not isinstance(clip, dict):
            raise DataError("a request that does not say how contributions are clipped")
        weights = np.frombuffer(body[: 4 * size], "<f4").astype(np.float32)
        if not np.isfinite(weights).all():
            raise DataError("a request with weights that are not finite")
        return cls(place=place, weights=weights, clip=clip, history=bytes(body[4 * size :]))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The server's expectation of an answer: its party, its size and its largest norm.

    `largest` is the largest L2 norm, in steps of the public grid.
    """

    place: Place
    size: int
    contributions: int
    largest: float

    @property
    def wide(self) -> int:
        """The bytes of a number: the length of an answer follows from the plan, and reveals nothing to the network."""
        return next(wide for wide in (2, 4, 8) if self.largest < 2.0 ** (8 * wide - 1) or wide == 8)


@dataclass(frozen=True, kw_only=True, eq=False)
class PartyAnswer:
    """A party's part of a round's sum, in whole steps of the public grid.

    An adaptive clip uses the count of contributions that were not clipped.
    """

    place: Place
    steps: Integers = field(repr=False)
    unclipped: int = field(repr=False)

    def to_bytes(self, key: Ed25519PrivateKey, *, wide: int) -> bytes:
        """The frame, signed by the party, with so many bytes a number: see `Expected.wide`."""
        body = self.steps.astype(f"<i{wide}").tobytes()
        return sealed("answer", self.place, {"unclipped": self.unclipped}, body, key=key)


def read_answer(data: object, *, expected: Expected, key: Ed25519PublicKey) -> tuple[Mapping[str, Any], memoryview]:
    """A frame that this party signed for this round of this plan."""
    _, place, head, body = opened(data, ("answer",), key=key, most=8 * expected.size)
    if place != expected.place:
        raise DataError("an answer of another plan, round or party than was asked")
    return head, body


def longest_answer(size: int) -> int:
    """How many bytes an answer over so many numbers has at most."""
    return _LENGTHS.size + _HEAD + 8 * size + _SIGNATURE


def decoded(head: Mapping[str, Any], body: memoryview, *, expected: Expected) -> PartyAnswer:
    """The decoded answer, checked against the expectation.

    Guarantee: the result has the expected size, and its norm is at most the expected one.
    """
    unclipped = head.get("unclipped")
    if not (_is_natural(unclipped) and unclipped <= expected.contributions):
        raise DataError("an answer that counts more contributions than were asked for")
    if len(body) != expected.size * expected.wide:
        raise DataError("an answer that is shorter or longer than was asked for")
    steps = np.frombuffer(body, f"<i{expected.wide}").astype(np.int64)
    floats = steps.astype(np.float64)
    if not math.sqrt(np.dot(floats, floats)) <= expected.largest:
        raise DataError("an answer longer than contributions that were clipped can be")
    return PartyAnswer(place=expected.place, steps=steps, unclipped=int(unclipped))


def sealed(kind: str, place: Place, head: dict[str, Any], body: bytes, *, key: Ed25519PrivateKey) -> bytes:
    """A frame."""
    whole = {**head, "kind": kind, "plan": place.plan, "round": place.round, "party": place.party}
    text = canonical(whole).encode()
    front = _LENGTHS.pack(_MAGIC, len(text), len(body)) + text + body
    return front + key.sign(_statement(front))


def refusal(why: str, *, question: bytes, party: str, key: Ed25519PrivateKey) -> bytes:
    """A frame in which a party says why it does not do what this question asks."""
    head = {"why": why[:_MOST_WORDS], "question": hashlib.sha256(question).hexdigest()}
    return sealed("refusal", Place(plan="", round=0, party=party), head, b"", key=key)


def read_refusal(data: object, *, question: bytes, key: Ed25519PublicKey) -> str | None:
    """Why a party does not do what this question asks; None where the frame is no refusal of its own, or of another
    question: one that was recorded says nothing later.
    """
    try:
        _, _, head, _ = opened(data, ("refusal",), key=key, most=0)
    except DataError:
        return None
    if head.get("question") != hashlib.sha256(question).hexdigest():
        return None
    return "".join(one if one.isprintable() else " " for one in str(head.get("why", "")))[:_MOST_WORDS]


def read_acceptance(data: object, *, question: bytes, plan: str, party: str, key: Ed25519PublicKey) -> str:
    """Nothing where a party accepts this offer of a plan, or the reason why it does not."""
    why = read_refusal(data, question=question, key=key)
    if why is not None:
        return why or "it does not say why"
    _, place, _, _ = opened(data, ("acceptance",), key=key, most=0)
    if place != Place(plan=plan, round=0, party=party):
        raise DataError("an acceptance of another offer, or by another party")
    return ""


def opened(data: object, kinds: Sequence[str], *, key: Ed25519PublicKey, most: int) -> Frame:
    """The frame, of one of some kinds, that the holder of `key` signed; its body has at most so many bytes.

    Guarantee: it checks length and signature before it parses.
    """
    least, most_head = _LENGTHS.size + _SIGNATURE, max(_HEADS.get(kind, _HEAD) for kind in kinds)
    names = " or ".join(kinds)
    if not isinstance(data, bytes) or not least <= len(data) <= least + most_head + most:
        raise DataError(f"a message that is no {names}, or longer than one can be")
    magic, heads, bodies = _LENGTHS.unpack_from(data)
    if magic != _MAGIC or heads > most_head or bodies > most or len(data) != least + heads + bodies:
        raise DataError("a message that is no frame of ours, or shorter or longer than it says")
    view = memoryview(data)
    try:
        key.verify(data[-_SIGNATURE:], _statement(view[:-_SIGNATURE]))
    except InvalidSignature as error:
        raise DataError(f"a message that is no {names} by who it should be from: its signature is wrong") from error
    body = _LENGTHS.size + heads
    try:
        head = json.loads(bytes(view[_LENGTHS.size : body]))
    except (ValueError, RecursionError) as error:
        raise DataError("a message whose head is no JSON") from error
    if not isinstance(head, dict) or head.get("kind") not in kinds or heads > _HEADS.get(head["kind"], _HEAD):
        raise DataError(f"a message that is no {names}")
    plan, number, party = head.get("plan"), head.get("round"), head.get("party")
    if not (_is_name(plan) and _is_natural(number) and _is_name(party)):
        raise DataError("a message that does not say which plan, round and party it is of")
    place = Place(plan=plan, round=number, party=party)
    return Frame(head["kind"], place, head, view[body:-_SIGNATURE])


def _statement(front: bytes | memoryview) -> bytes:
    return b"incrowd frame " + hashlib.sha256(front).digest()


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable()


def _is_natural(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def sealed_answer(answer: Answer, place: Place, *, key: Ed25519PrivateKey) -> bytes:
    """A silo's released answer to a round, as a frame that it has signed."""
    head = {"epsilon": answer.epsilon, "absence": answer.absence or ""}
    body = b"" if answer.update is None else answer.update.astype("<f8").tobytes()
    return sealed("silo", place, head, body, key=key)


def read_silo(frame: object, *, place: Place, size: int, key: Ed25519PublicKey) -> Answer:
    """The answer that this silo signed for this round."""
    _, found, head, body = opened(frame, ("silo",), key=key, most=8 * size)
    absence, epsilon = head.get("absence"), head.get("epsilon")
    if found != place or absence not in ("", *_ABSENCES):
        raise DataError("an answer of another plan, round or silo than was asked")
    if len(body) != (0 if absence else 8 * size):
        raise DataError("an answer of another size than was asked for")
    update = None if absence else np.frombuffer(body, "<f8").astype(np.float64)
    finite = update is None or np.isfinite(update).all()
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not (0 <= epsilon < 2.0**1000 and finite):
        raise DataError("an answer with numbers that can be none")
    return Answer(
        silo=place.party,
        round=place.round,
        epsilon=float(epsilon),
        update=update,
        absence=next((each for each in _ABSENCES if each == absence), None),
    )
