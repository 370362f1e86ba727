"""The calls to Flower's internal APIs, which its public interface does not offer.

A party that runs no uploaded code speaks the Fleet API itself (`PartyLine`). A server that owns its runs speaks the
Control and the Runtime API itself (`ServerLine`), so no uploaded code runs there either. Both use modules of flwr that
may change with any release: flwr is pinned below 1.43, and `python -m scripts.flwr_moved` names what another one lacks.
"""

import hashlib
import io
import ssl
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID, ErrorCode
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto
from flwr.proto import control_pb2, fleet_pb2, heartbeat_pb2, message_pb2, node_pb2, runtime_pb2
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.protobuf.client import ProtobufClient, ProtobufClientInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from google.protobuf.message import DecodeError

from incrowd.errors import DataError, IncrowdError
from incrowd.flower.grid import PIECE, TYPE, pack, unpack
from incrowd.parties.keys import NODE, NODE_KEY, node_key

BEAT = 10.0  # seconds between two signs of life: a third of what Flower expects

_SERVER = node_pb2.Node(node_id=SUPERLINK_NODE_ID)
_HEADS = 2**16  # the names and heads of an answer's objects, beside its pieces
_TIME_LIMIT = 30.0
_APP = """\
# Carries opaque bytes: the server's own process takes its task, and nothing in here is ever run.
[project]
name = "incrowd-run"
version = "1.0.0"

[tool.flwr.app]
publisher = "incrowd"

[tool.flwr.app.components]
serverapp = "incrowd_run:never"
clientapp = "incrowd_run:never"
"""

_NOT_OURS = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "this party answers questions of incrowd alone")
_UNREADABLE = (  # the errors of Flower on malformed objects, which it does not check
    *(ArithmeticError, AssertionError, AttributeError, DecodeError, LookupError),
    *(MemoryError, RuntimeError, TypeError, ValueError),
)
_Client = TypeVar("_Client", bound=ProtobufClient)


class LineBroken(IncrowdError):
    """The other side cannot be reached, or refuses the message."""


class Asked(NamedTuple):
    """A question to a party, and the message that carried it."""

    content: bytes
    message: Message


@dataclass
class _Arriving:
    """A message whose objects are still arriving. `content` stays None if they are lost or cannot be read."""

    run: int
    number: str
    tree: message_pb2.ObjectTree
    asked: str = ""
    wanted: list[str] | None = None
    objects: dict[str, bytes] = field(default_factory=dict)
    content: bytes | None = None
    lost: bool = True

    def fetch(self, client: FleetHttpClient | RuntimeHttpClient, node: node_pb2.Node, longest: int) -> bool:
        """Fetch the objects that are there; False if some are still on their way."""
        try:
            self.wanted = _numbers(self.tree, longest) if self.wanted is None else self.wanted
            while self.wanted:
                request = message_pb2.PullObjectRequest(node=node, run_id=self.run, object_id=self.wanted[0])
                response = client.PullObject(request)
                if not response.object_available:
                    return not response.object_found
                _add(self.objects, self.wanted.pop(0), response.object_content, longest)
            self.lost, self.content = False, _read(self.number, self.objects, longest)
        except DataError:
            self.lost = False
        confirm = message_pb2.ConfirmMessageReceivedRequest
        client.ConfirmMessageReceived(confirm(node=node, run_id=self.run, message_object_id=self.number))
        return True


class PartyLine:
    """A party's side of the Fleet API. It never asks for the app of a run, and so can never load it."""

    def __init__(self, address: str, authority: str, folder: Path, longest: int = 2**30) -> None:
        key = node_key(folder)
        self.folder = folder
        self._key = key.public_key()
        self._longest = longest
        signing = NodeAuthHttpInterceptor(key, self._key)
        self._client = _client(FleetHttpClient, address, authority, "SuperNode", signing, party=folder)
        self._node = node_pb2.Node()

    def activate(self, previous: int | None) -> int:
        """Announce this party; return the number that the SuperLink gives it.

        A SuperLink that still counts this party's `previous` life as alive would refuse it for a minute.
        """
        if previous is not None:
            with suppress(LineBroken), _as_broken():
                self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=previous))
        request = fleet_pb2.ActivateNodeRequest(
            public_key=public_key_to_bytes(self._key), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        with _as_broken():
            self._node = node_pb2.Node(node_id=self._client.ActivateNode(request).node_id)
        return self._node.node_id

    def deactivate(self) -> None:
        """Announce that this party leaves; a broken line is ignored."""
        with suppress(LineBroken), _as_broken():
            self._client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self._node.node_id))

    def beat(self) -> bool:
        """Send a heartbeat; False if the SuperLink no longer knows this party."""
        interval = HEARTBEAT_DEFAULT_INTERVAL
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=interval)
        with _as_broken():
            return self._client.SendNodeHeartbeat(request).success

    def pull(self) -> Asked | None:
        """The next question, or None. An unreadable one, such as another app's, is answered by an error."""
        with _as_broken():
            response = self._client.PullMessages(fleet_pb2.PullMessagesRequest(node=self._node))
            if not response.messages_list:
                return None
            message, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
            arriving = _Arriving(message.metadata.run_id, message.metadata.message_id, tree)
            end = time.monotonic() + _TIME_LIMIT
            while not arriving.fetch(self._client, self._node, self._longest) and time.monotonic() < end:
                time.sleep(0.05)
        if arriving.content is None:
            self._send(Message(_NOT_OURS, reply_to=message))
            return None
        return Asked(arriving.content, message)

    def answer(self, question: Asked, content: bytes) -> None:
        """Send an answer."""
        self._send(Message(pack(content), reply_to=question.message))

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _send(self, reply: Message) -> None:
        with _as_broken(), _numbered([reply]):
            request = fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],  # the server need not know the running time
            )
            taken, run = self._client.PushMessages(request), reply.metadata.run_id
            _push([reply], set(taken.objects_to_push), self._client.PushObject, self._node, run, taken.session_id)


class ServerLine:
    """The server's side: the enrolled nodes, and one run that carries messages."""

    def __init__(self, address: str, authority: str, secret: bytes) -> None:
        self._address, self._authority = address, authority
        self._control = _client(ControlHttpClient, address, authority, "flwr CLI")
        acquiring = ["/flwr.proto.Runtime/AcquireTask"]
        tasks = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=acquiring)
        self._tasks = _client(RuntimeHttpClient, address, authority, "SuperExec", tasks)
        self.nodes: dict[str, int] = {}
        self._run = 0
        self._runtime: RuntimeHttpClient | None = None
        self._arriving: list[_Arriving] = []

    def check(self) -> None:
        """Raise `LineBroken` if the SuperLink does not answer."""
        with _as_broken():
            self._control.ListRuns(control_pb2.ListRunsRequest(limit=1))

    def enrol(self, parties: Mapping[str, bytes]) -> None:
        """Enrol these parties, by their node keys, and nobody else: `nodes` has their numbers."""
        with _as_broken():
            found = self._control.ListNodes(control_pb2.ListNodesRequest()).nodes_info
            known = {each.public_key: each.node_id for each in found}
            for name, key in parties.items():
                request = control_pb2.RegisterNodeRequest(public_key=key, name=name)
                self.nodes[name] = known.pop(key, 0) or self._control.RegisterNode(request).node_id
            for node in known.values():
                self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=node))

    def unregister(self, name: str) -> None:
        """Remove a party."""
        with _as_broken():
            self._control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=self.nodes.pop(name)))

    def open_run(self) -> None:
        """Start a run and take its task with the secret; the tasks of other runs stay untouched."""
        wanted = runtime_pb2.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        with _as_broken():
            self._run = self._control.StartRun(control_pb2.StartRunRequest(fab=fab_to_proto(_app()))).run_id
            while (taken := self._tasks.AcquireTask(wanted)).task.run_id != self._run:
                if not taken.token:
                    raise LineBroken("the SuperLink gave nobody the task of a run that it started")
            token = RuntimeTokenHttpInterceptor(token=taken.token)
            self._runtime = _client(RuntimeHttpClient, self._address, self._authority, "flwr-serverapp", token)
            self._runtime.PullTaskInput(runtime_pb2.PullTaskInputRequest())  # which says that the task has begun

    def beat(self) -> bool:
        """Send a heartbeat; False if the run has ended."""
        with _as_broken():
            return self._of_run.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest()).success

    def present(self) -> dict[str, str]:
        """The connected parties, and the start of each connection."""
        with _as_broken():
            found = self._of_run.GetNodes(runtime_pb2.GetNodesRequest()).nodes
        since = {each.node_id: each.last_activated_at for each in found}
        return {name: since[node] for name, node in self.nodes.items() if node in since}

    def push(self, parties: list[str], content: bytes, seconds: float) -> dict[str, str]:
        """Send one question to several parties; return the party of each message."""
        record, nodes = pack(content), [self.nodes[name] for name in parties]
        heads = [Metadata(self._run, "", SUPERLINK_NODE_ID, node, "", "", time.time(), seconds, TYPE) for node in nodes]
        messages = [make_message(head, content=record) for head in heads]
        with _as_broken(), _numbered(messages):
            request = runtime_pb2.PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(each)) for each in messages],
                message_object_trees=[get_object_tree(each) for each in messages],
            )
            taken = self._of_run.PushMessages(request)
            wanted = set(taken.objects_to_push)
            _push(messages, wanted, self._of_run.PushObject, _SERVER, self._run, taken.session_id)
        return {number: name for number, name in zip(taken.message_ids, parties, strict=True) if number}

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes | None]]:
        """The answers that have come, each with the number of its question's message; None for a lost message.

        Guarantee: an answer that cannot be read, or is longer than `longest`, is empty, and keeps no other from
        arriving. It fetches at most `longest` bytes and a piece more, and waits for none.
        """
        self._arriving = [each for each in self._arriving if each.asked in asked]
        arriving = {each.asked for each in self._arriving}  # Flower calls lost what is asked for once more
        with _as_broken():
            rest = [number for number in asked if number not in arriving]
            response = self._of_run.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=rest))
            for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                replied, number = head.metadata.reply_to_message_id, head.metadata.message_id
                if head.HasField("error"):  # an error of the SuperLink, or of a party that could not read the question
                    yield replied, None
                else:
                    self._arriving.append(_Arriving(self._run, number, tree, replied))
            for each in list(self._arriving):
                if each.fetch(self._of_run, _SERVER, longest):
                    self._arriving.remove(each)
                    yield each.asked, None if each.lost else each.content or b""

    def close(self) -> None:
        """Close the connections."""
        for client in (self._control, self._tasks, self._runtime):
            if client is not None:
                client.close()

    @property
    def _of_run(self) -> RuntimeHttpClient:
        if self._runtime is None:
            raise LineBroken("no run is open")
        return self._runtime


@contextmanager
def _as_broken() -> Iterator[None]:
    """Turn the errors of Flower's client on a broken line into our own."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        raise LineBroken(f"{error.response.status_code}: {error.response.text[:200]}") from None
    except (httpx.HTTPError, ssl.SSLError, RuntimeError) as error:  # the last: closed by another thread
        raise LineBroken(f"{type(error).__name__}: {str(error)[:200]}") from None


def _client(
    kind: type[_Client],
    address: str,
    authority: str,
    component: str,
    *more: ProtobufClientInterceptor,
    party: Path | None = None,
) -> _Client:
    """A client of Flower's that trusts this authority alone, and tries once, as Flower's own retries end the process
    with SIGINT. A `party` shows the certificate that it was given, and may be behind a proxy.
    """
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    trust.load_verify_locations(cadata=authority)
    if party is not None and (party / NODE).exists():
        trust.load_cert_chain(party / NODE, party / NODE_KEY)
    interceptors = [RuntimeVersionHttpInterceptor(component_name=component), *more]
    client = kind(f"https://{address}", interceptors=interceptors, verify=trust, timeout=_TIME_LIMIT)
    client._client.close()  # it follows where it is sent, and goes to loopback through a proxy
    client._client = httpx.Client(verify=trust, timeout=_TIME_LIMIT, trust_env=party is not None)
    return client


@contextmanager
def _numbered(messages: list[Message]) -> Iterator[None]:
    """Give messages their numbers, which are digests of their objects, computed once."""
    with no_object_id_recompute():
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        yield


def _push(
    messages: list[Message],
    wanted: set[str],
    send: Callable[[message_pb2.PushObjectRequest], message_pb2.PushObjectResponse],
    node: node_pb2.Node,
    run: int,
    session: str,
) -> None:
    """Send the objects that the other side lacks."""
    objects = {number: each for message in messages for number, each in get_all_nested_objects(message).items()}
    for number in wanted & set(objects):
        request = message_pb2.PushObjectRequest(
            node=node, run_id=run, object_id=number, object_content=objects[number].deflate(), session_id=session
        )
        if not send(request).stored:  # the message is gone; a server that still waits asks again
            return


def _numbers(tree: message_pb2.ObjectTree, longest: int) -> list[str]:
    """The objects of a message, each once; more than `pack` makes of `longest` bytes are a `DataError`."""
    most = longest // PIECE + 8
    numbers: dict[str, None] = {}
    for each in iterate_object_tree(tree):
        numbers[each.object_id] = None
        if len(numbers) > most:
            raise DataError("a message of too many pieces")
    return list(numbers)


def _add(contents: dict[str, bytes], number: str, content: bytes, longest: int) -> None:
    contents[number] = content
    if sum(map(len, contents.values())) > longest + _HEADS:
        raise DataError("a message that is too long")


def _read(number: str, contents: dict[str, bytes], longest: int) -> bytes:
    """The bytes in the objects of an untrusted message."""
    try:
        message = inflate_object_from_contents(number, contents)
        if not isinstance(message, Message) or not message.has_content():
            raise DataError("not a message")
        return unpack(message.content, longest)
    except DataError:
        raise
    except _UNREADABLE as error:
        raise DataError("a message that cannot be read") from error


def _app() -> Fab:
    """An app without code, which Flower needs to start a run."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
    content = file.getvalue()
    return Fab(hashlib.sha256(content).hexdigest(), content, {})
