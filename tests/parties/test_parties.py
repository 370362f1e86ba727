"""Real parties, each with its own examples and nobody else's, release the model of one machine."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from incrowd.learning import ClientTensors, CohortEngine
from incrowd.parties.contribution import alone
from incrowd.parties.guard import Identity
from incrowd.parties.offer import Offer
from incrowd.parties.participant import Participant
from incrowd.parties.policy import PartyPolicy
from incrowd.privacy.account.accounting import Budget
from incrowd.runs.work import ClientWork

NAMES = ("north", "east", "south")
SERVER = Ed25519PrivateKey.generate()
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES}
KINDS = {
    "central": (),
    "poisson": ("privacy.sampling=poisson", "privacy.cohort=2", "privacy.epsilon=50"),
    "quantile": ("privacy.clip={kind='quantile',clip_norm=0.1,bit_noise=4}", "privacy.epsilon=50"),
    "local": ("privacy.noise_by=party", "privacy.sampling=everyone"),
    "correlated": ("privacy.noise=correlated", "privacy.groups=3"),
    "label distribution": ("local.label_shares=0.1", "local.label_distribution=0.2", "privacy.epsilon=50"),
}


def own(work: ClientWork, number: int) -> ClientTensors:
    """A copy of one client's examples: nothing else of the data comes with it."""
    tensors = ClientTensors.of(work.data)
    rows = torch.from_numpy(np.asarray(tensors.examples(number)).astype(np.int64))
    assert isinstance(tensors.features, torch.Tensor)
    return ClientTensors(
        features=tensors.features[rows],
        labels=tensors.labels[rows],
        offsets=np.array([0, len(rows)]),
        indices=np.arange(len(rows)),
        scale=tensors.scale,
        offset=tensors.offset,
    )


def party(folder: Path, work: ClientWork, number: int, **allowed: Any) -> Participant:
    name = NAMES[number]

    def learner(_: Offer) -> CohortEngine:
        return CohortEngine(
            work.model, alone(own(work, number), number=number, clients=3), work.engine.local, loss=work.loss
        )

    return Participant(
        folder / name,
        identity=Identity(name=name, key=KEYS[name], server=SERVER.public_key()),
        policy=PartyPolicy(**{"budget": Budget(epsilon=60.0, delta=work.plan.budget.delta)} | allowed),
        learner=learner,
        randomness=work.randomness,
    )
