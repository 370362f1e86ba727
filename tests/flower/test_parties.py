"""Real parties, each with its own examples and nobody else's, release the model of one machine."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load_file

from incrowd.flower.network import Network, Node, by_party
from incrowd.flower.offer import Offer
from incrowd.flower.offered import offer_of
from incrowd.flower.party import Identity, Party, alone
from incrowd.flower.policy import PartyPolicy
from incrowd.flower.rounds import Patience
from incrowd.learning import ClientTensors, CohortEngine
from incrowd.privacy.account.accounting import Budget
from incrowd.runs.client_work import ClientWork
from incrowd.runs.run import Run
from tests.flower.nodes import PlainLine, VirtualClock
from tests.flower.test_party import charged
from tests.runs.small import clients_of, seeded

NAMES = ("north", "east", "south")
SERVER = Ed25519PrivateKey.generate()
KEYS = {name: Ed25519PrivateKey.generate() for name in NAMES}
KINDS = {
    "central": (),
    "poisson": ("privacy.sampling=poisson", "privacy.cohort=2", "privacy.epsilon=50"),
    "quantile": ("privacy.clip={kind='quantile',clip_norm=0.1,bit_noise=4}", "privacy.epsilon=50"),
    "local": ("privacy.place=local", "privacy.sampling=everyone"),
    "correlated": ("privacy.noise=correlated", "privacy.groups=3"),
    "class shares": ("local.label_shares=0.1", "local.class_shares=0.2", "privacy.epsilon=50"),
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


def party(folder: Path, work: ClientWork, number: int, **allowed: Any) -> Party:
    name = NAMES[number]

    def learner(_: Offer) -> CohortEngine:
        return CohortEngine(
            work.model, alone(own(work, number), number=number, clients=3), work.engine.local, loss=work.loss
        )

    return Party(
        folder / name,
        identity=Identity(name=name, key=KEYS[name], server=SERVER.public_key()),
        policy=PartyPolicy(**{"budget": Budget(epsilon=60.0, delta=work.plan.budget.delta)} | allowed),
        learner=learner,
        randomness=work.randomness,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_three_parties_release_the_model_of_one_machine(kind: str, tmp_path: Path) -> None:
    settings = seeded("data.clients=3", *KINDS[kind])
    here, there = (Run.create(settings, tmp_path / name) for name in ("here", "there"))
    here.train()
    work = clients_of(there)
    offer = replace(offer_of(work), parties=NAMES)
    parties = [party(tmp_path, work, number) for number in range(3)]
    for each in parties:
        each.reply(offer.to_bytes(SERVER))
    nodes = {number: Node(id=number, party=name, key=KEYS[name].public_key()) for number, name in enumerate(NAMES)}
    network = Network(
        line=PlainLine({number: each.reply for number, each in enumerate(parties)}),
        offer=offer,
        deal=by_party(nodes),
        key=SERVER,
        patience=Patience(timeout=5, clock=VirtualClock()),
    )
    there.trained_by(network.trainer).train()
    released = [load_file(tmp_path / name / "model.safetensors") for name in ("here", "there")]
    assert {name: array.tolist() for name, array in released[1].items()} == {
        name: array.tolist() for name, array in released[0].items()
    }
    for each in parties:
        rounds = charged(each.folder)
        assert rounds == list(range(len(rounds)))
        assert len(rounds) == 4 or kind in ("poisson", "correlated")  # not asked in every round
