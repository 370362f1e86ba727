"""Three parties of made-up examples, their server's keys, and a small plan."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd._random import Floats, SeededRandomness
from incrowd.learning import ClientTensors, CohortEngine, linear
from incrowd.parties.asking import Patience, Transport
from incrowd.parties.contribution import alone
from incrowd.parties.frames import Place, Request
from incrowd.parties.guard import Identity
from incrowd.parties.network import Network, Node
from incrowd.parties.offer import Offer
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.privacy.mechanism.clipping import Clip, FixedClip
from incrowd.privacy.plan import forms
from incrowd.privacy.plan.plan import Plan, PlanConfig
from incrowd.privacy.plan.sampling import Everyone, Schedule, Step
from incrowd.settings import Local

NAMES = ("north", "east", "south")
FEATURES, CLASSES = 3, 2
MODEL = linear(FEATURES, CLASSES)
LOCAL = Local(learning_rate=0.1, batch_size=4)
SERVER = Ed25519PrivateKey.generate()
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES}
ROOMY = Budget(epsilon=1e6, delta=1e-3)
CLIP = FixedClip(clip_norm=0.5)
RANDOMNESS = SeededRandomness(3)
EXAMPLES = 5  # of each party


def tensors() -> ClientTensors:
    """All parties' examples, as if they were in one place."""
    generator = np.random.default_rng(5)
    count = len(NAMES) * EXAMPLES
    return ClientTensors(
        features=torch.from_numpy(generator.normal(size=(count, FEATURES)).astype(np.float32)),
        labels=torch.from_numpy(generator.integers(0, CLASSES, count)),
        offsets=np.arange(len(NAMES) + 1) * EXAMPLES,
        indices=np.arange(count),
    )


def own(number: int) -> ClientTensors:
    """The examples of one party, and of nobody else."""
    whole = tensors()
    rows = slice(number * EXAMPLES, (number + 1) * EXAMPLES)
    assert isinstance(whole.features, torch.Tensor)
    return ClientTensors(
        features=whole.features[rows].clone(),
        labels=whole.labels[rows].clone(),
        offsets=np.array([0, EXAMPLES]),
        indices=np.arange(EXAMPLES),
    )


def plan_of(rounds: int = 4, *, noise: float = 1.0, budget: Budget = ROOMY, **rest: Any) -> Plan:
    step = Step(rounds=rounds, cohort=len(NAMES), noise_multiplier=noise)
    given: dict[str, Any] = {"sampling": Everyone, "clip": CLIP} | rest
    return PlanConfig(members=len(NAMES), schedule=Schedule((step,)), **given).plan(budget)


def offer_for(plan: Plan, **rest: Any) -> Offer:
    settings = {"model": {"kind": "linear"}}
    given: dict[str, Any] = {"columns": ("age", "dose"), "settings": settings, "parties": NAMES} | rest
    return Offer.of_plan(plan, size=MODEL.size, **given)


@dataclass
class Made:
    """A party in a folder, which can be killed and started again."""

    folder: Path
    name: str = "north"
    policy: PartyPolicy = field(default_factory=lambda: PartyPolicy(budget=ROOMY))
    rest: dict[str, Any] = field(default_factory=lambda: {"randomness": RANDOMNESS})

    def start(self) -> Participant:
        """A process's life begins."""
        identity = Identity(name=self.name, key=KEYS[self.name], server=SERVER.public_key())
        return Participant(self.folder, identity=identity, policy=self.policy, learner=self.engine, **self.rest)

    def engine(self, offer: Offer) -> CohortEngine:
        number = NAMES.index(self.name)
        return CohortEngine(MODEL, alone(own(number), number=number, clients=len(NAMES)), LOCAL)


def request(offer: Offer, number: int, *, weights: float = 0.0, clip: Clip = CLIP, **rest: Any) -> Request:
    form = forms.to_json(forms.RoundForm(plan=offer.fingerprint, round=number, clip=clip))["clip"]
    place = Place(plan=offer.fingerprint, round=number, party="")
    given = {"history": past(offer, number)} | rest
    return Request(place=place, weights=np.full(offer.size, weights, np.float32), clip=form, **given)


def past(offer: Offer, number: int, **other: Request) -> bytes:
    """The history of a server that asked the same in all rounds before, but for those that are named (`round_3`)."""
    asked = (other.get(f"round_{each}") or request(offer, each, history=b"") for each in range(number))
    return b"".join(bytes.fromhex(each.digest) for each in asked)


def asked(offer: Offer, number: int, **rest: Any) -> bytes:
    return request(offer, number, **rest).to_bytes(SERVER)


def network_of(line: Transport, offer: Offer, *, patience: Patience) -> Network:
    nodes = [Node(id=number, party=name, key=KEYS[name].public_key()) for number, name in enumerate(NAMES)]
    return Network(transport=line, offer=offer, nodes=lambda: nodes, key=SERVER, patience=patience)


def zeros() -> Floats:
    return np.zeros(MODEL.size)
