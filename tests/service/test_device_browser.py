"""The device of a browser, in one: it contributes, keeps account, and never gives more than its owner allows."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd.drawdiscard import Reason, Server
from tests.service import letters
from tests.service.browser import Browser, Failed, browsing
from tests.service.listener import (
    Listener,
    Request,
    Say,
    changed,
    drawing,
    drawn_reply,
    endless,
    honest,
    instead,
    refusal,
    reply,
)

pytestmark = pytest.mark.timeout(180)

MODULE = 'const { openDevice } = await import("/static/device.mjs");'
LONG = {"type": "text", "column": "about", "buckets": 8, "units": "characters", "shortest": 1, "longest": 20}

OPEN = f"{MODULE} const device = await openDevice({{ pace: 0, policy: {{ daily: 4, total: 10 }} }});"
CONTRIBUTE = OPEN + 'return await device.contribute("");'
STATUS = OPEN + "return await device.status();"
COUNTED = """
window.drawn ??= 0;
const genuine = crypto.getRandomValues.bind(crypto), most = given;
crypto.getRandomValues = (block) => {
  if (++window.drawn > most) throw new Error("no randomness");
  return genuine(block);
};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def server() -> Server:
    return letters.server()


@pytest.fixture
def page(browser: Browser, server: Server) -> Iterator["Page"]:
    with Listener(honest(server)).listening() as listener:
        yield Page(browser, listener, server)


class Page:
    """A device with some letters on a page of its own origin: each listener has its own port, so its own storage."""

    def __init__(self, browser: Browser, listener: Listener, server: Server) -> None:
        self.browser, self.listener, self.server = browser, listener, server
        browser.go(listener.url)
        browser.keep_storage(allowed=True)
        browser.run(OPEN + "await device.add(given);", letters.letters())

    def contribute(self) -> dict[str, Any]:
        found: dict[str, Any] = self.browser.run(CONTRIBUTE)
        return found

    def fails(self, why: str) -> None:
        with pytest.raises(Failed, match=why):
            self.contribute()

    @property
    def charges(self) -> int:
        return int(self.browser.run(STATUS)["charges"])

    @property
    def answers(self) -> list[Request]:
        return [request for request in self.listener.heard if request.method == "POST"]


def test_it_contributes_and_is_accepted(page: Page) -> None:
    assert page.contribute() == {"reason": "accepted", "accepted": True}
    assert page.server.accepted == 1
    found = page.browser.run(STATUS)
    assert found == {
        "examples": 20,
        "kept": True,
        "waiting": False,
        "spent": 2,
        "today": 2,
        "charges": 1,
        "limits": {"unit": "model", "epsilon": 2, "daily": 4, "total": 10},
    }
    assert not {"cookie", "referer"} & page.answers[0].headers.keys()
    assert page.browser.complaints() == []


def test_what_it_sends_is_what_was_drawn_and_whole_steps(page: Page) -> None:
    drawn = page.server.draw()
    page.listener.say = instead(page.server, "/v1/draw", drawn_reply(drawn))
    page.contribute()
    sent = np.frombuffer(page.answers[0].body, "<f4")
    whole = page.server.specification.mechanism.whole
    steps = (drawn.weights.astype(np.float64) - sent) / (drawn.gamma * whole.step)
    assert np.abs(steps).mean() == pytest.approx(whole.scale, rel=0.6)
    rounded = (drawn.weights - (drawn.gamma * whole.step) * np.rint(steps)).astype(np.float32)
    np.testing.assert_allclose(rounded, sent, rtol=1e-6)


def test_the_ledger_survives_a_reload(page: Page) -> None:
    page.contribute()
    page.browser.go(page.listener.url)
    assert page.charges == 1
    page.contribute()
    page.browser.go(page.listener.url)
    page.fails("NoBudget: on .* the daily limit is 4")
    assert (page.charges, page.server.accepted) == (2, 2)


def test_two_tabs_cannot_spend_twice(page: Page) -> None:
    many = (
        OPEN
        + """
    window.going = Promise.allSettled(Array.from({ length: 4 }, () => device.contribute("")));
    """
    )
    first = page.browser.here()
    page.browser.run(many)
    second = page.browser.tab()
    page.browser.go(page.listener.url)
    page.browser.run(many)
    ended = []
    for tab in (first, second):
        page.browser.switch(tab)
        ended += page.browser.run(
            "return (await window.going).map(({ status, reason }) => `${status} ${reason?.name}`);"
        )
    page.browser.switch(second)
    page.browser.command("/window", method="DELETE")
    page.browser.switch(first)
    assert sorted(ended) == ["fulfilled undefined"] * 2 + ["rejected NoBudget"] * 6
    assert (page.charges, page.server.accepted, len(page.answers)) == (2, 2, 2)


def test_without_locks_the_ledger_still_counts(page: Page) -> None:
    unlocked = "navigator.locks.request = async (name, work) => work();" + OPEN
    script = (
        unlocked
        + """
    const all = await Promise.allSettled(Array.from({ length: 6 }, () => device.contribute("")));
    return all.filter(({ status }) => status === "fulfilled").length;
    """
    )
    assert page.browser.run(script) <= 2
    assert page.charges == 2


@pytest.mark.slow
def test_a_browser_that_is_killed_goes_on_where_it_was(tmp_path: Path, server: Server) -> None:
    arrived, go_on = threading.Event(), threading.Event()
    usual = honest(server)

    def stopping(request: Request) -> "bytes | Iterator[bytes]":
        if request.path == "/v1/answer" and not arrived.is_set():
            arrived.set()
            go_on.wait(60)
            return b""
        return usual(request)

    with Listener(stopping).listening() as listener:
        with browsing(tmp_path / "profile") as browser:
            page = Page(browser, listener, server)
            browser.run(OPEN + 'window.going = device.contribute("").catch(() => {});')
            assert arrived.wait(30)
            os.kill(browser.process, signal.SIGKILL)
        go_on.set()
        with browsing(tmp_path / "profile") as browser:
            browser.go(listener.url)
            browser.keep_storage(allowed=True)
            page.browser = browser
            found = browser.run(STATUS)
            assert (found["charges"], found["waiting"], found["examples"]) == (1, True, 20)
            assert page.contribute()["accepted"]
            assert (page.charges, server.accepted) == (1, 1)
    assert page.answers[0].body == page.answers[1].body


@pytest.mark.parametrize(
    ("without", "why"),
    [
        ("navigator.storage.persist = navigator.storage.persisted = async () => false;", "may forget the ledger"),
        ("navigator.storage.persist = navigator.storage.persisted = () => Promise.reject(1);", "may forget the ledger"),
        ("Object.defineProperty(window, 'indexedDB', { value: undefined });", "keeps nothing"),
        ("indexedDB.open = () => { const r = {}; setTimeout(() => r.onerror()); return r; };", "keeps nothing"),
        ("Object.defineProperty(navigator, 'locks', { value: undefined });", "a browser of today"),
        ("Object.defineProperty(crypto, 'subtle', { value: undefined });", "a browser of today"),
    ],
)
def test_without_what_the_promise_needs_it_refuses(page: Page, without: str, why: str) -> None:
    page.browser.go(page.listener.url)
    with pytest.raises(Failed, match=f"Refused: .*{why}"):
        page.browser.run(without + CONTRIBUTE)
    page.browser.go(page.listener.url)
    assert (page.charges, page.answers) == (0, [])


def test_storage_that_may_be_cleared_is_refused(browser: Browser, server: Server) -> None:
    with Listener(honest(server)).listening() as listener:
        browser.go(listener.url)
        browser.keep_storage(allowed=False)
        with pytest.raises(Failed, match="Refused: this browser may forget the ledger"):
            browser.run(CONTRIBUTE)


def test_the_total_is_for_ever_and_a_clock_put_back_brings_no_day_back(page: Page) -> None:
    on = (
        MODULE
        + """
    const now = () => new Date(given.day);
    const device = await openDevice({ now, pace: 0, policy: { daily: 4, total: given.total ?? 10 } });
    return (await device.contribute("")).reason;
    """
    )
    days = ["2030-01-01", "2030-01-01", "2030-01-02", "2030-01-02", "2030-01-03"]
    assert [page.browser.run(on, {"day": day}) for day in days[:2]] == ["accepted"] * 2
    for day in ("2030-01-01", "2029-01-01", "1999-12-31"):
        with pytest.raises(Failed, match=r"NoBudget: on 2030-01-01 .* daily limit is 4"):
            page.browser.run(on, {"day": day})
    assert [page.browser.run(on, {"day": day}) for day in days[2:]] == ["accepted"] * 3
    with pytest.raises(Failed, match="NoBudget: all contributions would come to epsilon = 12; the limit is 10"):
        page.browser.run(on, {"day": "2031-01-01"})
    with pytest.raises(Failed, match=r"NoBudget: .*the limit is 10"):
        page.browser.run(on, {"day": "2031-01-01", "total": 1000})
    assert (page.charges, page.server.accepted) == (5, 5)


def test_what_each_number_costs_is_limited_as_a_whole(page: Page) -> None:
    page.listener.say = honest(letters.server(epsilon=1.0, privacy="feature"))
    on = MODULE + "return (await (await openDevice({ pace: 0, policy: given })).contribute('')).reason;"
    with pytest.raises(Failed, match="Refused: all 44 numbers together would cost epsilon = 44; this device allows 20"):
        page.browser.run(on, {"unit": "feature", "epsilon": 2, "daily": 9})
    assert page.browser.run(on, {"unit": "feature", "epsilon": 2, "daily": 9, "whole": 44}) == "accepted"


def test_it_is_charged_before_its_noise_is_drawn(page: Page) -> None:
    page.browser.go(page.listener.url)
    with pytest.raises(Failed, match="storage failed"):
        page.browser.run(COUNTED + CONTRIBUTE, 0)  # which examples count is drawn before
    page.browser.go(page.listener.url)
    assert page.charges == 0
    with pytest.raises(Failed, match="no randomness"):
        page.browser.run(COUNTED + CONTRIBUTE, 1)
    page.browser.go(page.listener.url)
    assert (page.charges, page.answers) == (1, [])


def test_without_a_charge_on_disk_no_noise_is_drawn(page: Page) -> None:
    page.browser.go(page.listener.url)
    broken = "IDBObjectStore.prototype.add = () => { throw new DOMException('full', 'QuotaExceededError'); };"
    with pytest.raises(Failed, match="storage failed"):
        page.browser.run(COUNTED + broken + CONTRIBUTE, 100)
    assert page.browser.run("return window.drawn") == 1
    page.browser.go(page.listener.url)
    assert (page.charges, page.answers) == (0, [])


@pytest.mark.parametrize("place", [0, 10, 60, 100_000])
def test_a_lost_reply_costs_nothing_more(page: Page, place: int) -> None:
    page.listener.cut["/v1/answer"] = place
    with_reply = place > 1000
    if not with_reply:
        page.fails("ServiceFailed: the service")
        assert page.browser.run(STATUS)["waiting"]
    page.listener.cut.clear()
    assert page.contribute()["reason"] == ("accepted" if with_reply else "repeated")
    assert (page.charges, page.server.accepted) == (1, 1)
    assert len({request.body for request in page.answers}) == 1


def test_what_came_too_late_goes_out_again_with_the_same_noise(page: Page) -> None:
    usual, late, drawn_rows = honest(page.server), [refusal(Reason.LATE)], []

    def say(request: Request) -> "bytes | Iterator[bytes]":
        if late and request.path == "/v1/answer":
            return late.pop()
        said = usual(request)
        if request.path == "/v1/draw":
            assert isinstance(said, bytes)
            drawn_rows.append(np.frombuffer(said[-176:], "<f4"))
        return said

    page.listener.say = say
    assert page.contribute()["accepted"]
    assert (page.charges, page.server.accepted) == (1, 1)
    answers = [np.frombuffer(request.body, "<f4") for request in page.answers]
    assert len(answers) == len(drawn_rows) == 2
    moves = [drawn_row - sent for drawn_row, sent in zip(drawn_rows, answers, strict=True)]
    np.testing.assert_allclose(moves[0], moves[1], rtol=1e-4, atol=1e-5)
    late += [refusal(Reason.LATE), refusal(Reason.FORGED)] * 5
    page.fails("ServiceFailed: every answer came too late")
    late.clear()
    assert page.contribute()["accepted"]
    assert (page.charges, page.server.accepted) == (2, 2)


def test_an_answer_to_a_specification_that_is_gone_is_given_up(page: Page) -> None:
    page.listener.cut["/v1/answer"] = 0
    page.fails("ServiceFailed")
    page.listener.cut.clear()
    page.listener.say = honest(letters.server(name="another"))
    assert page.contribute()["reason"] == "accepted"
    assert page.charges == 2


def test_a_check_is_for_the_owner_alone(page: Page) -> None:
    text = page.server.specification_json()
    assert page.browser.run(OPEN + "return await device.check(given);", text) == {
        "examples": 20,
        "usable": 20,
        "cost": 2,
        "problems": [],
    }
    page.browser.run(OPEN + 'await device.add([{ opened: "yes", sender: "stranger", words: 900 }, {}]);')
    found = page.browser.run(OPEN + "return await device.check(given);", text)
    assert (found["examples"], found["usable"]) == (22, 20)
    assert "1 of 22: opened is no number" in found["problems"]
    assert "1 of 22: sender is none of the levels" in found["problems"]
    assert "1 of 22: words lies beyond 0 to 500" in found["problems"]
    dear = page.browser.run(OPEN + "return await device.check(given);", letters.asked(epsilon=2.5).to_json())
    assert dear["problems"][0].startswith("refused: a contribution would cost epsilon = 2.5")
    none = page.browser.run(OPEN + "await device.forget(); return await device.check(given);", text)
    assert "noise alone" in none["problems"][0]
    assert not [request for request in page.listener.heard if request.path.startswith("/v1/")]


LIES: dict[str, Callable[[Server], Say]] = {
    "a huge gamma that is no number": lambda server: changed(server, "/v1/draw", b"gamma: 0.05", b"gamma: 1e999"),
    "no gamma": lambda server: changed(server, "/v1/draw", b"incrowd-gamma", b"incrowd-g"),
    "a negative gamma": lambda server: changed(server, "/v1/draw", b"gamma: 0.05", b"gamma: -1"),
    "weights that are none": lambda server: instead(server, "/v1/draw", drawing(server, b"\x00\x00\xc0\x7f" * 44)),
    "huge weights": lambda server: instead(server, "/v1/draw", drawing(server, b"\xff\xff\x7f\x7f" * 44)),
    "one weight less": lambda server: instead(server, "/v1/draw", drawing(server, bytes(4 * 43))),
    "one weight more": lambda server: instead(server, "/v1/draw", drawing(server, bytes(4 * 45))),
    "endless weights": lambda server: instead(server, "/v1/draw", unending),
    "another fingerprint": lambda server: instead(server, "/v1/draw", drawn_reply(letters.server(name="other").draw())),
    "no ticket": lambda server: changed(server, "/v1/draw", b"incrowd-ticket", b"incrowd-t"),
    "epsilon above the limit": lambda server: spelt(server, epsilon=2.0001),
    "each number on its own": lambda server: spelt(server, epsilon=2.0, privacy="feature"),
    "no noise": lambda server: spelt(server, noise="none"),
    "other noise": lambda server: spelt(server, noise="gaussian", delta=1e-6),
    "hidden layers": lambda server: changed(server, "/v1/specification", b'"hidden":[]', b'"hidden":[3]'),
    "too many instances": lambda server: spelt(server, instances=1001),
    "too much work on texts": lambda server: spelt(server, examples=100, fields={**letters.FIELDS, "subject": LONG}),
    "too many examples": lambda server: spelt(server, examples=101),
    "no specification": lambda server: instead(server, "/v1/specification", reply(200, b"<html>")),
    "an unknown key": lambda server: changed(server, "/v1/specification", b'"clip"', b'"script":1,"clip"'),
    "epsilon as text": lambda server: changed(server, "/v1/specification", b'"epsilon":2.0', b'"epsilon":"2"'),
    "a negative epsilon": lambda server: changed(server, "/v1/specification", b'"epsilon":2.0', b'"epsilon":-2'),
    "an endless specification": lambda server: instead(server, "/v1/specification", unending),
    "elsewhere": lambda server: instead(server, "/v1/draw", reply(302, b"", location="/v1/specification")),
    "nothing": lambda server: instead(server, "/v1/draw", b""),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_service_gets_nothing_and_costs_nothing(page: Page, lie: str) -> None:
    page.listener.say = LIES[lie](page.server)
    page.fails("Refused|ServiceFailed")
    assert (page.charges, page.answers) == (0, [])


@pytest.mark.parametrize("gamma", [b"1e300", b"5e-324"])
def test_whatever_step_is_asked_for_costs_what_one_contribution_costs(page: Page, gamma: bytes) -> None:
    page.listener.say = changed(page.server, "/v1/draw", b"gamma: 0.05", b"gamma: " + gamma)
    page.contribute()
    assert page.browser.run(STATUS)["spent"] == 2


def unending(_: Request) -> Iterator[bytes]:
    return endless(b"HTTP/1.1 200 so\r\n\r\n")


@pytest.mark.slow
def test_an_answer_leaves_at_a_pace(page: Page) -> None:
    honest_say, times = page.listener.say, {}

    def say(request: Request) -> bytes | Iterator[bytes]:
        times[request.path] = time.monotonic()
        return honest_say(request)

    page.listener.say = say
    paced = OPEN.replace("pace: 0", "pace: 1500") + 'return (await device.contribute("")).reason;'
    assert page.browser.run(paced) == "accepted"
    took = times["/v1/answer"] - times["/v1/draw"]
    assert took % 1.5 == pytest.approx(0, abs=0.4)
    assert took > 1.4


def spelt(server: Server, **changes: object) -> Say:
    return instead(server, "/v1/specification", reply(200, letters.asked(**changes).to_json().encode()))
