"""The page of a service, in a browser: what it shows, to whom, and that it asks nobody else."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.drawdiscard import Device
from incrowd.service.remote import RemoteServer
from tests.drawdiscard import mail
from tests.service import letters
from tests.service.browser import Browser, browsing
from tests.service.served import Service, serving
from tests.service.test_device_browser import CONTRIBUTE, OPEN

pytestmark = pytest.mark.timeout(180)

NAME = "Mail <img src=x onerror=alert(1)> & more"
TOO_WIDE = """
return [...document.querySelectorAll("body *")]
  .filter((one) => one.getClientRects().length && one.getBoundingClientRect().right > innerWidth + 1)
  .map((one) => one.outerHTML.slice(0, 80));
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    asked = letters.asked(name=NAME, gamma=0.002, instances=5)
    with serving(folder, asked) as running:
        with Device(letters.letters(), ledger=folder / "ledger", policy=mail.LOOSE) as own:
            remote = RemoteServer(running.url, pace_s=0)
            for _ in range(4):
                own.contribute(remote)
            drawn = remote.draw()
            remote.offer(drawn.weights, drawn.ticket)
        until(lambda: counted(running) == 5)
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, service: Service) -> Browser:
    browser.tools("Emulation.clearDeviceMetricsOverride")
    browser.complaints()
    browser.go(service.url)
    until(lambda: said(browser, "name") != "A model of many")
    return browser


def until(what: Callable[[], bool], *, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def counted(service: Service) -> int:
    status = service.status()
    return int(status["accepted"] + sum(status["turned_away"].values()))


def said(browser: Browser, name: str) -> str:
    return str(browser.run("return document.getElementById(given).innerText;", name))


def test_it_shows_what_the_service_says(page: Browser, service: Service) -> None:
    status = service.status()
    assert said(page, "name") == NAME
    assert page.run("return document.title") == f"{NAME} · incrowd"
    assert said(page, "state") == "Open"
    figures = said(page, "figures")
    assert f"Accepted\t{status['accepted']}" in figures
    assert f"Turned away: unlike\t{status['turned_away']['unlike']}" in figures
    assert "a whole contribution" in said(page, "odds")
    assert "at most 88.1% of the time" in said(page, "odds")
    assert said(page, "promise") == status["promise"]
    assert "Admission is open" in said(page, "admission")
    assert said(page, "command").startswith(f"incrowd contribute --server {service.url} ")
    first = status["weights"][0]
    row = page.run("return document.querySelector('#weights tbody tr').innerText.split('\\t');")
    assert row[0] == first["feature"]
    assert float(row[-1]) == pytest.approx(first["weight"], rel=1e-2)
    adversaries = said(page, "adversaries")
    for view in status["adversaries"]:
        assert view["sees"] in adversaries


def test_nothing_complains_and_nobody_else_is_asked(page: Browser, service: Service) -> None:
    for _ in range(2):  # the second time, most of it comes from the browser's own memory
        page.go(service.url)
        until(lambda: said(page, "name") == NAME)
    assert page.complaints() == []
    asked = page.run("return performance.getEntriesByType('resource').map(({ name }) => name);")
    assert asked
    assert all(name.startswith((service.url, "data:")) for name in asked)
    assert page.run("return document.cookie + localStorage.length + sessionStorage.length;") == "00"
    assert page.run("return document.querySelectorAll('img').length") == 0


@pytest.mark.parametrize("width", [320, 1280])
def test_it_fits_every_width(page: Browser, width: int) -> None:
    page.tools("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    assert page.run(TOO_WIDE) == []
    assert page.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_it_says_when_the_service_is_gone(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path, letters.asked()) as running:
        browser.go(running.url)
        until(lambda: said(browser, "state") == "Open")
    until(lambda: said(browser, "state") == "This service does not answer")
    assert said(browser, "name") == "mail"
    browser.go("about:blank")
    browser.complaints()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "allowed"), [({}, ("accepted", "unlike")), ({"noise": "direction", "bound": "norm"}, ("accepted",))]
)
def test_a_browser_contributes_to_a_service_that_runs(
    browser: Browser, tmp_path: Path, noise: dict[str, object], allowed: tuple[str, ...]
) -> None:
    """A direction is one to the last bit, or it would be turned away."""
    with serving(tmp_path, letters.asked(**noise)) as service:
        browser.go(service.url)
        browser.keep_storage(allowed=True)
        browser.run(OPEN + "await device.add(given);", letters.letters())
        assert browser.run(CONTRIBUTE)["reason"] in allowed
        until(lambda: counted(service) == 1)
        assert browser.run(OPEN + "return (await device.status()).charges;") == 1
        browser.go("about:blank")
