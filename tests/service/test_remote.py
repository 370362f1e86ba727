"""A service elsewhere, as a device sees it."""

import json

import numpy as np
import pytest

from incrowd.drawdiscard import Outcome, Reason, Server
from incrowd.errors import ConfigError, ServiceFailed, SpecificationRefused
from incrowd.service.remote import RemoteServer
from tests.drawdiscard import mail
from tests.service.listener import Listener, honest, instead, reply

SERVER = Server(mail.asked())


def test_it_says_what_the_server_says() -> None:
    server = Server(mail.asked())
    with Listener(honest(server)).listening() as listener:
        remote = RemoteServer(listener.url)
        assert remote.specification_json() == server.specification_json()
        drawn = remote.draw()
        assert (drawn.fingerprint, drawn.gamma) == (server.draw().fingerprint, 0.05)
        assert drawn.weights.dtype == np.float32
        assert drawn.weights.shape == (4,)
        noise = np.random.default_rng(1).laplace(scale=0.05 * mail.asked().mechanism.noise_scale, size=4)
        update = (drawn.weights + noise).astype(np.float32)
        assert remote.offer(update, drawn.ticket) == Outcome(Reason.ACCEPTED)
        assert remote.offer(update, drawn.ticket) == Outcome(Reason.REPEATED)
        assert remote.offer(update * 1000, drawn.ticket) == Outcome(Reason.UNLIKE)
        assert remote.offer(update, bytes(len(drawn.ticket))).reason in (Reason.FORGED, Reason.OTHER_SPECIFICATION)
        assert remote.offer(update * np.float32(np.nan), drawn.ticket) == Outcome(Reason.NOT_WEIGHTS)
    assert server.accepted == 1


def test_a_draw_or_an_offer_reads_the_specification_first_if_nobody_did() -> None:
    with Listener(honest(SERVER)).listening() as listener:
        drawn = RemoteServer(listener.url).draw()
        outcome = RemoteServer(listener.url).offer(drawn.weights + np.float32(np.inf), drawn.ticket)
    assert outcome.reason is Reason.NOT_WEIGHTS
    assert [request.path for request in listener.heard] == [
        "/v1/specification",
        "/v1/draw",
        "/v1/specification",
        "/v1/answer",
    ]
    assert listener.heard[3].headers["incrowd-fingerprint"] == SERVER.specification.fingerprint


GOOD = {"incrowd_fingerprint": "00", "incrowd_gamma": "0.1", "incrowd_ticket": "ab" * 40}


@pytest.mark.parametrize(
    "said",
    [
        reply(200, bytes(12), **GOOD),
        reply(200, bytes(20), **GOOD),
        reply(200, b"", **GOOD),
        reply(204, b""),
        reply(404, b"nowhere"),
        *(
            reply(200, bytes(16), **{**GOOD, "incrowd_gamma": gamma})
            for gamma in ("", "0", "-1", "nan", "inf", "1e999")
        ),
        *(reply(200, bytes(16), **{**GOOD, "incrowd_ticket": ticket}) for ticket in ("", "a", "zz", "ab" * 129)),
    ],
)
def test_a_draw_that_is_none_is_refused(said: bytes) -> None:
    with Listener(instead(SERVER, "/v1/draw", said)).listening() as listener, pytest.raises(ServiceFailed):
        RemoteServer(listener.url).draw()


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", b"\xff", b"{" * 100_000])
def test_a_specification_that_is_none_is_refused(said: bytes) -> None:
    refused = pytest.raises((ServiceFailed, SpecificationRefused))
    with Listener(instead(SERVER, "/v1/specification", reply(200, said))).listening() as listener, refused:
        RemoteServer(listener.url).specification_json()


def test_an_instance_is_bounded_by_what_the_device_allows_before_it_is_asked_for() -> None:
    refused = pytest.raises(SpecificationRefused, match="4 weights are more than this device allows, 3")
    with Listener(honest(SERVER)).listening() as listener, refused:
        RemoteServer(listener.url, most_weights=3).draw()
    assert [request.path for request in listener.heard] == ["/v1/specification"]


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_is_understood_however_it_is_spelt(reason: Reason) -> None:
    taken = reason in (Reason.ACCEPTED, Reason.REPEATED)
    for name in (reason.name, reason.name.lower().replace("_", "-"), reason.name.capitalize().replace("_", " ")):
        body = json.dumps({"reason": name, "remedy": "\x1b[2J"}).encode()
        said = reply(200, b"", incrowd_outcome=name) if taken else reply(409, body)
        assert offered(said).reason is reason


@pytest.mark.parametrize(
    "said",
    [
        reply(200, b""),
        reply(200, b"", incrowd_outcome="unlike"),
        reply(200, b"", incrowd_outcome="splendid"),
        reply(404, b"no"),
        reply(409, b"[1]"),
        reply(409, b'{"reason": 1}'),
        reply(409, b'{"reason": "accepted"}'),
        reply(409, b"[" * 60_000),
        reply(409, b"x" * 70_000),
    ],
)
def test_a_reply_that_says_nothing_of_the_answer_is_no_reply(said: bytes) -> None:
    with pytest.raises(ServiceFailed):
        offered(said)


def test_http_is_for_this_machine_only() -> None:
    with pytest.raises(ConfigError, match="give https"):
        RemoteServer("http://learn.example.org")
    assert not RemoteServer("http://learn.example.org", plain=True).address.secure


def offered(said: bytes) -> Outcome:
    with Listener(instead(SERVER, "/v1/answer", said)).listening() as listener:
        return RemoteServer(listener.url).offer(np.zeros(4, np.float32), b"t")
