"""What a browser's device puts beside an answer: a mark behind the ticket of a direction, and an admission token."""

from pathlib import Path

import pytest

from incrowd.drawdiscard.desk import MARK_BYTES, TICKET_BYTES
from incrowd.service.admission import KEY_BYTES, Admission
from tests.service import letters
from tests.service.browser import browsing
from tests.service.listener import Listener, honest
from tests.service.processes import serve_process
from tests.service.test_device_browser import OPEN, Page

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


def test_a_fresh_profile_contributes_with_a_token_which_goes_with_the_answer(tmp_path: Path) -> None:
    token = Admission(key=bytes(KEY_BYTES)).token("phone-1")
    opened = OPEN.replace("pace: 0", f'pace: 0, token: "{token}"')
    with browsing(tmp_path / "profile") as browser, Listener(honest(letters.server())).listening() as listener:
        browser.go(listener.url)
        browser.keep_storage(allowed=False)
        browser.run(opened + "await device.add(given);", letters.letters())
        found = browser.run(opened + 'return [await device.contribute(""), await device.status()];')
        assert (found[0]["accepted"], found[1]["kept"], found[1]["charges"]) == (True, False, 1)
        (sent,) = [request for request in listener.heard if request.path == "/v1/answer"]
        assert sent.headers["incrowd-admission"] == token


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "allowed"), [({}, ("accepted", "unlike")), ({"noise": "direction", "bound": "norm"}, ("accepted",))]
)
def test_a_page_of_another_origin_contributes_to_a_service_that_runs(
    tmp_path: Path, noise: dict[str, object], allowed: tuple[str, ...]
) -> None:
    """A direction is one to the last bit, or it would be turned away."""
    asked = letters.asked(**noise)
    with (
        serve_process(tmp_path, asked) as service,
        browsing(tmp_path / "profile") as browser,
        Listener(honest(letters.server())).listening() as listener,
    ):
        Page(browser, listener, letters.server())
        found = browser.run(OPEN + "return await device.contribute(given);", service.url)
        assert found["reason"] in allowed
        assert browser.run(OPEN + "return (await device.status()).charges;") == 1
        assert browser.complaints() == []
