"""Three parties as processes of their own, with TLS and node keys, release the model of one machine."""

from pathlib import Path

import pytest

from incrowd._random import Floats
from incrowd.federated import FedAvg
from incrowd.federated.fedavg import Trainers
from incrowd.flower.network import Network, Node, by_party
from incrowd.flower.rounds import Patience, ask
from incrowd.flower.wire import unsealed
from incrowd.learning import CohortEngine
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.privacy.plan.plan import Plan
from incrowd.privacy.plan.promise import NoisePlace
from incrowd.privacy.release import PrivateRun, Trainer
from incrowd.settings.server import ServerOptimizer
from tests.flower import training_party
from tests.flower.deployment import NAMES, Deployment
from tests.flower.parties import LOCAL, MODEL, RANDOMNESS, offer_for, plan_of, tensors
from tests.flower.test_party import charged
from tests.flower.training_party import key_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROUNDS = 3


def algorithm(plan: Plan, trainers: Trainers | None = None) -> FedAvg:
    ledger = Ledger.in_memory(budget=plan.budget, relation=plan.relation)
    private = PrivateRun(plan, ledger=ledger, randomness=RANDOMNESS, size=MODEL.size)
    engine = CohortEngine(MODEL, tensors(), LOCAL)
    return FedAvg(engine=engine, private=private, server=ServerOptimizer(), trainers=trainers)


@pytest.mark.parametrize("place", ["central", "local"])
def test_parties_elsewhere_release_the_model_of_one_machine(place: NoisePlace, tmp_path: Path) -> None:
    plan = plan_of(ROUNDS, place=place)
    here = algorithm(plan)
    expected = here.init()
    for _ in range(ROUNDS):
        expected, _ = here.apply(expected)
    offer, server = offer_for(plan, parties=NAMES), key_of("server")
    with Deployment(tmp_path, script=training_party.__file__) as deployment:
        deployment.start()
        link = deployment.link
        names = {number: name for name, number in link.nodes.items()}

        def accepted(number: int, frame: bytes) -> str:
            key = key_of(names[number]).public_key()
            return unsealed(frame, kind="acceptance", key=key, most=0)[0].party

        patience = Patience(timeout=60, again=5)
        frames = dict.fromkeys(names, offer.to_bytes(server))
        assert ask(link, frames, longest=10_000, read=accepted, patience=patience) == names
        nodes = {
            place: Node(id=link.nodes[name], party=name, key=key_of(name).public_key())
            for place, name in enumerate(NAMES)
        }

        network = Network(line=link, offer=offer, deal=by_party(nodes), key=server, patience=patience)

        def trainers(weights: Floats) -> Trainer:
            return network.trainer(weights)

        there = algorithm(plan, trainers)
        state = there.init()
        for number in range(ROUNDS):
            if number == 1:
                deployment.kill("birch")
                deployment.start("birch")
            if number == 2:
                deployment.kill_server("superlink")
            state, _ = there.apply(state)
    assert state.weights.tolist() == expected.weights.tolist()
    for name in NAMES:
        assert charged(tmp_path / name / "party") == list(range(ROUNDS))
