"""Silos that are asked over a network release what they release on one machine, and pay for it once."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from incrowd.algorithms.silos import Answer
from incrowd.errors import DataError
from incrowd.flower.simulation import SiloStock
from incrowd.parties.asking import Patience
from incrowd.parties.frames import Place, read_silo, sealed, sealed_answer
from incrowd.parties.network import Network, Node, SiloServer, by_party, offer_of
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.run import Run
from tests.parties.nodes import PlainLine, VirtualClock
from tests.runs.small import silos_of
from tests.runs.test_silo_run import SEEDED, SMALL
from tests.runs.test_silo_run import small as silos

SERVER, KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
SIZE = 3
PLACE = Place(plan="p" * 64, round=2, party="silo-1")


def weights(folder: Path) -> dict[str, list[float]]:
    return {name: array.tolist() for name, array in load_file(folder / "model.safetensors").items()}


def network_of(run: Run) -> tuple[SiloServer, PlainLine]:
    work = silos_of(run)
    offer = offer_of(work)
    stock = SiloStock(work=work, folder=run.folder, plan=offer.fingerprint)
    blocks = [stock.block(server=SERVER.public_key(), key=KEY) for _ in range(2)]
    line = PlainLine({3: blocks[0].answer, 4: blocks[1].answer})
    nodes = [Node(id=3 + at, party=name, key=KEY.public_key(), block=True) for at, name in enumerate(work.names)]
    patience = Patience(timeout=5, clock=VirtualClock(), all_needed=True)
    deal = by_party(dict(enumerate(nodes)))
    network = Network(transport=line, offer=offer, deal=deal, key=SERVER, patience=patience)
    return SiloServer(network=network, descent=work.config.local), line


def over(server: SiloServer, line: PlainLine, **rest: Any) -> SiloServer:
    """The same over another line."""
    return replace(server, network=replace(server.network, transport=line, **rest))


def test_silos_elsewhere_release_the_model_of_one_machine(tmp_path: Path) -> None:
    here, there = (Run.create(silos(*SEEDED), tmp_path / name) for name in ("here", "there"))
    expected = here.train()
    network, line = network_of(there)
    found = there.asking(together=network.answers).train()
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
    assert found["epsilon_by_silo"] == expected["epsilon_by_silo"]
    assert len(line.asked) == 2 * found["rounds"]
    for name in ("silo-1", "silo-2"):
        with Ledger.read(tmp_path / "there" / "silos" / name / "ledger.sqlite") as ledger:
            assert ledger.charges()[0] == found["rounds"]


def test_a_silo_that_does_not_answer_stops_the_run_until_it_does(tmp_path: Path) -> None:
    run = Run.create(silos(*SEEDED), tmp_path / "run")
    network, line = network_of(run)
    gone = PlainLine({3: line.nodes[3], 4: lambda _: b""})
    with pytest.raises(DataError, match="a message that is no silo"):
        run.asking(together=over(network, gone).answers).train()
    Run.open(tmp_path / "run").train()
    Run.create(silos(*SEEDED), tmp_path / "here").train()
    assert weights(tmp_path / "run") == weights(tmp_path / "here")


def test_a_block_answers_for_its_silos_and_for_nothing_else(tmp_path: Path) -> None:
    run = Run.create(silos(), tmp_path / "run")
    network, line = network_of(run)
    block = line.nodes[3]
    other = network.offer.replaced(columns=("other",))
    server = over(network, PlainLine({3: block, 4: block}), offer=other)
    with pytest.raises(DataError, match="not for one of these silos"):
        server.answers(0, np.zeros(other.size))


def answer(**rest: Any) -> Answer:
    given: dict[str, Any] = {"silo": "silo-1", "round": 2, "epsilon": 0.5, "update": np.array([1.0, -2.5, 1e-300])}
    return Answer(**given | rest)


def opened(frame: bytes) -> Answer:
    return read_silo(frame, place=PLACE, size=SIZE, key=KEY.public_key())


@pytest.mark.parametrize(
    "sent",
    [
        answer(),
        answer(update=None, absence="budget spent"),
        answer(update=None, absence="round lost"),
    ],
    ids=["all", "spent", "lost"],
)
def test_what_a_silo_sends_comes_out_as_it_went_in(sent: Answer) -> None:
    found = opened(sealed_answer(sent, PLACE, key=KEY))
    for name in ("silo", "round", "epsilon", "absence"):
        assert getattr(found, name) == getattr(sent, name)
    assert (found.update is None) == (sent.update is None)
    assert found.update is None or found.update.tobytes() == np.asarray(sent.update).tobytes()


@given(
    head=st.dictionaries(
        st.sampled_from(["epsilon", "absence"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.lists(st.none())
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
    body=st.binary(max_size=40),
)
def test_a_silo_that_signs_nonsense_is_refused_or_finite(head: dict[str, Any], body: bytes) -> None:
    good = {"epsilon": 1.0, "absence": ""}
    try:
        found = opened(sealed("silo", PLACE, good | head, body, key=KEY))
    except DataError:
        return
    assert found.epsilon >= 0
    assert found.update is None or np.isfinite(found.update).all()


@pytest.mark.slow
def test_flower_releases_the_model_of_silos_here(tmp_path: Path) -> None:
    Run.create(silos(*SEEDED), tmp_path / "here").train()
    sets = [word for override in (*SMALL, *SEEDED) for word in ("--set", override)]
    words = ["flower", "simulate", *sets, "--workers", "2", "--out", str(tmp_path / "there"), "--json"]
    done = subprocess.run([sys.executable, "-m", "incrowd", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["epsilon_by_silo"]) == 2
    assert weights(tmp_path / "there") == weights(tmp_path / "here")
