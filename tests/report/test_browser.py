"""The page in a browser, opened from a disk: nothing loaded, nothing complained of, for everybody to read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from incrowd.report.page import page
from incrowd.report.shown import read
from tests.report.conftest import Made
from tests.service.browser import Browser, browsing

pytestmark = pytest.mark.timeout(180)

PHONE, DESK = (390, 844), (1280, 900)
PAGES = {
    "run": ("simulated",),
    "silos": ("silos",),
    "search": ("search",),
    "several": ("simulated", "in earnest", "local"),
}

CONTRASTS, FAULTS = (Path(__file__).with_name(name).read_text() for name in ("contrasts.js", "faults.js"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def places(made: Made, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, kinds in PAGES.items():
        place = folder / f"{name}.html"
        place.write_text(page([read(made(kind)) for kind in kinds]), encoding="utf-8")
        found[name] = place.as_uri()
    return found


def look(browser: Browser, url: str, *, size: tuple[int, int] = DESK, dark: bool = False, media: str = "") -> None:
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    browser.tools("Emulation.setDeviceMetricsOverride", **metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.tools("Emulation.setEmulatedMedia", media=media, features=[scheme])
    browser.go(url)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("size", "dark"), [(PHONE, True), (DESK, False)])
def test_it_is_readable_at_every_size_in_light_and_dark(
    browser: Browser, places: dict[str, str], name: str, size: tuple[int, int], dark: bool
) -> None:
    look(browser, places[name], size=size, dark=dark)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    worst = browser.run(CONTRASTS)[0]
    assert worst[0] >= 4.5, worst
    assert browser.run(FAULTS) == []
    assert browser.complaints() == []


def test_nothing_is_loaded_but_the_file(browser: Browser, places: dict[str, str]) -> None:
    look(browser, places["several"])
    assert browser.run("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    refused = """
      try { await fetch("http://127.0.0.1:9/"); return "fetched"; } catch { /* as it should */ }
      const added = document.createElement("script");
      added.textContent = "window.ran = true";
      document.body.append(added);
      return window.ran ?? "refused";
    """
    assert browser.run(refused) == "refused"
    assert any("Content Security Policy" in one for one in browser.complaints())  # the control: it does complain


def test_in_print_it_is_light_and_folded_texts_are_open(browser: Browser, places: dict[str, str]) -> None:
    look(browser, places["run"], dark=True, media="print")
    found = browser.run("""
      const folded = [...document.querySelectorAll("details:not(.behind) > :not(summary)")];
      return [folded.filter((one) => !one.checkVisibility() || !one.offsetHeight).length,
              getComputedStyle(document.querySelector("nav")).display,
              getComputedStyle(document.documentElement).getPropertyValue("--card").trim()];
    """)
    assert found == [0, "none", "#ffffff"]


@pytest.mark.parametrize("name", PAGES)
def test_a_printed_page_is_as_wide_as_its_paper(browser: Browser, places: dict[str, str], name: str) -> None:
    """Wider ones would be shrunk by the browser until nobody reads them. Inside its margins A4 is 688 pixels wide."""
    look(browser, places[name], size=(688, 972), media="print")
    assert browser.run("return document.documentElement.scrollWidth") <= 688
