"""docs/superlink.md, step by step: two hospitals at a stock SuperLink, next to a stock SuperNode and its app."""

import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from incrowd.cli.parties import new_app
from incrowd.parties.guard import given
from incrowd.parties.keys import AUTHORITY, new_authority, new_party, new_server_certificate, node_key
from incrowd.privacy.ledger.ledger import Ledger
from tests.flower.deployment import ROOT, free_port, wait_for
from tests.flower.test_new import Machine, answers
from tests.flower.test_walkthrough import BLOCK, World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(kw_only=True)
class Joined(World):
    """The same with a SuperLink of Flower's own on the server's machine."""

    hospitals: tuple[str, ...] = ("amber", "birch")
    flower: Machine = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        server = self.folder / "server"
        new_authority(server)
        new_server_certificate(server, ["127.0.0.1"])
        self.flower = Machine(server, f'root-certificates = "{server / AUTHORITY}"')
        self.there |= {"9093": str(self.flower.port), "/srv/hearts": str(server)}

    def _run(self, name: str, line: str, *, stays: bool) -> str:
        program, *words = shlex.split(line)
        if program == "flower-superlink":
            self.flower.start("superlink", program, *words)
            wait_for(lambda: answers(self.flower.port), 90)
            return ""
        if program != "flwr":
            return super()._run(name, line, stays=stays)
        if words[0] != "run":
            return self.flower.flwr(*words)
        status = self.flower.run(self.folder / "server" / words[1])
        assert status == "finished:completed", self.flower.logs()
        return status

    def end(self) -> None:
        self.flower.end()
        super().end()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Joined]:
    made = Joined(tmp_path, Path(tempfile.mkdtemp(prefix="fleet-")))
    yield made
    made.end()


def test_parties_train_at_a_stock_superlink_next_to_a_stock_supernode(world: Joined) -> None:
    printed = [world.go(*step) for step in BLOCK.findall((ROOT / "docs" / "superlink.md").read_text())]
    assert "finished:completed" in printed
    server = world.folder / "server"
    assert "differentially private" in (server / "out" / "hearts" / "statement.txt").read_text()
    before = {name: given(world.folder / name / name)["events"] for name in world.hospitals}
    assert all(before.values())

    new_party(server / "stock", "stock")
    key = node_key(server / "stock").private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (server / "stock.key").write_bytes(key)
    world.flower.flwr("supernode", "register", "stock/stock.pub")
    where = ("--superlink", f"127.0.0.1:{world.flower.port}", "--port", str(free_port()))
    trust = ("--root-certificates", AUTHORITY, "--auth-supernode-private-key", "stock.key")
    world.flower.start("stock", "flower-supernode", *where, *trust, "--node-config", "partition-id=0")
    new_app(server / "heart")  # an app of others, which asks all nodes; parties refuse at once
    status = world.flower.run(server / "heart", "--run-config", "rounds=1 clients=3 timeout=600.0")
    assert status == "finished:completed", world.flower.logs()
    with Ledger.read(server / "heart" / "ledger.sqlite") as ledger:
        assert ledger.charges() == (1, 0)
    assert {name: given(world.folder / name / name)["events"] for name in world.hospitals} == before
