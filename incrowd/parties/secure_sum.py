"""Sums whose parts stay masked: pairwise masks over a list of parties, for up to about fifty of them.

    once     hello    party -> all      fresh X25519 and ML-KEM-768 keys for this plan, signed.
             sealed   party -> all      a secret for each later name, encapsulated to its hello, signed.
    round    ready    party -> server   round, digest of the question, a fresh random number, signed.
             list     server -> party   round, digest of the question, names and their random numbers, signed.
             masked   party -> server   part + share of noise, rounded, + and - a mask for each other name, signed.

No party ever reveals a mask, so a listed party that stays silent loses the round: it is spent, and the next has fresh
noise. Two lists, or two questions, in one round give masks that do not cancel: garbage, not a leak. See
docs/secure-sum.md for the attacks of a malicious server.
"""

import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from incrowd import _files
from incrowd._private import check_ours
from incrowd.errors import ConfigError, DataError, SpecificationRefused
from incrowd.parties.frames import Place, opened, sealed
from incrowd.parties.offer import Offer
from incrowd.parties.roster import Roster, digest
from incrowd.privacy.ledger.chain import check_own, connect, translated
from incrowd.privacy.ledger.tally import Receipt
from incrowd.privacy.mechanism.clipping import MedianClip
from incrowd.privacy.mechanism.grid import Whole, largest_norm
from incrowd.privacy.mechanism.shared import NoiseShare, SharedNoise
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan

Words = NDArray[np.unsignedinteger[Any]]

KEYS = "masks.sqlite"
"""The file in a party's folder with the keys of its sums."""

_AGREE, _KEM, _SEALED = 32, 1184, 1088

_LIST_KEYS = {"kind", "plan", "round", "party", "label", "question", "parties"}

_TABLES = (
    "CREATE TABLE IF NOT EXISTS plans (name TEXT PRIMARY KEY, agree BLOB, kem BLOB, hello BLOB NOT NULL, sealed BLOB, "
    "secrets BLOB, round INTEGER NOT NULL DEFAULT -1, asked TEXT, answer BLOB)",
    "CREATE TABLE IF NOT EXISTS pairs (plan TEXT, peer TEXT, round INTEGER NOT NULL, key BLOB NOT NULL, "
    "PRIMARY KEY (plan, peer))",
)


@dataclass(frozen=True, kw_only=True)
class SumPlan:
    """The public facts of a sum: the plan, the roster, how many numbers a part has, and the run's own label."""

    plan: Plan
    roster: Roster
    size: int
    label: str = "run"

    def __post_init__(self) -> None:
        forms.check_ours(self.plan)
        if self.plan.noise_by != "parties":
            raise ConfigError(field="noise_by", value=self.plan.noise_by, remedy='give a plan of "parties"')
        if self.plan.config.sharing[0] != len(self.roster.cards):
            remedy = f"the roster has {len(self.roster.cards)}: plan for as many"
            raise ConfigError(field="parties", value=self.plan.config.sharing[0], remedy=remedy)

    @cached_property
    def name(self) -> str:
        """The digest of all four; another digest needs other keys."""
        return digest(forms.to_json(self.plan), self.roster.fingerprint, self.size, self.label)

    def length(self, kind: str, name: str) -> int:
        """The bytes of the body of a party's message."""
        later = len(self.roster.cards) - self.roster.names.index(name) - 1
        words = self.size * np.dtype(self.noise(0).word).itemsize
        return {"hello": _AGREE + _KEM, "sealed": _SEALED * later, "ready": 0}.get(kind, words)

    def opened(self, kind: str, name: str, frame: object, *, number: int = 0) -> tuple[Mapping[str, Any], memoryview]:
        """The head and body of a message that a party of the roster signed for this round of this sum."""
        length = self.length(kind, name)
        _, place, head, body = opened(frame, (kind,), key=self.roster.card(name).public, most=length)
        if place != Place(plan=self.name, round=number, party=name) or len(body) != length:
            raise DataError(
                f"a message {kind!r} of {name} for another plan, or one that is not whole, or of another round"
            )
        return head, body

    def noise(self, number: int) -> SharedNoise:
        """The noise of a round."""
        clip = self.plan.config.clip
        shared = None if isinstance(clip, MedianClip) else self.plan.shared(number, clip)
        assert shared is not None  # noqa: S101 - such a plan has no median, and its noise is shared
        return shared


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A list of the server: the parties of a round, by name and random number, and the question."""

    plan: str
    label: str
    round: int
    question: str
    parties: Mapping[str, str]

    @property
    def names(self) -> list[str]:
        """The listed names, in order."""
        return sorted(self.parties)

    @property
    def digest(self) -> str:
        """The digest of the list, without its signature."""
        return digest(self.plan, self.round, self._head)

    @property
    def _head(self) -> dict[str, object]:
        return {"label": self.label, "question": self.question, "parties": dict(self.parties)}

    def to_bytes(self, key: Ed25519PrivateKey) -> bytes:
        """The list, signed by the server."""
        return sealed("list", Place(plan=self.plan, round=self.round), self._head, b"", key=key)

    @classmethod
    def read(cls, frame: object, *, server: Ed25519PublicKey) -> "Listed":
        """A list that the server signed."""
        _, place, head, _ = opened(frame, ("list",), key=server, most=0)
        parties, question, label = (head.get(name) for name in ("parties", "question", "label"))
        whole = isinstance(parties, dict) and all(map(is_random, parties.values())) and set(head) == _LIST_KEYS
        if not whole or not isinstance(question, str) or not isinstance(label, str) or place.party:
            raise DataError("a list that is not whole")
        return cls(plan=place.plan, round=place.round, label=label, question=question, parties=parties or {})


class Member:
    """One party of secure sums under one plan: its keys with all others, and its last answer, in a folder.

    `least_colluders` is the owner's own rule: a plan that allows for fewer colluding parties is refused.

    Guarantee: one answer a round, rounds in order, each for one list and one question. The charge is on the ledger's
    disk before the party draws noise. Its answer and its next keys reach the disk in one step before it sends the
    answer; the same question gets the same bytes. Keys of earlier rounds are gone. Masks use the random number that
    this process drew for the round, so no copy of the folder gives a mask twice.

    Edge cases: a party that was killed between `ready` and its answer answers that round no more.
    """

    def __init__(
        self,
        folder: Path,
        plan: SumPlan,
        *,
        name: str,
        key: Ed25519PrivateKey,
        server: Ed25519PublicKey,
        least_colluders: int = 1,
    ) -> None:
        colluders = plan.plan.config.sharing[1]
        if colluders < least_colluders:
            raise SpecificationRefused(
                f"{colluders} colluding parties are fewer than the {least_colluders} of our rule"
            )
        if plan.roster.card(name).key != key.public_key().public_bytes_raw().hex():
            raise SpecificationRefused(
                f"the roster has another key for {name}: compare its fingerprint with the others"
            )
        _files.folder(folder)
        self.plan, self.name, self._key, self._server = plan, name, key, server
        self._path, self._turn = folder / KEYS, _files.Turn(folder / "masks.lock")
        self._ready: tuple[int, int, str, str] | None = None  # process, round, question, random number: never on disk
        with self._state() as state:
            for table in _TABLES:
                state.execute(table)

    def hello(self) -> bytes:
        """Fresh public keys for this plan, the same at every call."""
        with self._state() as state:
            (known,) = self._known(state, "hello")
            if known is not None:
                return bytes(known)
            agree, kem = X25519PrivateKey.generate(), MLKEM768PrivateKey.generate()
            body = agree.public_key().public_bytes_raw() + kem.public_key().public_bytes_raw()
            hello = self._sealed("hello", body=body)
            row = (self.plan.name, agree.private_bytes_raw(), kem.private_bytes_raw(), hello)
            state.execute("INSERT INTO plans (name, agree, kem, hello) VALUES (?, ?, ?, ?)", row)
        return hello

    def seal(self, hellos: Mapping[str, bytes]) -> bytes:
        """A secret for each later name, encapsulated to its hello; the same at every call."""
        bodies = self._bodies("hello", hellos)
        with self._state() as state:
            (known,) = self._known(state, "sealed")
            if known is not None:
                return bytes(known)
            made = list[tuple[bytes, bytes]]()
            for name in [each for each in self.plan.roster.names if each > self.name]:
                with _whole_keys(name, SpecificationRefused):
                    made.append(MLKEM768PublicKey.from_public_bytes(bodies[name][_AGREE:]).encapsulate())
            frame = self._sealed("sealed", body=b"".join(hidden for _, hidden in made))
            row = frame, b"".join(secret for secret, _ in made), self.plan.name
            state.execute("UPDATE plans SET sealed = ?, secrets = ? WHERE name = ?", row)
        return frame

    def agree(self, hellos: Mapping[str, bytes], sealed: Mapping[str, bytes]) -> None:
        """Derive a key with each other party, and forget the secrets; a second call changes nothing.

        Guarantee: the key depends on both secrets, plan, roster, the names of the pair and both parties' messages.
        """
        bodies, hidden = self._bodies("hello", hellos), self._bodies("sealed", sealed)
        names = self.plan.roster.names
        with self._state() as state:
            private, seed, made, *sent = self._known(state, "agree", "kem", "secrets", "hello", "sealed")
            if private is None:
                return
            if sent != [hellos[self.name], sealed[self.name]]:
                raise DataError("these keys are not those that this party sent: the others have heard of other ones")
            agree = X25519PrivateKey.from_private_bytes(bytes(private))
            kem = MLKEM768PrivateKey.from_seed_bytes(bytes(seed))
            for peer in names:
                if peer == self.name:
                    continue
                first, second = sorted((self.name, peer))
                place = names[names.index(first) + 1 :].index(second)
                its = hidden[first][_SEALED * place :][:_SEALED]
                with _whole_keys(peer, SpecificationRefused):
                    shared = agree.exchange(X25519PublicKey.from_public_bytes(bodies[peer][:_AGREE]))
                    shared += made[32 * place :][:32] if first == self.name else kem.decapsulate(its)
                transcript = [bodies[first].hex(), bodies[second].hex(), its.hex()]
                salt = bytes.fromhex(digest("pair", self.plan.name, [first, second], transcript))
                key = HKDF(hashes.SHA256(), 32, salt, b"incrowd secure sum pair").derive(shared)
                state.execute("INSERT INTO pairs VALUES (?, ?, 0, ?)", (self.plan.name, peer, key))
            state.execute("UPDATE plans SET agree = NULL, kem = NULL, secrets = NULL WHERE name = ?", (self.plan.name,))

    def zeros(self) -> bytes:
        """Masked zeros, unpaid; the zeros of all parties add up to zeros, unless their keys differ."""
        words = np.zeros(self.plan.size, self.plan.noise(0).word)
        with self._state() as state:
            for peer, at, key in self._pairs(state):
                if at:
                    raise SpecificationRefused("the keys of masked zeros are gone: rounds have begun")
                self._mask(words, peer, _key(key, "zeros", self.plan.name))
        return self._sealed("zeros", body=words.tobytes())

    def ready(self, number: int, question: str) -> bytes:
        """Announce the part for this question; `question` is the digest of its inputs.

        Edge cases: a second announcement voids the first, and its list gets no answer.
        """
        self._ready = os.getpid(), number, question, secrets.token_hex(32)
        return self._sealed("ready", number, question=question, random=self._ready[3])

    def answer(self, listed: object, part: Whole | None, *, pay: Callable[[NoiseShare], Receipt]) -> bytes:
        """The masked part of a round, with this party's share of the noise. `pay` charges the round on its own ledger.

        For the same list a party gives the same bytes, without a part.
        """
        asked = Listed.read(listed, server=self._server)
        if asked.plan != self.plan.name:
            raise SpecificationRefused("a list of another plan or roster")
        with self._state() as state:
            last, said, answer = self._known(state, "round", "asked", "answer")
            if last == asked.round and said == asked.digest:
                return bytes(answer)
            if last is not None and last >= asked.round:
                raise SpecificationRefused(f"round {asked.round} was answered, or passed over, with another list")
            share, pairs = self._allowed(asked), self._pairs(state)
            assert part is not None  # noqa: S101 - a party that is ready has it
            if not pairs or any(at > asked.round for _, at, _ in pairs):
                raise SpecificationRefused("there are no keys for this round: agree on them first")
            words = self._noised(part, share, asked.round, pay)
            for peer, since, key in pairs:
                now = _moved(key, since, asked.round)
                if peer in asked.parties:
                    self._mask(words, peer, _key(now, "mask", asked.digest, self.plan.size, words.dtype.name))
                row = (asked.round + 1, _moved(now, asked.round, asked.round + 1), asked.plan, peer)
                state.execute("UPDATE pairs SET round = ?, key = ? WHERE plan = ? AND peer = ?", row)
            self._ready = None
            answer = self._sealed("masked", asked.round, list=asked.digest, body=words.tobytes())
            told = asked.round, asked.digest, answer, asked.plan
            state.execute("UPDATE plans SET round = ?, asked = ?, answer = ? WHERE name = ?", told)
        return answer

    def _noised(self, part: Whole, share: NoiseShare, number: int, pay: Callable[[NoiseShare], Receipt]) -> Words:
        """The part with this party's share of the noise, which is paid now."""
        bound = 1 if self.plan.plan.unit == "client" else share.shared.contributions_bound
        share.check(part, contributions_bound=bound)
        if part.steps.size != self.plan.size:
            raise DataError(f"a part of {part.steps.size} numbers, and the plan has {self.plan.size}")
        at = "noise", number, self.plan.roster.names.index(self.name)
        noised = share.add(part, receipt=pay(share), at=at, contributions_bound=bound)
        words: Words = noised.steps.astype(share.shared.word)
        return words

    def _allowed(self, asked: Listed) -> NoiseShare:
        """The share of a list that this party may answer."""
        if self._ready != (os.getpid(), asked.round, asked.question, asked.parties.get(self.name)):
            raise SpecificationRefused("a list without this party, or of a round or question that it is not ready for")
        if not set(asked.names) <= set(self.plan.roster.names):
            raise SpecificationRefused("a list with a party that is not on the roster")
        try:
            return self.plan.noise(asked.round).share(len(asked.names))
        except ConfigError as error:
            raise SpecificationRefused(f"a list that the plan does not allow: {error}") from error

    def _mask(self, words: Words, peer: str, key: bytes) -> None:
        """Add the mask with a later name, or subtract that with an earlier one."""
        mask = _stream(key, words)
        (np.add if self.name < peer else np.subtract)(words, mask, out=words)

    def _bodies(self, kind: str, frames: Mapping[str, bytes]) -> dict[str, bytes]:
        """The bodies of messages that all parties of the roster signed for this plan."""
        names = self.plan.roster.names
        if set(frames) != set(names):
            raise DataError(f"a {kind} of each party of the roster is needed, and of nobody else")
        return {name: bytes(self.plan.opened(kind, name, frames[name])[1]) for name in names}

    def _sealed(self, kind: str, number: int = 0, *, body: bytes = b"", **head: str) -> bytes:
        place = Place(plan=self.plan.name, round=number, party=self.name)
        return sealed(kind, place, dict(head), body, key=self._key)

    def _known(self, state: sqlite3.Connection, *columns: str) -> list[Any]:
        query = f"SELECT {', '.join(columns)} FROM plans WHERE name = ?"  # noqa: S608 - our own names
        return list(state.execute(query, (self.plan.name,)).fetchone() or [None] * len(columns))

    def _pairs(self, state: sqlite3.Connection) -> list[tuple[str, int, bytes]]:
        query = "SELECT peer, round, key FROM pairs WHERE plan = ? ORDER BY peer"
        return [(peer, at, bytes(key)) for peer, at, key in state.execute(query, (self.plan.name,))]

    @contextmanager
    def _state(self) -> Iterator[sqlite3.Connection]:
        """One transaction of one process at a time: on disk when it ends, or without any change after an error."""
        with self._turn, translated(self._path):
            if not self._path.exists():
                _files.create(self._path)
            check_ours(self._path, secret=True)
            check_own(self._path)
            with closing(connect(self._path)) as connection:
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute("BEGIN EXCLUSIVE")  # no reader may hold up the end, after the charge
                yield connection
                connection.execute("COMMIT")


class SumServer:
    """The server's side: it lists the parties of a round once, and adds up their answers.

    Guarantee: it learns a sum of all listed parts with the noise of their shares, or nothing; it holds no mask.
    """

    def __init__(self, plan: SumPlan, *, key: Ed25519PrivateKey) -> None:
        self.plan, self._key = plan, key
        self._listed: dict[int, Listed] = {}

    def check_hello(self, name: str, frame: bytes) -> None:
        """Refuse (`DataError`) a party's public keys of which nobody can make a secret: others would look guilty."""
        _, body = self.plan.opened("hello", name, frame)
        with _whole_keys(name, DataError):
            X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(bytes(body[:_AGREE])))
            MLKEM768PublicKey.from_public_bytes(bytes(body[_AGREE:])).encapsulate()

    def check_zeros(self, frames: Mapping[str, bytes]) -> None:
        """Refuse (`DataError`) parties whose keys do not agree, before a round is paid."""
        words = self._added("zeros", frames, 0, asked=None)
        if words.any():
            raise DataError("masked zeros do not add up to zeros: some parties have other keys, so begin anew with all")

    def listed(self, number: int, ready: Mapping[str, bytes], *, question: str) -> bytes:
        """The signed list of the parties that are ready for a question."""
        parties = {}
        for name, frame in ready.items():
            head, _ = self.plan.opened("ready", name, frame, number=number)
            if head.get("question") != question:
                raise DataError(f"{name} is ready for another question")
            parties[name] = str(head.get("random"))
            if not is_random(parties[name]):
                raise DataError(f"{name} sent no random number of 64 digits")
        self.plan.noise(number).share(len(parties))
        new = Listed(plan=self.plan.name, label=self.plan.label, round=number, question=question, parties=parties)
        if self._listed.setdefault(number, new) != new:
            raise ConfigError(field="ready", value=sorted(parties), remedy=f"round {number} has its list already")
        return new.to_bytes(self._key)

    def asked(self, number: int) -> str:
        """The digest of the list of a round."""
        return self._listed[number].digest

    def total(self, number: int, answers: Mapping[str, bytes]) -> Whole:
        """The sum of all listed parts with their noise."""
        asked = self._listed[number]
        if set(answers) != set(asked.names):
            missing = sorted(set(asked.names) - set(answers))
            raise DataError(f"the round is lost: nothing, or too much, came of {missing or sorted(answers)}")
        noise = self.plan.noise(number)
        words = self._added("masked", answers, number, asked=asked.digest)
        total = noise.total(words)
        most = largest_norm(noise.noise.clip_norm, contributions_bound=noise.contributions_bound)
        most += noise.released_std(len(asked.names)) * (self.plan.size**0.5 + 10)
        if np.linalg.norm(total.values) > most:
            raise DataError("the round is lost: its sum is longer than clipped parts and their noise can be")
        return total

    def _added(self, kind: str, frames: Mapping[str, bytes], number: int, *, asked: str | None) -> Words:
        words: Words = np.zeros(self.plan.size, self.plan.noise(number).word)
        for name, frame in frames.items():
            head, body = self.plan.opened(kind, name, frame, number=number)
            if head.get("list") != asked:
                raise DataError(f"the round is lost: {name} answered another list")
            np.add(words, np.frombuffer(body, words.dtype), out=words)
        return words


@contextmanager
def _whole_keys(name: str, error: type[DataError | SpecificationRefused]) -> Iterator[None]:
    """Refuse, by name, a party whose public keys are none."""
    try:
        yield
    except ValueError as found:
        raise error(f"keys of {name} of which no secret can be made: {found}") from found


def is_random(number: object) -> bool:
    """Whether a party's random number is 64 hexadecimal digits."""
    return isinstance(number, str) and re.fullmatch("[0-9a-f]{64}", number) is not None


def _key(key: bytes, *about: object) -> bytes:
    return HKDFExpand(hashes.SHA256(), 32, bytes.fromhex(digest(*about))).derive(key)


def _moved(key: bytes, since: int, number: int) -> bytes:
    """The key of a later round; no key leads back to those before it."""
    for _ in range(since, number):
        key = _key(key, "next")
    return key


def _stream(key: bytes, words: Words) -> Words:
    """AES-256-CTR of zeros: a key is used for one mask, so the counter begins at 0."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(words.nbytes)), words.dtype)


def sum_plan(plan: Plan, offer: Offer) -> SumPlan:
    """The public facts of an offer's sums."""
    return SumPlan(plan=plan, roster=Roster.from_json(offer.roster), size=offer.size, label=offer.fingerprint)
