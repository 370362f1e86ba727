"""A service that lies to its devices, over the network: nothing is spent, nothing released, nobody's memory filled."""

import time
from pathlib import Path

import pytest

from incrowd.drawdiscard import Device, Policy, Server
from incrowd.errors import IncrowdError
from incrowd.privacy.account.accounting import Budget
from incrowd.service.remote import RemoteServer, take_turns
from tests.drawdiscard import mail
from tests.service.listener import Listener, Say, changed, drawing, dripping, endless, honest, instead, reply

POLICY = Policy(epsilon=2.0, daily_epsilon=100.0, budget=Budget(epsilon=1000.0, delta=1e-9))
HONEST = Server(mail.asked(), turned_away=1e-9)
NAN, HUGE = b"\x00\x00\xc0\x7f", b"\xff\xff\x7f\x7f"


def spelt(**changes: object) -> Say:
    return instead(HONEST, "/v1/specification", reply(200, mail.asked(**changes).to_json().encode()))


FINGERPRINT = HONEST.specification.fingerprint.encode()
LIES = {
    "another fingerprint": lambda: changed(HONEST, "/v1/draw", FINGERPRINT, FINGERPRINT[::-1]),
    "no fingerprint": lambda: changed(HONEST, "/v1/draw", b"incrowd-fingerprint", b"incrowd-other"),
    "weights of one more": lambda: instead(HONEST, "/v1/draw", drawing(HONEST, bytes(20))),
    "weights that are no numbers": lambda: instead(HONEST, "/v1/draw", drawing(HONEST, NAN * 4)),
    "a gamma that is no number": lambda: changed(HONEST, "/v1/draw", b"incrowd-gamma: 0.05", b"incrowd-gamma: nan"),
    "endless weights": lambda: instead(HONEST, "/v1/draw", endless(b"HTTP/1.1 200 so\r\n\r\n")),
    "endless headers": lambda: instead(HONEST, "/v1/draw", endless(b"HTTP/1.1 200 so\r\n", more=b"a: b\r\n" * 1000)),
    "an endless specification": lambda: instead(HONEST, "/v1/specification", endless(b"HTTP/1.1 200 so\r\n\r\n")),
    "a slow drip": lambda: instead(HONEST, "/v1/draw", dripping(drawing(HONEST, bytes(16)))),
    "epsilon above the limit": lambda: spelt(epsilon=2.1),
    "no noise": lambda: spelt(noise="none"),
    "another specification than that of the weights": lambda: spelt(name="other"),
    "a million instances": lambda: spelt(instances=1_000_000),
    "a field that is not there": lambda: changed(HONEST, "/v1/specification", b'"words"', b'"words_of"'),
    "elsewhere": lambda: instead(HONEST, "/v1/draw", reply(302, b"", location="http://127.0.0.1:1/v1/draw")),
}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incrowd.service.remote.PACE_S", 0.0)


@pytest.mark.parametrize("lie", LIES)
def test_nothing_is_spent_or_sent(tmp_path: Path, lie: str) -> None:
    begun = time.monotonic()
    with (
        Listener(LIES[lie]()).listening() as listener,
        Device(mail.mails(), ledger=tmp_path / "ledger", policy=POLICY) as own,
    ):
        turns = take_turns(own, RemoteServer(listener.url, deadline_s=1.0), times=2)
        assert isinstance(turns.stopped, IncrowdError)
        assert (turns.sent, mail.charges(own.ledger)) == (0, 0)
    assert not [request for request in listener.heard if request.method == "POST"]
    assert not (tmp_path / "ledger.outbox").exists()
    assert time.monotonic() - begun < 10


def test_control_an_honest_one_is_answered(tmp_path: Path) -> None:
    with (
        Listener(honest(HONEST)).listening() as listener,
        Device(mail.mails(), ledger=tmp_path / "ledger", policy=POLICY) as own,
    ):
        assert take_turns(own, RemoteServer(listener.url, deadline_s=60.0)).accepted == 1  # machines are busy


def test_what_a_service_says_never_reaches_the_owners_terminal(tmp_path: Path) -> None:
    escape = b"\x1b]0;owned\x07"
    says = [
        instead(HONEST, "/v1/draw", b"HTTP/1.1 200 " + escape + b"\r\ncontent-length: 3\r\n\r\nabc"),
        instead(HONEST, "/v1/draw", escape + b"\r\n\r\n"),
        instead(HONEST, "/v1/draw", reply(503, escape, retry_after=escape.decode("latin-1"))),
        instead(HONEST, "/v1/answer", reply(400, b'{"reason": "\x1b[2J"}')),
        changed(HONEST, "/v1/draw", b"incrowd-gamma: 0.05", b"incrowd-gamma: " + escape),
        changed(HONEST, "/v1/specification", b'"clip"', b'"\\u001b[2J"'),
        changed(HONEST, "/v1/specification", b'"name":"mail"', b'"name":"mail", "\\u001b[2J": 1'),
        changed(HONEST, "/v1/specification", b'"response":"opened"', b'"response":"\\u001b[2J"'),
    ]
    for number, say in enumerate(says):
        with (
            Listener(say).listening() as listener,
            Device(mail.mails(), ledger=tmp_path / str(number), policy=POLICY) as own,
        ):
            turns = take_turns(own, RemoteServer(listener.url, deadline_s=5.0))
            assert turns.stopped is not None
            assert str(turns.stopped).isprintable()
