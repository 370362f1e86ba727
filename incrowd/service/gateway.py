"""From a request to an ASGI application and back, for what is asked now and then: nothing is streamed."""

from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from incrowd.service.hot import DeviceRequest, Pieces

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]


async def asgi_reply(application: AsgiApplication, asked: DeviceRequest, *, closes: bool) -> Pieces:
    """The reply of an application to a request without a body.

    Guarantee: the application is not told whose request it is.
    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": asked.method.decode("ascii"),
        "scheme": "http",
        "path": unquote(asked.path.decode("latin-1")),
        "raw_path": asked.path,
        "query_string": b"",
        "root_path": "",
        "headers": asked.headers,
        "client": None,
        "server": None,
        "state": {},
    }
    events: list[Event] = []

    async def receive() -> Event:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Event) -> None:
        events.append(event)

    await application(scope, receive, send)
    start = events[0]
    status = int(start["status"])
    body = b"".join(event.get("body", b"") for event in events[1:])
    headers = [*start["headers"], *([(b"connection", b"close")] if closes else [])]
    line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    head = line + b"".join(b"%b: %b\r\n" % (name, value) for name, value in headers) + b"\r\n"
    return (head,) if asked.method == b"HEAD" else (head, body)
