"""The mark that a browser's device puts behind the ticket of a direction."""

from pathlib import Path

import pytest

from incrowd.drawdiscard.tickets import MARK_BYTES, TICKET_BYTES
from tests.service import letters
from tests.service.browser import browsing
from tests.service.listener import Listener, honest
from tests.service.test_device_browser import Page

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_a_direction_has_a_mark_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    """Others may send the same bytes; what is sent again counts once."""
    server = letters.server(noise="direction", bound="norm")
    with browsing(tmp_path / "profile") as browser, Listener(honest(server)).listening() as listener:
        page = Page(browser, listener, server)
        assert page.contribute()["reason"] == "accepted"
        listener.cut["/v1/answer"] = 0
        page.fails("ServiceFailed: the service")
        listener.cut.clear()
        assert page.contribute()["reason"] == "repeated"
        assert (page.charges, server.accepted) == (2, 2)
        first, second, again = (bytes.fromhex(request.headers["incrowd-ticket"]) for request in page.answers)
    assert {len(first), len(second)} == {TICKET_BYTES + MARK_BYTES}
    assert second == again
    assert first[TICKET_BYTES:] != second[TICKET_BYTES:]
