"""A device's turns at a service, and what breaks between them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd._random import SeededRandomness
from incrowd.drawdiscard import Device, Policy, Server
from incrowd.errors import BudgetExceeded, ServiceFailed
from incrowd.privacy.account.accounting import Budget
from incrowd.service.remote import RemoteServer, take_turns
from tests.drawdiscard import mail
from tests.service import letters
from tests.service.listener import Listener, honest, instead, reply

PATHS = ("/v1/specification", "/v1/draw", "/v1/answer")
LENGTHS = dict(zip(PATHS, (1300, 490, 520), strict=True))
"""More bytes than each reply has."""


@pytest.fixture
def server() -> Server:
    return letters.server()


@pytest.fixture
def listener(server: Server) -> Iterator[Listener]:
    with Listener(honest(server)).listening() as listening:
        yield listening


def owned(tmp_path: Path, policy: Policy = mail.LOOSE) -> Device:
    return Device(letters.letters(), ledger=tmp_path / "ledger", policy=policy)


def test_each_turn_waits_a_time_of_its_own(listener: Listener, tmp_path: Path) -> None:
    waits: list[float] = []
    with owned(tmp_path) as own:
        remote = RemoteServer(listener.url)
        take_turns(own, remote, times=3, jitter_s=60.0, randomness=SeededRandomness(1), sleep=waits.append)
        assert len(set(waits)) == 3
        assert all(0 <= wait < 60 for wait in waits)
        take_turns(own, remote, sleep=waits.append)
    assert len(waits) == 3


def test_the_budget_stops_the_turns(server: Server, listener: Listener, tmp_path: Path) -> None:
    policy = Policy(epsilon=2.0, daily_epsilon=4.0, budget=Budget(epsilon=10.0, delta=1e-9))
    with owned(tmp_path, policy) as own:
        turns = take_turns(own, RemoteServer(listener.url), times=5)
        assert isinstance(turns.stopped, BudgetExceeded)
        assert turns.sent == server.accepted == mail.charges(own.ledger) == 2
    assert sum(request.path == "/v1/answer" for request in listener.heard) == 2


@pytest.mark.parametrize(("wait", "requests"), [("7", 3), ("61", 1), ("", 1)])
def test_a_service_that_asks_for_patience_gets_some(server: Server, tmp_path: Path, wait: str, requests: int) -> None:
    waits: list[float] = []
    with (
        Listener(instead(server, "/v1/draw", reply(503, b"", retry_after=wait))).listening() as busy,
        owned(tmp_path) as own,
    ):
        turns = take_turns(own, RemoteServer(busy.url), sleep=waits.append)
        assert isinstance(turns.stopped, ServiceFailed)
        assert mail.charges(own.ledger) == 0
    assert waits == [7.0] * (requests - 1)
    assert sum(request.path == "/v1/draw" for request in busy.heard) == requests


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_a_line_that_breaks_now_and_then(tmp_path: Path, path: str) -> None:
    """One contribution is paid for, whichever byte of a reply is the last; and it counts once."""
    server = letters.server()
    with Listener(honest(server)).listening() as listener, owned(tmp_path) as own:
        remote = RemoteServer(listener.url)
        assert take_turns(own, remote).accepted == 1
        for done, place in enumerate(range(0, LENGTHS[path], 23), start=1):
            listener.cut[path] = place
            first = take_turns(own, remote)
            listener.cut.clear()
            if first.stopped is not None:
                assert isinstance(first.stopped, ServiceFailed)
                assert mail.charges(own.ledger) == (done if path != PATHS[2] else done + 1)
                assert take_turns(own, remote).accepted == 1
            assert mail.charges(own.ledger) == server.accepted == done + 1
