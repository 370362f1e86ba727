"""A roster of parties in folders, their keys agreed on, and a server: what the tests of secure sums share."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from incrowd._random import Floats, Randomness, SeededRandomness, SystemRandomness
from incrowd.parties.frames import Place, opened, sealed
from incrowd.parties.roster import Card, Roster
from incrowd.parties.secure_sum import Member, SumPlan, SumServer
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.mechanism.clipping import FixedClip
from incrowd.privacy.mechanism.grid import Whole, contribution_step
from incrowd.privacy.mechanism.shared import NoiseShare
from incrowd.privacy.paid import ShareRun
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, constant

BUDGET = Budget(epsilon=1.0, delta=1e-5)


def plan_of(parties: int, *, colluders: int = 1, rounds: int = 6, clip: float = 1.0) -> Plan:
    """A plan for whole parties, whose noise they share."""
    config = PlanConfig(
        members=parties,
        schedule=constant(rounds=rounds, cohort=parties),
        sampling=Everyone,
        noise_by="parties",
        colluders=colluders,
        clip=FixedClip(clip_norm=clip),
    )
    return config.calibrate(BUDGET)


def question(text: str = "weights") -> str:
    """The digest of a question."""
    return hashlib.sha256(text.encode()).hexdigest()


def key_of(name: str) -> Ed25519PrivateKey:
    """The same key for the same name, in tests alone."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def signed(kind: str, head: dict[str, Any], body: bytes = b"", *, key: Ed25519PrivateKey) -> bytes:
    """A frame of a sum with whatever its head says of its place, and else."""
    place = Place(plan=head["plan"], round=head.get("round", 0), party=head.get("party", ""))
    rest = {name: value for name, value in head.items() if name not in ("kind", "plan", "round", "party")}
    return sealed(kind, place, rest, body, key=key)


def content_of(kind: str, frame: bytes, *, key: Ed25519PublicKey, most: int = 0) -> tuple[dict[str, Any], bytes]:
    """The head and the body of a frame."""
    _, _, head, body = opened(frame, (kind,), key=key, most=most)
    return dict(head), bytes(body)


@dataclass
class Crew:
    """Parties that agree on keys as honest ones do, through a server that hands their messages on."""

    folder: Path
    parties: int = 5
    colluders: int = 1
    size: int = 500
    simulated: bool = False
    label: str = "run"
    agreed: bool = True
    plan: SumPlan = field(init=False)
    server: SumServer = field(init=False)
    members: dict[str, Member] = field(init=False)
    runs: dict[str, ShareRun] = field(init=False)

    def __post_init__(self) -> None:
        names = [f"party {number}" for number in range(self.parties)]
        roster = Roster(tuple(Card.of(name, key_of(name)) for name in names))
        plan = plan_of(self.parties, colluders=self.colluders)
        self.plan = SumPlan(plan=plan, roster=roster, size=self.size, label=self.label)
        self.server = SumServer(self.plan, key=key_of("the server"))
        self.members = {name: self.member(name) for name in names}
        self.runs = {name: self.run(name) for name in names}
        self.hellos = {name: member.hello() for name, member in self.members.items()}
        self.sealed: dict[str, bytes] = {}
        if self.agreed:
            self.agree()

    def agree(self) -> None:
        """Agree on keys as honest parties do."""
        self.sealed = {name: member.seal(self.hellos) for name, member in self.members.items()}
        for member in self.members.values():
            member.agree(self.hellos, self.sealed)

    @property
    def names(self) -> list[str]:
        """All parties, in order."""
        return list(self.plan.roster.names)

    @property
    def randomness(self) -> Randomness:
        """Where noise comes from."""
        return SeededRandomness(9) if self.simulated else SystemRandomness()

    def member(self, name: str, *, plan: SumPlan | None = None) -> Member:
        """A party's side, as its process opens it."""
        server = key_of("the server").public_key()
        return Member(
            self.folder / name, self.plan if plan is None else plan, name=name, key=key_of(name), server=server
        )

    def run(self, name: str) -> ShareRun:
        """A party's own ledger."""
        terms: dict[str, Any] = {"budget": BUDGET, "relation": self.plan.plan.relation}
        ledger = Ledger.open(self.folder / name / "ledger.sqlite", data_identity=name, **terms)
        return ShareRun(self.plan.plan, ledger=ledger, randomness=self.randomness, label="run")

    def part(self, name: str, number: int = 0) -> Whole:
        """What a party would contribute: of norm one half."""
        drawn = np.random.default_rng([self.names.index(name), number]).normal(size=self.size)
        return self.whole(drawn / np.linalg.norm(drawn) / 2)

    def whole(self, values: Floats) -> Whole:
        """Numbers in whole steps of the grid of contributions."""
        step = contribution_step(1.0, contributions_bound=self.parties)
        return Whole(steps=np.trunc(values / step).astype(np.int64), step=step)

    def pay(self, name: str, number: int) -> Callable[[NoiseShare], Any]:
        """How a party pays for its share of a round."""
        return lambda share: self.runs[name].share(number, share)

    def ready(self, number: int, names: Iterable[str] | None = None, *, asked: str = "weights") -> dict[str, bytes]:
        """What these parties, or all, say when they have computed their parts."""
        chosen = self.names if names is None else names
        return {name: self.members[name].ready(number, question(asked)) for name in chosen}

    def listed(self, number: int, names: Iterable[str] | None = None, *, asked: str = "weights") -> bytes:
        """The list of a server that keeps no order: of these parties, who are ready."""
        server = SumServer(self.plan, key=key_of("the server"))
        return server.listed(number, self.ready(number, names, asked=asked), question=question(asked))

    def answer(self, name: str, number: int, listed: bytes) -> bytes:
        """The answer of an honest party."""
        return self.members[name].answer(listed, self.part(name, number), pay=self.pay(name, number))

    def answers(self, number: int, names: Iterable[str] | None = None) -> dict[str, bytes]:
        """The answers of all listed parties."""
        ready = self.ready(number, names)
        listed = self.server.listed(number, ready, question=question())
        return {name: self.answer(name, number, listed) for name in ready}
