import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.drawdiscard.desk import KEY_BYTES, TICKET_BYTES, Reason, Ticket, Tickets
from incrowd.errors import ConfigError

KEY, PRINT, OTHER = bytes(range(KEY_BYTES)), "ab" * 32, "cd" * 32
TICKETS = Tickets(KEY, PRINT, lifetime=5, now=lambda: 100)


@given(version=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**64 - 1))
def test_a_ticket_says_what_it_was_issued_for(version: int, epoch: int) -> None:
    ticket = TICKETS.issue(version, epoch)
    assert len(ticket) == TICKET_BYTES
    assert TICKETS.read(ticket) == Ticket(version, epoch, expires=105)
    assert TICKETS.issue(version, epoch) == ticket, "all draws of a version and minute share one"


def test_what_was_not_issued_here_is_not_read() -> None:
    ticket = TICKETS.issue(7, 1)
    for place in range(8, len(ticket)):
        assert TICKETS.read(ticket[:place] + bytes([ticket[place] ^ 1]) + ticket[place + 1 :]) is Reason.FORGED
    for odd in (b"", ticket[:-1], ticket + b"0", bytes(TICKET_BYTES - 1)):
        assert TICKETS.read(odd) is Reason.FORGED
    for tickets in (Tickets(bytes(KEY_BYTES), PRINT), Tickets(KEY, PRINT[:16] + OTHER[16:])):
        assert tickets.read(ticket) is Reason.FORGED
    assert Tickets(KEY, OTHER).read(ticket) is Reason.OTHER_SPECIFICATION


def test_a_ticket_that_ran_out_is_read() -> None:
    assert Tickets(KEY, PRINT, now=lambda: 10**6).read(TICKETS.issue(7, 1)) == Ticket(7, 1, expires=105)


def test_a_key_is_long_enough_and_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="32 random bytes"):
        Tickets(b"short", PRINT)
    with pytest.raises(ConfigError, match="lifetime"):
        Tickets(KEY, PRINT, lifetime=0)
    assert repr(KEY)[2:20] not in repr(TICKETS)
