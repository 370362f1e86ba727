"""Who has no key of a party, and a server that uploads code: both on real processes.

Flower asks for a key at one interface of three, and its SuperNode runs what comes with a run. Each attack is shown to
succeed where nginx as we configure it, or our party, is not in its way.
"""

import hashlib
import io
import os
import ssl
import subprocess
import sys
import time
import zipfile
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
from tests.flower.deployment import NAMES, ROOT, Deployment, expected, free_port, wait_for

pytestmark = [nginx.missing, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path, proxied=True) as made:
        made.start()
        assert made.ask(b"one") == expected(b"one")
        yield made


class Stranger:
    """Somebody who trusts the server's certificate, and has no key."""

    def __init__(self, port: int, authority: Path) -> None:
        trust = ssl.create_default_context(cafile=str(authority))
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


def before_nginx(deployment: Deployment) -> Stranger:
    return Stranger(int(deployment.address.rpartition(":")[2]), deployment.keys / "ca.crt")


def behind_nginx(deployment: Deployment) -> Stranger:
    """The same stranger at the SuperLink itself, which listens on loopback."""
    return Stranger(deployment.port, deployment.keys / "ca.crt")


def server_line(deployment: Deployment, secret: bytes | None = None) -> ServerLine:
    """The operator's line, who has the secret, or somebody's with another."""
    own = (deployment.folder / "serving" / SECRET_FILE).read_bytes() if secret is None else secret
    return ServerLine(f"127.0.0.1:{deployment.port}", (deployment.keys / "ca.crt").read_text(), own)


def test_a_stranger_reaches_neither_control_nor_runtime_interfaces(deployment: Deployment) -> None:
    paths = set(create_app().openapi()["paths"])
    assert {path.split("/")[2] for path in paths if path.startswith("/v1/")} >= {"control", "runtime", "fleet"}
    with before_nginx(deployment) as stranger:
        assert {stranger.say(path).status_code for path in paths} == {400}

    runs, nodes = ListRunsResponse(), ListNodesResponse()
    with behind_nginx(deployment) as control:  # which shows that it is nginx that keeps strangers out
        runs.ParseFromString(control.say("/v1/control/list-runs", ListRunsRequest(limit=5)).content)
        nodes.ParseFromString(control.say("/v1/control/list-nodes", ListNodesRequest()).content)
    assert len(runs.run_dict) == 1
    assert {node.name for node in nodes.nodes_info} == set(NAMES)


def test_a_stranger_on_the_servers_own_machine_gets_no_task_and_with_it_no_contribution(
    deployment: Deployment,
) -> None:
    started = StartRunResponse()
    asking = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
    with behind_nginx(deployment) as stranger:
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
    node = line.nodes["amber"]
    try:
        (answer,) = answers(line, node)
        assert answer == expected(b"give")["amber"]
        assert not marker.exists()

        deployment.kill("amber")
        end_its_life(deployment)
        supernode = stock_supernode(deployment, tmp_path)
        try:
            (answer,) = answers(line, node)
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


def answers(line: ServerLine, node: int) -> list[bytes]:
    """Ask a node, and wait for its answer."""
    wait_for(lambda: line.beat() and node in line.present(), 60)
    asked = list(line.push([node], b"give", 120.0))
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
