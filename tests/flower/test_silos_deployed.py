"""Three silos as processes of their own, with TLS and node keys, release the model of one machine."""

from pathlib import Path
from typing import Any

import pytest

from incrowd.flower.network import Node
from incrowd.flower.rounds import Patience, ask
from incrowd.flower.silo_work import served, silo_offer
from incrowd.flower.wire import unsealed
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.run import Run
from tests.flower import training_silo
from tests.flower.deployment import NAMES, Deployment
from tests.flower.silo_parties import THREE, config_of, federation_of
from tests.flower.test_party import charged
from tests.flower.test_silo_party import weights
from tests.flower.training_party import key_of
from tests.flower.training_silo import OVERRIDES
from tests.runs.small import silos_of
from tests.runs.test_silo_run import ROUNDS, SEEDED
from tests.runs.test_silo_run import small as silos

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("one_thread")]


class Killing:
    """Kills a silo after the first round, and the SuperLink after the second."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.rounds = 0

    def start(self, *_: object) -> None: ...

    def round(self, _: Any) -> None:
        self.rounds += 1
        if self.rounds == 1:
            self.deployment.kill("birch")
            self.deployment.start("birch")
        if self.rounds == 2:
            self.deployment.kill_server("superlink")

    def end(self, *_: object) -> None: ...


def test_silos_elsewhere_release_the_model_of_one_machine(tmp_path: Path) -> None:
    expected = Run.create(silos(*THREE, *SEEDED, *OVERRIDES), tmp_path / "here").train()
    run = Run.create(config_of(federation_of(*OVERRIDES), tmp_path / "enrolled", NAMES), tmp_path / "there")
    offer, server = silo_offer(silos_of(run)), key_of("server")
    with Deployment(tmp_path, script=training_silo.__file__) as deployment:
        deployment.start()
        link = deployment.link
        names = {number: name for name, number in link.nodes.items()}

        def accepted(number: int, frame: bytes) -> str:
            key = key_of(names[number]).public_key()
            return unsealed(frame, kind="acceptance", key=key, most=0)[0].party

        patience = Patience(timeout=100, again=5)
        frames = dict.fromkeys(names, offer.to_bytes(server))
        assert ask(link, frames, longest=10_000, read=accepted, patience=patience) == names
        nodes = {
            place: Node(id=link.nodes[name], party=name, key=key_of(name).public_key())
            for place, name in enumerate(NAMES)
        }
        asked = served(run, line=link, nodes=lambda: nodes, key=server, patience=patience)
        found = asked.train([Killing(deployment)])
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    for name in ("epsilon_by_silo", "report_by_silo"):
        assert list(found[name].values()) == list(expected[name].values())
    for name in NAMES:
        assert charged(tmp_path / name / "party") == list(range(ROUNDS + 1))
        assert verify(tmp_path / name / "party" / "ledger.sqlite")["intact"]
