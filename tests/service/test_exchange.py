"""One request and its reply, whatever the other side does."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.errors import ConfigError, ServiceFailed
from incrowd.service.exchange import LONGEST_WAIT, Address, Reply, exchange
from tests.service.listener import Listener, certificate, dripping, endless, reply

CHUNKED = b"HTTP/1.1 200 so\r\ntransfer-encoding: chunked\r\n\r\n"


Said = bytes | Callable[[], Iterator[bytes]]


def asked(said: Said, *, most: int = 10, deadline_s: float = 5.0) -> Reply:
    with Listener(lambda _: said if isinstance(said, bytes) else said()).listening() as listener:
        return exchange(Address.of(listener.url), "/here", most=most, deadline_s=deadline_s)


@pytest.mark.parametrize(
    "said",
    [
        reply(200, b"0123456789", odd="1"),
        b"HTTP/1.0 200 so\r\nodd: 1\r\n\r\n0123456789",
        CHUNKED.replace(b"\r\n\r\n", b"\r\nodd: 1\r\n\r\n") + b"a\r\n0123456789\r\n0\r\n\r\n",
        b"HTTP/1.1 100 go on\r\n\r\n" + reply(200, b"0123456789", odd="1"),
    ],
    ids=["length", "until closed", "chunked", "go on first"],
)
def test_a_reply_in_every_framing(said: bytes) -> None:
    found = asked(said)
    assert (found.status, found.headers["odd"], found.body) == (200, "1", b"0123456789")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "no reply"),
        (b"hello\r\n\r\n", "no reply"),
        (b"HTTP/1.1 200 so\r\ncontent-length: 9\r\n\r\nshort", "broke off|no reply"),
        (b"HTTP/1.1 200 so\r\ncontent-le", "broke off"),
        (b"HTTP/1.1 200 so\r\ncontent-length: 9999999999\r\n\r\n", "broke off|no reply"),
        (reply(200, b"x" * 11), "more than the 10 bytes"),
        (b"HTTP/1.1 200 so\r\n\r\n" + b"x" * 11, "more than the 10 bytes"),
        (CHUNKED + b"b\r\n01234567890\r\n0\r\n\r\n", "more than the 10 bytes"),
        (CHUNKED + b"-1\r\n", "no reply"),
        (CHUNKED + b"what\r\n", "no reply"),
        (reply(302, b"", location="http://elsewhere.example/"), "leads elsewhere"),
        (reply(301, b"", location="/there"), "leads elsewhere"),
        (b"HTTP/1.1 200 so\r\n" + b"a: b\r\n" * 200 + b"\r\n", "no reply"),
        (b"HTTP/1.1 200 so\r\na: " + b"b" * 70_000 + b"\r\n\r\n", "more than it should|no reply"),
        (lambda: endless(b"HTTP/1.1 200 so\r\n\r\n"), "more than the 10 bytes"),
        (lambda: endless(b"HTTP/1.1 200 so\r\n"), "more than it should|no reply"),
        (lambda: endless(b"", more=b"HTTP/1.1 100 go on\r\n\r\n"), "more than it should"),
        (lambda: endless(CHUNKED + b"1", more=b";x" * 1000), "more than it should|no reply"),
        (lambda: endless(CHUNKED, more=b"1\r\nx\r\n"), "more than the 10 bytes"),
    ],
)
def test_what_is_no_reply_is_refused(said: Said, why: str) -> None:
    with pytest.raises(ServiceFailed, match=why):
        asked(said)


def test_a_slow_drip_ends_at_the_deadline() -> None:
    begun = time.monotonic()
    with pytest.raises(ServiceFailed, match="took too long"):
        asked(lambda: dripping(reply(200, b"0123456789" * 25)), most=1_000, deadline_s=0.5)
    assert time.monotonic() - begun < 3


def test_a_silent_service_and_one_that_reads_nothing_end_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = Address.of(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        for body in (None, b"x" * 50_000_000):
            with pytest.raises(ServiceFailed, match="took too long"):
                exchange(address, "/", most=10, deadline_s=0.5, body=body)


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(ServiceFailed, match="refused"):
        exchange(Address.of(f"http://127.0.0.1:{port}"), "/", most=10, deadline_s=5)


def test_of_a_reply_that_is_skipped_the_headers_are_all_that_is_read() -> None:
    with Listener(lambda _: endless(b"HTTP/1.1 200 so\r\nodd: 1\r\n\r\n")).listening() as listener:
        found = exchange(Address.of(listener.url), "/", most=10, deadline_s=5, body=b"x", skip_ok=True)
    assert found == Reply(200, {"odd": "1"}, b"")


def test_every_request_is_the_same_and_tells_nothing() -> None:
    with Listener(lambda _: reply(200, b"", set_cookie="who=me")).listening() as listener:
        address = Address.of(listener.url + "/under/")
        for _ in range(2):
            exchange(address, "/here", most=10, deadline_s=5)
        first, second = listener.heard
    assert first == second
    assert first.path == "/under/here"
    assert first.headers == {"host": address.named, "user-agent": "incrowd", "connection": "close"}


def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    place = certificate(tmp_path)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(place)
    with Listener(lambda _: reply(200, b"hello"), secure=own).listening() as listener:
        address = Address.of(f"https://localhost:{listener.port}")
        with pytest.raises(ServiceFailed, match="certificate does not hold"):
            exchange(address, "/", most=10, deadline_s=5)
        trusting = ssl.create_default_context(cafile=str(place))
        assert exchange(address, "/", most=10, deadline_s=5, context=trusting).body == b"hello"


@pytest.mark.parametrize(
    "url",
    ["ftp://a.example", "a.example", "https://", "https://me@a.example", "https://a.example/?q=1", "https://a.example#x",
     "https://a.example:no", "https://a.example/\n", "https://ä.example", "http://a.example", "http://10.0.0.1"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="server = "):
        Address.of(url)


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7.0), ("", None), ("-1", None), ("Tue", None), ("9" * 50, LONGEST_WAIT), ("²", None)]
)  # fmt: skip
def test_how_long_a_service_asks_to_wait(said: str, seconds: float | None) -> None:
    assert Reply(429, {"retry-after": said}, b"").retry_after == seconds
