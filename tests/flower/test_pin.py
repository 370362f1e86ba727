"""What is used of Flower's inside is there, and is as it is used. Each test names what broke when the pin moves."""

import importlib
import inspect
import re
from base64 import b64decode
from importlib.metadata import entry_points, requires, version
from pathlib import Path

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

CONFIGURATION = (Path(fleet.__file__).parent / "nginx.conf").read_text()
SAYS = {
    "flwr.supernode.fleet_http_client.FleetHttpClient": (
        "ActivateNode",
        "DeactivateNode",
        "SendNodeHeartbeat",
        "PullMessages",
        "PullObject",
        "ConfirmMessageReceived",
        "PushMessages",
        "PushObject",
    ),
    "flwr.supercore.control.ControlHttpClient": ("ListRuns", "ListNodes", "RegisterNode", "UnregisterNode", "StartRun"),
    "flwr.supercore.runtime.RuntimeHttpClient": (
        "AcquireTask",
        "PullTaskInput",
        "SendTaskHeartbeat",
        "GetNodes",
        "PushMessages",
        "PushObject",
        "PullMessages",
        "PullObject",
        "ConfirmMessageReceived",
    ),
}
FIELDS = {
    "fleet_pb2.ActivateNodeRequest": {"public_key", "heartbeat_interval"},
    "fleet_pb2.DeactivateNodeRequest": {"node_id"},
    "fleet_pb2.PullMessagesRequest": {"node"},
    "fleet_pb2.PullMessagesResponse": {"messages_list", "message_object_trees"},
    "fleet_pb2.PushMessagesRequest": {"node", "messages_list", "message_object_trees", "clientapp_runtime_list"},
    "fleet_pb2.PushMessagesResponse": {"objects_to_push", "session_id"},
    "heartbeat_pb2.SendNodeHeartbeatRequest": {"node", "heartbeat_interval"},
    "message_pb2.PullObjectRequest": {"node", "run_id", "object_id"},
    "message_pb2.PullObjectResponse": {"object_found", "object_available", "object_content"},
    "message_pb2.PushObjectRequest": {"node", "run_id", "object_id", "object_content", "session_id"},
    "message_pb2.PushObjectResponse": {"stored"},
    "message_pb2.ConfirmMessageReceivedRequest": {"node", "run_id", "message_object_id"},
    "control_pb2.StartRunRequest": {"fab"},
    "control_pb2.StartRunResponse": {"run_id"},
    "control_pb2.RegisterNodeRequest": {"public_key", "name"},
    "control_pb2.ListNodesResponse": {"nodes_info"},
    "runtime_pb2.AcquireTaskRequest": {"supported_task_types"},
    "runtime_pb2.AcquireTaskResponse": {"task", "token"},
    "runtime_pb2.GetNodesResponse": {"nodes"},
    "runtime_pb2.PushAppMessagesRequest": {"messages_list", "message_object_trees"},
    "runtime_pb2.PushAppMessagesResponse": {"message_ids", "objects_to_push", "session_id"},
    "runtime_pb2.PullAppMessagesRequest": {"message_ids"},
    "runtime_pb2.PullAppMessagesResponse": {"messages_list", "message_object_trees"},
    "node_pb2.NodeInfo": {"node_id", "public_key", "last_activated_at"},
    "task_pb2.Task": {"run_id"},
}
OPTIONS = (
    "--host",
    "--port",
    "--isolation",
    "--superexec-auth-secret-file",
    "--ssl-certfile",
    "--ssl-keyfile",
    "--ssl-ca-certfile",
    "--enable-supernode-auth",
    "--disable-runtime-dependency-installation",
)


def test_the_version_is_one_that_the_pin_allows() -> None:
    (pin,) = (Requirement(each) for each in requires("incrowd") or [] if each.startswith("flwr"))
    assert pin.specifier.contains(version("flwr")), f"flwr {version('flwr')} is not {pin.specifier}: read on"


@pytest.mark.parametrize(("client", "call"), [(client, call) for client, calls in SAYS.items() for call in calls])
def test_a_client_of_flowers_says_what_is_used(client: str, call: str) -> None:
    module, name = client.rsplit(".", 1)
    found = getattr(getattr(importlib.import_module(module), name), call, None)
    assert found is not None, f"{client} has no {call} any more: incrowd.flower.fleet uses it"
    assert list(inspect.signature(found).parameters) == ["self", "request"], f"{client}.{call} takes something else now"


@pytest.mark.parametrize("name", FIELDS)
def test_messages_of_flowers_have_the_fields_that_are_used(name: str) -> None:
    module, kind = name.split(".")
    fields = set(getattr(importlib.import_module(f"flwr.proto.{module}"), kind).DESCRIPTOR.fields_by_name)
    assert fields >= FIELDS[name], f"flwr.proto.{name} has lost {sorted(FIELDS[name] - fields)}"


@pytest.mark.parametrize("option", OPTIONS)
def test_the_superlink_knows_the_options_that_it_is_started_with(option: str) -> None:
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

    options = {word for action in _parse_args_run_superlink()._actions for word in action.option_strings}
    assert option in options, f"flower-superlink has no {option} any more: incrowd.flower.superlink uses it"


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

    found = inspect.signature(ray_actor.VirtualClientEngineActor.run)
    assert list(found.parameters)[:5] == ["self", "client_app_fn", "message", "cid", "context"], (
        "Flower's actors take something else now: see incrowd.flower.simulation"
    )
    assert list(inspect.signature(ray_actor.pool_size_from_resources).parameters) == ["client_resources"]
    assert hasattr(ray_actor.ClientAppActor, "options"), "ClientAppActor is no actor of Ray's any more"
