"""Strangers at the port that parties reach, one party that sends without end, and a server that uploads code.

They hold connections before and after the handshake, make handshakes, pipeline requests, and ask at interfaces for
which Flower wants no key; its SuperNode runs what comes with a run. Each attack is shown to succeed where nginx as we
configure it, or our party, is not in its way.
"""

import hashlib
import io
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListNodesResponse,
    ListRunsRequest,
    ListRunsResponse,
    StartRunRequest,
    StartRunResponse,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest, AcquireTaskResponse
from flwr.supercore.fab import Fab
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.superlink.main import create_app
from google.protobuf.message import Message as Proto

from incrowd.flower import fleet
from incrowd.flower.fleet import LineBroken, PartyLine, ServerLine
from incrowd.flower.superlink import SECRET_FILE
from incrowd.parties.keys import node_key
from tests import nginx
from tests.flower import flood
from tests.flower.before import Before, before
from tests.flower.deployment import NAMES, ROOT, Deployment, expected, free_port, wait_for

pytestmark = [nginx.missing, pytest.mark.slow, pytest.mark.timeout(300)]


ASKED = 60
EACH = 32
"""Connections of one address, as the configuration has it."""


@pytest.fixture(scope="module")
def place() -> Iterator[Before]:
    with before() as made:
        yield made


class Attacker:
    """A flood that goes on while its block runs, or so many seconds."""

    def __init__(self, place: Before, mode: str, seconds: float = 90.0) -> None:
        words = [mode, str(place.port), str(place.folder / "keys" / "ca.crt"), str(seconds)]
        if mode == "pipeline":
            header = place.header("birch")["flwr-public-key"]
            words += [str(place.folder / "birch" / "node.crt"), str(place.folder / "birch" / "node.key"), header]
        self._process = subprocess.Popen([sys.executable, flood.__file__, *words], stdout=subprocess.PIPE)
        time.sleep(4.0)

    def end(self) -> dict[str, int]:
        """What it had; what goes on for too long is killed."""
        try:
            said, _ = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        found: dict[str, int] = json.loads(said)
        return found


def honest(place: Before, asked: int = ASKED) -> Counter[int | str]:
    """The answers that an enrolled party gets, each over a connection of its own."""
    found: Counter[int | str] = Counter()
    for _ in range(asked):
        found[place.ask("amber")] += 1
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("mode", ["idle", "stall", "half", "handshakes", "pipeline"])
def test_honest_parties_are_answered_whatever_strangers_do(place: Before, mode: str) -> None:
    attacker = Attacker(place, mode, seconds=25.0)
    try:
        assert honest(place) == {200: ASKED}
    finally:
        found = attacker.end()
    assert found["made"] >= 10
    assert found["most"] <= flood.ADDRESSES * EACH


def test_a_connection_without_a_request_lasts_for_seconds(place: Before) -> None:
    connection = place.trust(None).wrap_socket(
        socket.create_connection(("127.0.0.1", place.port)), server_hostname="localhost"
    )
    begin = time.monotonic()
    connection.settimeout(30.0)
    while connection.recv(2**16):
        pass
    assert time.monotonic() - begin < 15
    connection.close()


def test_without_limits_half_handshakes_lock_everybody_out() -> None:
    """The control: nginx as it comes, with 512 connections, none for each address, and a minute for a head."""

    def changed(text: str) -> str:
        text = text.replace("limit_conn network 32;", "").replace("worker_connections 8192;", "worker_connections 512;")
        return text.replace("client_header_timeout 5s;", "client_header_timeout 60s;")

    with before(changed) as made:
        assert honest(made, 3) == {200: 3}
        attacker = Attacker(made, "stall", seconds=20.0)
        try:
            assert honest(made, 3)[200] == 0
        finally:
            assert attacker.end()["most"] > flood.ADDRESSES * EACH / 2


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path, proxied=True) as made:
        made.start()
        assert made.ask(b"one") == expected(b"one")
        yield made


class Stranger:
    """Somebody who trusts the server's certificate, and has no key."""

    def __init__(self, deployment: Deployment, *, proxied: bool) -> None:
        """At nginx, or at the SuperLink itself, which listens on loopback."""
        port = deployment.address.rpartition(":")[2] if proxied else deployment.port
        trust = ssl.create_default_context(cafile=str(deployment.keys / "ca.crt"))
        self._client = httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trust, timeout=20, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def say(self, path: str, request: Proto | None = None) -> httpx.Response:
        content = b"" if request is None else request.SerializeToString(deterministic=True)
        return self._client.post(
            path, content=content, headers={"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}
        )


def server_line(deployment: Deployment, secret: bytes | None = None) -> ServerLine:
    """The operator's line, who has the secret, or somebody's with another."""
    own = (deployment.folder / "serving" / SECRET_FILE).read_bytes() if secret is None else secret
    return ServerLine(f"127.0.0.1:{deployment.port}", (deployment.keys / "ca.crt").read_text(), own)


def test_a_stranger_reaches_neither_control_nor_runtime_interfaces(deployment: Deployment) -> None:
    paths = set(create_app().openapi()["paths"])
    assert {path.split("/")[2] for path in paths if path.startswith("/v1/")} >= {"control", "runtime", "fleet"}
    with Stranger(deployment, proxied=True) as stranger:
        assert {stranger.say(path).status_code for path in paths} == {400}

    runs, nodes = ListRunsResponse(), ListNodesResponse()
    with Stranger(deployment, proxied=False) as control:  # which shows that it is nginx that keeps strangers out
        runs.ParseFromString(control.say("/v1/control/list-runs", ListRunsRequest(limit=5)).content)
        nodes.ParseFromString(control.say("/v1/control/list-nodes", ListNodesRequest()).content)
    assert len(runs.run_dict) == 1
    assert {node.name for node in nodes.nodes_info} == set(NAMES)


def test_a_stranger_on_the_servers_own_machine_gets_no_task_and_with_it_no_contribution(deployment: Deployment) -> None:
    started = StartRunResponse()
    asking = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
    with Stranger(deployment, proxied=False) as stranger:
        request = StartRunRequest(fab=fab_to_proto(fleet._app()))
        started.ParseFromString(stranger.say("/v1/control/start-run", request).content)
        refused = stranger.say("/v1/runtime/acquire-task", asking)
    assert started.run_id
    taken = AcquireTaskResponse()
    if refused.status_code == 200:
        taken.ParseFromString(refused.content)
    assert not taken.token
    assert refused.status_code in (401, 403)
    assert deployment.ask(b"two") == expected(b"two")

    line = server_line(deployment)  # who has the secret takes it: the control
    line.open_run()
    line.close()
    line = server_line(deployment, b"a guess")
    with pytest.raises(LineBroken):
        line.open_run()
    line.close()


CLIENT = """\
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
found = Path({data!r}).read_bytes()
Path({marker!r}).write_bytes(found)

@app.train()
def train(message, context):
    return Message(RecordDict({{"0": ConfigRecord({{"bytes": found}})}}), reply_to=message)
"""
PROJECT = """\
[project]
name = "thief"
version = "1.0.0"
[tool.flwr.app]
publisher = "thief"
[tool.flwr.app.components]
serverapp = "thief:app"
clientapp = "thief:app"
"""


def app_that_reads(data: Path, marker: Path) -> Fab:
    """What `flwr run` would upload."""
    code = CLIENT.format(data=str(data), marker=str(marker)).encode()
    files = {"pyproject.toml": PROJECT.encode(), "thief.py": code}
    sums = "".join(f"{name},{hashlib.sha256(each).hexdigest()},{8 * len(each)}\n" for name, each in files.items())
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, each in {**files, ".info/CONTENT": sums.encode()}.items():
            archive.writestr(name, each)
    content = file.getvalue()
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def test_an_uploaded_app_that_reads_the_data_gets_nothing_from_a_party_and_all_from_a_stock_supernode(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, marker = tmp_path / "amber" / "patients.csv", tmp_path / "stolen"
    data.write_bytes(b"name,illness\n")
    monkeypatch.setattr(fleet, "_app", lambda: app_that_reads(data, marker))
    line = server_line(deployment)
    line.open_run()  # the operator of the server, with a run whose app is the thief's
    line.enrol({each.name: each.node_pem() for each in deployment.enrolments})
    try:
        (answer,) = answers(line)
        assert answer == expected(b"give")["amber"]
        assert not marker.exists()

        deployment.kill("amber")
        end_its_life(deployment)
        supernode = stock_supernode(deployment, tmp_path)
        try:
            (answer,) = answers(line)
        finally:
            supernode.terminate()
            supernode.wait()
        assert answer == b"name,illness\n"
        assert marker.exists()
    finally:
        line.close()


def end_its_life(deployment: Deployment) -> None:
    """Let the SuperLink know that the party is gone, as its next life would."""
    folder = deployment.folder / "amber"
    party = PartyLine(deployment.address, (deployment.keys / "ca.crt").read_text(), folder, 1000)
    party.activate(int((folder / "node.number").read_text()))
    party.deactivate()
    party.close()


def answers(line: ServerLine) -> list[bytes]:
    """Ask amber, and wait for its answer."""
    wait_for(lambda: line.beat() and "amber" in line.present(), 60)
    asked = list(line.push(["amber"], b"give", 120.0))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if found := [answer for _, answer in line.pull(asked, 10_000) if answer is not None]:
            return found
        line.beat()
        time.sleep(0.1)
    return []


def stock_supernode(deployment: Deployment, folder: Path) -> subprocess.Popen[bytes]:
    """Flower's own, with the same key, on the server's machine."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_HOME": str(folder / "stock"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    (folder / "stock").mkdir()
    key = node_key(folder / "amber").private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (folder / "stock.key").write_bytes(key)
    address = f"127.0.0.1:{deployment.port}"  # it has no option for a certificate to show
    words = ["--superlink", address, "--root-certificates", str(deployment.keys / "ca.crt")]
    words += ["--auth-supernode-private-key", str(folder / "stock.key"), "--port", str(free_port())]
    command = [
        "-c",
        "import sys; from importlib.metadata import entry_points;"
        "sys.argv[0] = 'flower-supernode';"
        "entry_points(group='console_scripts', name='flower-supernode')['flower-supernode'].load()()",
    ]
    with (folder / "stock.log").open("wb") as log:
        return subprocess.Popen([sys.executable, *command, *words], stdout=log, stderr=log, env={**os.environ, **quiet})
