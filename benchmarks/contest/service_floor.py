"""The least that a service of this protocol costs: a server that reads each request and sends as much back, no more.

It is the control beside the service: what is above it is the service's own work, what is below it no service on this
machine, in this language and over this many connections, gets rid of.
"""

import asyncio
import json
import sys
from functools import partial

import httptools
import uvloop

from incrowd.drawdiscard import Specification
from incrowd.drawdiscard.specification_file import read_specification
from incrowd.drawdiscard.tickets import TICKET_BYTES


class _Echo(asyncio.Protocol):
    """Answers every request, when all of it is there, with the same bytes."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # it is one that writes

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """All of a request is there."""
        if self._transport is not None:
            self._transport.write(self._reply)


def reply(asked: Specification) -> bytes:
    """As long as the reply to an answer that is accepted, and read by devices as one."""
    fixed = {
        "content-type": "application/octet-stream",
        "content-length": str(4 * asked.size),
        "incrowd-fingerprint": asked.fingerprint,
        "incrowd-gamma": repr(asked.gamma),
        "incrowd-ticket": bytes(TICKET_BYTES).hex(),
        "incrowd-outcome": "accepted",
    }
    head = "HTTP/1.1 200 OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fixed.items()) + "\r\n"
    return head.encode() + bytes(4 * asked.size)


async def serve(asked: Specification) -> None:
    """Until it is killed; says where it listens."""
    listening = await asyncio.get_running_loop().create_server(partial(_Echo, reply(asked)), "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(read_specification(sys.argv[1])))
