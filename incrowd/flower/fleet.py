"""The calls to Flower's internal APIs, which its public interface does not offer.

A party that runs no uploaded code speaks the Fleet API itself (`PartyLine`). A server that owns its runs speaks the
Control and the Runtime API itself (`ServerLine`), so no uploaded code runs there either. Both use modules of flwr that
may change with any release: flwr is pinned below 1.43, and `tests/flower/test_pin.py` names each of them.

Messages are opaque bytes, cut into pieces, each the value of a ConfigRecord. An Array would let the sender choose how
often it is joined.
"""

import hashlib
import io
import ssl
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SUPERLINK_NODE_ID
from flwr.common.serde import fab_to_proto, message_from_proto, message_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    GetNodesRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    PushAppMessagesRequest,
    SendTaskHeartbeatRequest,
)
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
from incrowd.parties.keys import NODE, NODE_KEY, node_key

BEAT = 10.0
"""Seconds between two signs of life: a third of what Flower expects."""

PIECE = 4 * 2**20
"""The most bytes of one object, which bounds a request."""

_FIELD = "bytes"
_SERVER = Node(node_id=SUPERLINK_NODE_ID)
_HEADS = 2**16  # the names and heads of an answer's objects, beside its pieces
_TYPE = "train"  # stock SuperNodes find their function by it
_TIME_LIMIT = 30.0
_POLL = 0.05
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_APP = """\
[project]
name = "incrowd-run"
version = "1.0.0"
description = "Carries opaque bytes: the server's own process takes its task, and nothing in here is ever run."
license = "Apache-2.0"

[tool.flwr.app]
publisher = "incrowd"

[tool.flwr.app.components]
serverapp = "incrowd_run:never"
clientapp = "incrowd_run:never"
"""

_UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    DecodeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors of Flower on malformed objects, which it does not check."""
_Client = TypeVar("_Client", bound=ProtobufClient)


class LineBroken(IncrowdError):
    """The other side cannot be reached, or refuses the message.

    `status` is its answer, 0 without one.
    """

    def __init__(self, words: str, status: int = 0) -> None:
        super().__init__(words)
        self.status = status


@dataclass(frozen=True)
class Asked:
    """A question to a party, and the number of its message."""

    content: bytes
    message: Message


@dataclass
class _Arriving:
    """An answer whose objects are still arriving."""

    asked: str
    message: str
    wanted: list[str]
    objects: dict[str, bytes] = field(default_factory=dict)
    content: bytes | None = None


def pack(content: bytes) -> RecordDict:
    """Bytes as a record that Flower carries: pieces in order."""
    view = memoryview(content)
    starts = range(0, len(content), PIECE)
    return RecordDict({str(i): ConfigRecord({_FIELD: bytes(view[at : at + PIECE])}) for i, at in enumerate(starts)})


def unpack(record: RecordDict, longest: int) -> bytes:
    """The bytes in a record that `pack` wrote.

    Edge cases: any other record, or more than `longest` bytes, is a `DataError`, before the pieces are joined.
    """
    pieces: list[bytes] = []
    for number in range(len(record)):
        piece = record.config_records.get(str(number))
        value = piece.get(_FIELD) if piece is not None and len(piece) == 1 else None
        if not isinstance(value, bytes):
            raise DataError("not the pieces of a message")
        pieces.append(value)
        if sum(map(len, pieces)) > longest:
            raise DataError("a message that is too long")
    return b"".join(pieces)


class PartyLine:
    """A party's side of the Fleet API. It never asks for the app of a run, and so can never load it."""

    def __init__(self, address: str, authority: bytes, folder: Path, longest: int) -> None:
        key = node_key(folder)
        self._key = key.public_key()
        self._longest = longest
        signing = NodeAuthHttpInterceptor(key, self._key)
        self._client = _client(FleetHttpClient, address, authority, "SuperNode", signing, party=folder)
        self._node = Node()

    def activate(self, previous: int | None) -> int:
        """Announce this party; return the number that the SuperLink gives it.

        A SuperLink that still counts this party's `previous` life as alive would refuse it for a minute.
        """
        if previous is not None:
            with _as_broken(ignore=True):
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=previous))
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(self._key), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        with _as_broken():
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        return self._node.node_id

    def deactivate(self) -> None:
        """Announce that this party leaves; a broken line is ignored."""
        with _as_broken(ignore=True):
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))

    def beat(self) -> bool:
        """Send a heartbeat; False if the SuperLink no longer knows this party."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        with _as_broken():
            return self._client.SendNodeHeartbeat(request).success

    def pull(self) -> Asked | None:
        """The next question, or None; an unreadable one is removed and skipped."""
        with _as_broken():
            response = self._client.PullMessages(PullMessagesRequest(node=self._node))
            if not response.messages_list:
                return None
            message = message_from_proto(response.messages_list[0])
            run, number = message.metadata.run_id, message.metadata.message_id
            try:
                content = self._content(run, number, response.message_object_trees[0])
            except DataError:
                content = None
            confirm = ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=number)
            self._client.ConfirmMessageReceived(confirm)
        return None if content is None else Asked(content, message)

    def answer(self, question: Asked, content: bytes) -> None:
        """Send an answer."""
        reply = Message(pack(content), reply_to=question.message)
        run = reply.metadata.run_id
        with _as_broken(), no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(reply))],
                message_object_trees=[get_object_tree(reply)],
                clientapp_runtime_list=[0.0],  # the server need not know the running time
            )
            response = self._client.PushMessages(request)
            _push([reply], set(response.objects_to_push), self._client.PushObject, self._node, run, response.session_id)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _content(self, run: int, number: str, tree: ObjectTree) -> bytes:
        contents: dict[str, bytes] = {}
        for wanted in _numbers(tree, self._longest):
            _add(contents, wanted, self._object(run, wanted), self._longest)
        return _read(number, contents, self._longest)

    def _object(self, run: int, number: str) -> bytes:
        """An object, which may still be on its way from the server."""
        end = time.monotonic() + _TIME_LIMIT
        while time.monotonic() < end:
            response = self._client.PullObject(PullObjectRequest(node=self._node, run_id=run, object_id=number))
            if response.object_available:
                return response.object_content
            if not response.object_found:
                break
            time.sleep(_POLL)
        raise DataError("a message without its content")


class ServerLine:
    """The server's side: the enrolled nodes, and one run that carries messages."""

    def __init__(self, address: str, authority: bytes, secret: bytes) -> None:
        self._address, self._authority = address, authority
        self._control = _client(ControlHttpClient, address, authority, "flwr CLI")
        tasks = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=[_ACQUIRE])
        self._tasks = _client(RuntimeHttpClient, address, authority, "SuperExec", tasks)
        self._run = 0
        self._runtime: RuntimeHttpClient | None = None
        self._arriving: list[_Arriving] = []

    def check(self) -> None:
        """Raise `LineBroken` if the SuperLink does not answer."""
        with _as_broken():
            self._control.ListRuns(ListRunsRequest(limit=1))

    def register(self, name: str, node_pem: bytes) -> int:
        """Enrol a party; return its number from now on."""
        with _as_broken():
            return self._control.RegisterNode(RegisterNodeRequest(public_key=node_pem, name=name)).node_id

    def registered(self) -> dict[bytes, int]:
        """The enrolled parties, by their keys."""
        with _as_broken():
            return {each.public_key: each.node_id for each in self._control.ListNodes(ListNodesRequest()).nodes_info}

    def unregister(self, node: int) -> None:
        """Remove a party."""
        with _as_broken():
            self._control.UnregisterNode(UnregisterNodeRequest(node_id=node))

    def open_run(self) -> None:
        """Start a run and take its task with the secret; the tasks of other runs stay untouched."""
        with _as_broken():
            self._run = self._control.StartRun(StartRunRequest(fab=fab_to_proto(_app()))).run_id
            while True:
                taken = self._tasks.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if not taken.token:
                    raise LineBroken("the SuperLink gave nobody the task of a run that it started")
                if taken.task.run_id == self._run:
                    break
            token = RuntimeTokenHttpInterceptor(token=taken.token)
            self._runtime = _client(RuntimeHttpClient, self._address, self._authority, "flwr-serverapp", token)
            self._runtime.PullTaskInput(PullTaskInputRequest())  # which says that the task has begun

    def beat(self) -> bool:
        """Send a heartbeat; False if the run has ended."""
        with _as_broken():
            return self._of_run.SendTaskHeartbeat(SendTaskHeartbeatRequest()).success

    def present(self) -> dict[int, str]:
        """The connected nodes, and the start of each connection."""
        with _as_broken():
            return {each.node_id: each.last_activated_at for each in self._of_run.GetNodes(GetNodesRequest()).nodes}

    def push(self, nodes: list[int], content: bytes, seconds: float) -> dict[str, int]:
        """Send one question to several nodes; return the node of each message."""
        record = pack(content)
        messages = [make_message(self._head(node, seconds), content=record) for node in nodes]
        with _as_broken(), no_object_id_recompute():
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
            request = PushAppMessagesRequest(
                messages_list=[message_to_proto(remove_content_from_message(each)) for each in messages],
                message_object_trees=[get_object_tree(each) for each in messages],
            )
            taken = self._of_run.PushMessages(request)
            wanted = set(taken.objects_to_push)
            _push(messages, wanted, self._of_run.PushObject, _SERVER, self._run, taken.session_id)
        return {number: node for number, node in zip(taken.message_ids, nodes, strict=True) if number}

    def pull(self, asked: list[str], longest: int) -> Iterator[tuple[str, bytes | None]]:
        """The answers that have come, each with the number of its question's message; None for a lost message.

        Guarantee: an answer that cannot be read, or is longer than `longest`, is empty, and keeps no other from
        arriving. It fetches at most `longest` bytes and a piece more, and waits for none.
        """
        self._arriving = [each for each in self._arriving if each.asked in asked]
        arriving = {each.asked for each in self._arriving}  # Flower calls lost what is asked for once more
        with _as_broken():
            request = PullAppMessagesRequest(message_ids=[number for number in asked if number not in arriving])
            response = self._of_run.PullMessages(request)
            for head, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                replied = head.metadata.reply_to_message_id
                if head.HasField("error"):  # an error of the SuperLink, or of a stock SuperNode
                    yield replied, None
                    continue
                try:
                    self._arriving.append(_Arriving(replied, head.metadata.message_id, _numbers(tree, longest)))
                except DataError:
                    yield replied, b""
            for each in list(self._arriving):
                if self._fetch(each, longest):
                    self._arriving.remove(each)
                    yield each.asked, each.content

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

    def _head(self, node: int, seconds: float) -> Metadata:
        return Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=seconds,
            message_type=_TYPE,
        )

    def _fetch(self, answer: _Arriving, longest: int) -> bool:
        """Fetch the available objects of an answer; return whether it is complete."""
        try:
            while answer.wanted:
                request = PullObjectRequest(node=_SERVER, run_id=self._run, object_id=answer.wanted[0])
                response = self._of_run.PullObject(request)
                if response.object_found and not response.object_available:
                    return False
                if not response.object_found:  # its sender went away meanwhile
                    return True
                _add(answer.objects, answer.wanted.pop(0), response.object_content, longest)
            answer.content = _read(answer.message, answer.objects, longest)
        except DataError:
            answer.content = b""
        request = ConfirmMessageReceivedRequest(node=_SERVER, run_id=self._run, message_object_id=answer.message)
        self._of_run.ConfirmMessageReceived(request)
        return True


@contextmanager
def _as_broken(*, ignore: bool = False) -> Iterator[None]:
    """Turn the errors of Flower's client on a broken line into our own."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        if not ignore:
            status = error.response.status_code
            raise LineBroken(f"{status}: {error.response.text[:200]}", status) from None
    except (httpx.HTTPError, ssl.SSLError) as error:
        if not ignore:
            raise LineBroken(f"{type(error).__name__}: {str(error)[:200]}") from None


def _client(
    kind: type[_Client],
    address: str,
    authority: bytes,
    component: str,
    *more: ProtobufClientInterceptor,
    party: Path | None = None,
) -> _Client:
    """A client of Flower's that trusts this authority alone, and tries once, as Flower's own retries end the process
    with SIGINT. A `party` shows its certificate, and may be behind a proxy.
    """
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.minimum_version = ssl.TLSVersion.TLSv1_2
    trust.load_verify_locations(cadata=authority.decode("ascii"))
    if party is not None:
        trust.load_cert_chain(party / NODE, party / NODE_KEY)
    interceptors = [RuntimeVersionHttpInterceptor(component_name=component), *more]
    client = kind(f"https://{address}", interceptors=interceptors, verify=trust, timeout=_TIME_LIMIT)
    client._client.close()  # it follows where it is sent, and goes to loopback through a proxy
    client._client = httpx.Client(verify=trust, timeout=_TIME_LIMIT, trust_env=party is not None)
    return client


def _push(
    messages: list[Message],
    wanted: set[str],
    send: Callable[[PushObjectRequest], PushObjectResponse],
    node: Node,
    run: int,
    session: str,
) -> None:
    """Send the objects that the other side lacks."""
    objects = {number: each for message in messages for number, each in get_all_nested_objects(message).items()}
    for number in wanted & set(objects):
        content = objects[number].deflate()
        request = PushObjectRequest(node=node, run_id=run, object_id=number, object_content=content, session_id=session)
        if not send(request).stored:  # the message is gone; a server that still waits asks again
            return


def _numbers(tree: ObjectTree, longest: int) -> list[str]:
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
