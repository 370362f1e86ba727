"""Check noise in shares and the masks that hide it, for plans with `noise_by = "parties"`."""

import math
import secrets
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import binom, norm

from incrowd._random import Floats, SeededRandomness, SystemRandomness
from incrowd.audit.bounds import Check
from incrowd.audit.canaries import ledger_of, shared_in, shares_std
from incrowd.audit.checks import ALARM, likeness, size_of_noise
from incrowd.errors import DataError, IncrowdError
from incrowd.parties.frames import opened
from incrowd.parties.roster import Card, Roster
from incrowd.parties.secure_sum import KEYS, Listed, Member, SumPlan, SumServer
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import Whole, contribution_step
from incrowd.privacy.paid import ShareRun
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant

_NAMES = ("amber", "birch", "cedar", "dogwood")
_SIZE = 2048
"""So many numbers have the parts of these parties."""

_NUMBERS, _SHARES, _LIKE = 2**14, 200_000, 10_000


def share_checks(plan: Plan, *, seed: int) -> list[Check]:
    """Check the shares of noise, their rounding and the masks; a plan without shared noise has no checks."""
    return [*_sizes(plan), _dithered(plan, seed=seed), *mask_checks()] if plan.noise_by == "parties" else []


def _sizes(plan: Plan) -> list[Check]:
    """Shares have the planned size, for short lists and long ones. No draw comes again."""
    parties, colluders = plan.config.sharing
    lengths = {min(parties, length) for length in (colluders + 1, colluders + 2, (colluders + parties) // 2 + 1)}
    scaled, draws = list[Floats](), list[Floats]()
    for number in {0, plan.rounds - 1}:
        for listed in sorted(lengths | {max(colluders + 1, parties - 1), parties}):
            share = shared_in(plan, number).share(listed)
            for size in (_SHARES, _LIKE):
                run = ShareRun(plan, ledger=ledger_of(plan), randomness=SystemRandomness())
                zeros = Whole(steps=np.zeros(size, np.int64), step=share.shared.step)
                receipt = run.share(number, share)
                noise = share.add(zeros, receipt=receipt, at=("noise", number, 0), contributions_bound=1).values
                scaled.append(noise / shares_std(plan, number, 1, listed=listed))
                draws.append(scaled[-1][:_LIKE])
    sizes = [size_of_noise("noise of a share", each, looks=len(scaled)) for each in scaled[::2]]
    pairs = [(one, other) for place, one in enumerate(draws) for other in draws[:place]]
    worst = next((each for each in sizes if not each.holds), sizes[0])
    return [worst, likeness(pairs, name="shares of two draws, alike by")]


def _dithered(plan: Plan, *, seed: int) -> Check:
    """A quarter of a step enters as a quarter on average: noise comes before rounding, and hides it."""
    shared = shared_in(plan)
    share, bound = shared.share(shared.parties), shared.noise.clip_norm
    size = int(np.clip((3.6 * bound / shared.step) ** 2, 64, _NUMBERS))
    part = 0.25
    while part * shared.step * math.sqrt(size) > bound:
        part /= 2
    entered = list[float]()
    for repeat in range(-(-_NUMBERS // size)):
        sums = []
        for steps in (1, 0):
            run = ShareRun(plan, ledger=ledger_of(plan), randomness=SeededRandomness(seed=seed + repeat))
            whole = Whole(steps=np.full(size, steps), step=part * shared.step)
            sums.append(share.add(whole, receipt=run.share(0, share), at=("noise", 0, 0), contributions_bound=1).steps)
        entered.append(float((sums[0] - sums[1]).mean()))
    mean, reach = float(np.mean(entered)), float(norm.isf(ALARM)) * math.sqrt(part * (1 - part) / size / len(entered))
    holds, note = abs(mean - part) <= reach, f"would see {reach / part:.1%} more or less"
    measured = f"{mean:.4f} steps on average"
    return Check("what rounding makes of a part", measured, f"{part:g}, as it is: noise first", holds=holds, note=note)


def mask_checks() -> list[Check]:
    """Four parties with keys on disk play the protocol of masks against a malicious server."""
    found = []
    for look in (_secret, _rounds_apart, _lists_apart, _rosters_apart, _keys_left):
        with TemporaryDirectory() as folder:
            try:
                found.append(look(Path(folder)))
            except IncrowdError as error:
                found.append(Check.refused(f"masked sums ({look.__name__.strip('_').replace('_', ' ')})", error))
    return found


@dataclass(kw_only=True)
class _Parties:
    """Four parties with keys on disk, a server, and a plan of theirs."""

    folder: Path
    secrets: Mapping[str, Ed25519PrivateKey] = field(default_factory=lambda: _secrets(*_NAMES))
    server: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __post_init__(self) -> None:
        config = PlanConfig(
            members=len(_NAMES),
            schedule=constant(rounds=2, cohort=len(_NAMES)),
            sampling=Everyone,
            noise_by="parties",
            colluders=1,
            clip=FixedClip(clip_norm=1.0),
        )
        roster = Roster(tuple(Card.of(name, key) for name, key in self.secrets.items()))
        self.plan = SumPlan(plan=config.calibrate(Budget(epsilon=4.0, delta=1e-5)), roster=roster, size=_SIZE)
        self.members = {name: self.member(name, self.folder / name) for name in self.secrets}
        self.hellos = {name: member.hello() for name, member in self.members.items()}

    def member(self, name: str, folder: Path) -> Member:
        """A party as its process opens it."""
        return Member(folder, self.plan, name=name, key=self.secrets[name], server=self.server.public_key())

    def seal(self) -> dict[str, bytes]:
        """What all parties send before they agree on keys, the same at every call."""
        return {name: member.seal(self.hellos) for name, member in self.members.items()}

    def agree(self) -> None:
        """Have all parties agree on keys."""
        sealed = self.seal()
        for member in self.members.values():
            member.agree(self.hellos, sealed)

    def listed(self, number: int, *, members: Mapping[str, Member] | None = None) -> tuple[SumServer, bytes]:
        """A server's list of all parties, for a new question."""
        server, question = SumServer(self.plan, key=self.server), secrets.token_hex(32)
        ready = {name: member.ready(number, question) for name, member in (members or self.members).items()}
        return server, server.listed(number, ready, question=question)

    def answer(self, member: Member, listed: bytes) -> bytes:
        """A party's masked part of a round, paid from a ledger in memory."""
        run = ShareRun(self.plan.plan, ledger=ledger_of(self.plan.plan), randomness=SystemRandomness())
        number = Listed.read(listed, server=self.server.public_key()).round
        step = contribution_step(1.0, contributions_bound=len(_NAMES))
        part = Whole(steps=np.eye(1, _SIZE, dtype=np.int64)[0] * int(0.5 / step), step=step)  # half of the bound
        return member.answer(listed, part, pay=lambda share: run.share(number, share))

    def words(self, name: str, frame: bytes) -> Floats:
        """The masked numbers of a party's answer, as floats."""
        word, key = self.plan.noise(0).word, self.secrets[name].public_key()
        _, _, _, body = opened(frame, ("masked",), key=key, most=_SIZE * np.dtype(word).itemsize)
        return np.frombuffer(body, word).astype(np.float64)

    def apart(self, name: str, one: bytes, other: bytes) -> Check:
        """Whether two answers of a party differ by more than noise. Otherwise one mask hid both."""
        shared = self.plan.noise(0)
        most = np.iinfo(shared.word).max + 1
        apart = np.abs(self.words(_NAMES[0], one) - self.words(_NAMES[0], other))
        reach = 12 * shared.deviation(len(_NAMES)) / shared.step
        near = int((np.minimum(apart, most - apart) <= reach).sum())
        chance = min(1.0, (2 * reach + 1) / most)
        limit = binom.isf(ALARM, _SIZE, chance)
        measured, stated = f"{near} of {_SIZE} numbers are near", f"at most {limit:.0f}, by chance"
        return Check(name, measured, stated, holds=bool(near <= limit))


def _secrets(*names: str) -> dict[str, Ed25519PrivateKey]:
    return {name: Ed25519PrivateKey.generate() for name in names}


def _secret(folder: Path) -> Check:
    """A party with wrong secrets has wrong masks, so masks depend on the secrets."""
    summed = []
    for column in ("agree", "secrets"):
        parties = _Parties(folder=folder / column)
        parties.seal()
        with closing(sqlite3.connect(folder / column / _NAMES[0] / KEYS)) as connection, connection:
            size = len(connection.execute(f"SELECT {column} FROM plans").fetchone()[0])  # noqa: S608 - a name of ours
            connection.execute(f"UPDATE plans SET {column} = ?", (secrets.token_bytes(size),))  # noqa: S608 - as above
        parties.agree()
        server, listed = parties.listed(0)
        answers = {name: parties.answer(member, listed) for name, member in parties.members.items()}
        try:
            server.total(0, answers)
            summed.append(column)
        except DataError:
            continue
    measured, note = "add up" if summed else "garbage", "of both key agreements"
    return Check("masks without the secrets of a party", measured, "garbage", holds=not summed, note=note)


def _rounds_apart(folder: Path) -> Check:
    """A mask hides one round."""
    parties = _Parties(folder=folder)
    parties.agree()
    first = parties.members[_NAMES[0]]
    answers = [parties.answer(first, parties.listed(number)[1]) for number in range(2)]
    return parties.apart("masks of two rounds of a party", *answers)


def _lists_apart(folder: Path) -> Check:
    """A copy of a party has other masks for another list and question in the same round."""
    parties = _Parties(folder=folder)
    parties.agree()
    first = _NAMES[0]
    shutil.copytree(folder / first, folder / "copy")
    copied = {**parties.members, first: parties.member(first, folder / "copy")}
    one = parties.answer(parties.members[first], parties.listed(0)[1])
    other = parties.answer(copied[first], parties.listed(0, members=copied)[1])
    return parties.apart("masks of two lists in a round", one, other)


def _rosters_apart(folder: Path) -> Check:
    """A party with a false roster, in which the server plays a party, agrees on keys with no party."""
    honest = _Parties(folder=folder / "honest")
    false = {**honest.secrets, **_secrets(_NAMES[-1])}
    fooled = _Parties(folder=folder / "fooled", secrets=false, server=honest.server)
    victim, played = _NAMES[0], _NAMES[-1]
    hellos = {**honest.hellos, victim: fooled.hellos[victim]}
    try:
        fooled.members[victim].seal({**hellos, played: fooled.hellos[played]})
        honest.members[_NAMES[1]].seal(hellos)
    except DataError:
        return Check("parties with two rosters", "refused", "refused", holds=True)
    return Check("parties with two rosters", "agree on keys", "refused", holds=False)


def _keys_left(folder: Path) -> Check:
    """After its answer a party has no key of the round on disk, and no secret behind it."""
    parties = _Parties(folder=folder)
    path = folder / _NAMES[0] / KEYS
    parties.seal()
    keys = _blobs(path, "SELECT agree, kem, secrets FROM plans")
    parties.agree()
    keys += _blobs(path, "SELECT key FROM pairs")
    parties.answer(parties.members[_NAMES[0]], parties.listed(0)[1])
    kept = b"".join(each.read_bytes() for each in sorted(path.parent.glob(f"{path.name}*")))
    left = sum(key in kept for key in keys)
    return Check("keys of a round that are left after it", f"{left} of {len(keys)}", "0", holds=left == 0)


def _blobs(path: Path, query: str) -> list[bytes]:
    with closing(sqlite3.connect(path)) as connection:
        return [bytes(each) for row in connection.execute(query) for each in row]
