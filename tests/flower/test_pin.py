"""What is used of Flower's inside is there, and is as it is used. Each test names what broke when the pin moves."""

import inspect
import re
from base64 import b64decode
from importlib.metadata import entry_points, requires, version
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.common import constant
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.supercore import constant as core_constant
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufRequestContext
from flwr.superlink.main import create_app
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from packaging.requirements import Requirement

from incrowd.flower import fleet
from incrowd.parties.keys import new_party, node_key
from scripts import flwr_moved

CONFIGURATION = (Path(fleet.__file__).parent / "nginx.conf").read_text()


def test_the_version_is_one_that_the_pin_allows() -> None:
    (pin,) = (Requirement(each) for each in requires("incrowd") or [] if each.startswith("flwr"))
    assert pin.specifier.contains(version("flwr")), f"flwr {version('flwr')} is not {pin.specifier}: read on"


def test_nothing_that_is_used_of_flwr_is_gone() -> None:
    for path in flwr_moved.ROOM.glob("*.py"):
        assert list(flwr_moved.moved(path.read_text())) == [], path.name


def test_what_is_gone_is_named() -> None:
    source = """
from flwr.app import Message, Letter
from flwr.proto import fleet_pb2
request = fleet_pb2.ActivateNodeRequest(public_key=b"", colour="red")
fleet_pb2.Greeting()
self._client.ActivateNode(request)
self._client.Greet("--host", "--colour")
"""
    assert sorted(flwr_moved.moved(source)) == [
        "ActivateNodeRequest.colour: the field is gone",
        "Greet: the call is gone",
        "flower-superlink --colour: the option is gone",
        "flwr.app.Letter: gone",
        "flwr.proto.fleet_pb2.Greeting: gone",
    ]


def test_the_superlink_is_a_command() -> None:
    assert len(entry_points(group="console_scripts", name="flower-superlink")) == 1, "flower-superlink is gone"


def test_nginx_looks_for_the_header_that_flower_names_a_key_in() -> None:
    header = core_constant.FLEET_HTTP_PUBLIC_KEY_HEADER.lower().replace("-", "_")
    assert f"$http_{header}" in CONFIGURATION, "the header has another name"


def test_clocks_may_differ_by_what_the_docs_say() -> None:
    bounds = (constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE, -constant.SYSTEM_TIME_TOLERANCE)
    assert bounds == (305.0, -5.0), "Flower allows clocks to differ by something else now: see docs/deploy.md"


@pytest.mark.slow
def test_nginx_lets_through_paths_that_the_superlink_has() -> None:
    names = [name for found in re.findall(r"/v1/fleet/\(?([a-z|-]+)", CONFIGURATION) for name in found.split("|")]
    ours, theirs = {f"/v1/fleet/{name}" for name in names}, set(create_app().openapi()["paths"])
    assert len(ours) == 10
    assert theirs >= ours, f"the SuperLink has no {sorted(ours - theirs)}"


def test_flower_compares_keys_in_the_form_that_is_registered(tmp_path: Path) -> None:
    made = new_party(tmp_path, "amber")
    assert public_key_to_bytes(node_key(tmp_path).public_key()) == made.node_pem(), "keys have another form"


def test_flower_names_its_key_as_nginx_looks_for_it(tmp_path: Path) -> None:
    made, key, request = new_party(tmp_path, "amber"), node_key(tmp_path), httpx.Request("POST", "https://here")
    context = ProtobufRequestContext("", PullMessagesRequest(), request)
    NodeAuthHttpInterceptor(key, key.public_key()).intercept(context, lambda _: httpx.Response(200))
    assert b64decode(request.headers[core_constant.FLEET_HTTP_PUBLIC_KEY_HEADER]) == made.node_pem()


def test_a_client_of_flowers_has_its_connection_where_ours_is_put() -> None:
    client = ProtobufClient("https://here")
    assert isinstance(client._client, httpx.Client), "ProtobufClient keeps its connection elsewhere: see fleet._client"
    client.close()


def test_a_message_gets_its_number_where_it_is_put() -> None:
    message = make_message(Metadata(1, "", 1, 2, "", "", 1.0, 1.0, "train"), content=RecordDict())
    message.metadata.__dict__["_message_id"] = "number"
    assert message.metadata.message_id == "number", "Metadata keeps its message_id elsewhere: see fleet"


def test_a_reply_needs_the_metadata_of_what_it_replies_to_and_no_more() -> None:
    asked = make_message(Metadata(1, "number", 1, 2, "", "", 4e9, 100.0, "train"), content=RecordDict())
    reply = Message(RecordDict({"0": ConfigRecord()}), reply_to=asked)
    metadata = reply.metadata
    assert (metadata.reply_to_message_id, metadata.src_node_id, metadata.dst_node_id) == ("number", 2, 1)


def test_the_app_that_starts_a_run_is_one_to_flower() -> None:
    from flwr.common.config import get_fab_config

    assert get_fab_config(fleet._app().content)["project"]["name"] == "incrowd-run"


def test_an_actor_runs_what_the_simulation_gives_it() -> None:
    from flwr.simulation.ray_transport import ray_actor

    class Actor(ray_actor.VirtualClientEngineActor):
        """Flower's, in this process."""

    run: Any = Actor().run
    assert run(lambda: lambda message, context: (message, context), b"frame", "1", None) == (
        "1",
        (b"frame", None),
        None,
    ), "Flower's actors take something else now: see incrowd.flower.simulation"
    assert list(inspect.signature(ray_actor.pool_size_from_resources).parameters) == ["client_resources"]
    assert hasattr(ray_actor.ClientAppActor, "options"), "ClientAppActor is no actor of Ray's any more"
