"""The live page as people meet it: served by the command, asked over HTTP, opened in a browser."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from incrowd.errors import ConfigError
from incrowd.report.live import MOST_WATCHING
from incrowd.report.watching import watch
from tests.report.conftest import Made
from tests.report.test_browser import FAULTS, PHONE, look
from tests.report.watched import Watching, another_round, begun, finish, watching
from tests.service.browser import Browser, browsing
from tests.service.test_page import CONTRASTS

pytestmark = pytest.mark.timeout(180)

TOKEN = "0123456789abcdef0123456789abcdef"  # noqa: S105 - of a test


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


@pytest.fixture(scope="module")
def served(made: Made, place: Path) -> Iterator[Watching]:
    for name in ("first", "second"):
        begun(made("simulated"), place / name)
    with watching(str(place)) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def layout_of(page: str) -> str:
    return page.partition('data-layout="')[2].partition('"')[0]


def test_a_round_is_told_as_soon_as_it_is_written(served: Watching, made: Made, place: Path) -> None:
    status, headers, page = served.ask()
    assert status == 200
    assert headers["cache-control"] == "no-store"
    with served.events(f"layout={layout_of(page)}&seen=0") as events:
        number, sections = events.next("sections")
        assert "rounds" in sections
        assert events.next("standing")[1]["is"] == "live"
        another_round(made("simulated"), place / "first")
        later, changed = events.next("sections")
        assert int(later) > int(number)
        assert "rounds" in changed
        assert "settings" not in changed
    with served.events(f"layout={layout_of(page)}&seen={later}") as events:
        assert events.next()[1]["is"] == "live"  # nothing is told again


def test_who_has_another_page_is_to_load_it_anew(served: Watching) -> None:
    with served.events("layout=old&seen=1") as events:
        assert events.next("reload")
        with pytest.raises(EOFError):
            events.next()


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/", "GET", {"host": "example.org"}, 421),  # a name of somebody else's that leads here
        ("/", "GET", {"host": "127.0.0.1.example.org"}, 421),
        ("/events", "GET", {"host": "example.org"}, 421),
        ("/events", "GET", {"sec-fetch-site": "cross-site"}, 421),  # a page of another site
        ("/enter", "POST", {}, 404),
        ("/", "POST", {}, 404),
        ("/run.sqlite", "GET", {}, 404),
        ("/../run.sqlite", "GET", {}, 404),
        ("/", "GET", {"sec-fetch-site": "cross-site"}, 200),  # a link may lead here
    ],
)
def test_nothing_else_is_answered(
    served: Watching, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    got, said, body = served.ask(path, method=method, headers=headers)
    assert got == status
    assert said["x-frame-options"] == "DENY"
    assert status == 200 or len(body) < 100


def test_no_more_pages_than_so_many_are_served(served: Watching) -> None:
    layout = layout_of(served.ask()[2])
    with ExitStack() as stack:
        for _ in range(MOST_WATCHING):
            stack.enter_context(served.events(f"layout={layout}&seen=0")).next()
        with served.events(f"layout={layout}&seen=0") as one_more:
            assert one_more.reply.status == 503
        assert served.ask()[0] == 200
    for _ in range(100):  # until the server has seen that they are gone
        with served.events(f"layout={layout}&seen=0") as again:
            if again.reply.status == 200:
                return
        time.sleep(0.2)
    pytest.fail("pages that are closed still count")


@pytest.mark.slow
def test_who_has_no_token_learns_nothing(made: Made, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    begun(made("simulated"), tmp_path / "run")
    with watching(str(tmp_path / "run"), "--token-file", str(tmp_path / "token")) as served:
        assert served.url.endswith(f"#token={TOKEN}")
        status, _, page = served.ask()
        assert status == 401
        assert "epsilon" not in page.lower()
        assert served.ask("/events")[0] == 401
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert served.ask("/enter", method="POST", body="token=wrong", headers=form)[0] == 403
        assert served.ask("/enter", method="POST", body="token=" + "x" * 10_000, headers=form)[0] == 413
        status, headers, _ = served.ask("/enter", method="POST", body=f"token={TOKEN}", headers=form)
        assert (status, headers["location"]) == (303, "/")
        assert "HttpOnly" in headers["set-cookie"]
        assert "samesite=strict" in headers["set-cookie"].lower()
        cookie = {"cookie": headers["set-cookie"].partition(";")[0]}
        assert "epsilon" in served.ask(headers=cookie)[2].lower()
        assert served.ask(headers={"cookie": f"incrowd-watch={TOKEN}x"})[0] == 401


def test_beyond_this_machine_there_is_always_a_token(made: Made) -> None:
    said: list[str] = []

    def listening(url: str) -> None:
        said.append(url)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch([str(made("simulated"))], host="0.0.0.0", listening=listening)  # noqa: S104 - it ends at once
    assert "#token=" in said[0]
    with pytest.raises(ConfigError, match="port"):
        watch([str(made("simulated"))], host="192.0.2.1", listening=listening)


@pytest.mark.slow
def test_two_runs_go_on_while_their_page_is_open(browser: Browser, made: Made, tmp_path: Path) -> None:
    runs = [begun(made("simulated"), tmp_path / name) for name in ("first", "second")]
    browser.go("about:blank")  # an earlier page goes on asking for its server
    browser.complaints()
    with watching(str(tmp_path)) as served:
        look(browser, served.url, size=PHONE, dark=True)
        assert told(browser, "live") == "Live"
        browser.run("document.querySelector('#rounds details').open = true; scrollTo(0, 300)")
        before = browser.run("return document.querySelectorAll('#rounds tr').length")
        for run in runs:
            another_round(made("simulated"), run)
        until(browser, f"document.querySelectorAll('#rounds tr').length > {before}")
        assert browser.run("return document.querySelector('#rounds details').open")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        worst = browser.run(CONTRASTS)[0]
        assert worst[0] >= 4.5, worst
        assert browser.run(FAULTS) == []
        names = "return performance.getEntriesByType('resource').map((one) => new URL(one.name).pathname)"
        assert set(browser.run(names)) <= {"/events"}
        for run in runs:
            finish(made("simulated"), run)
        assert told(browser, "over").startswith("Over")
        assert browser.complaints() == []
    assert told(browser, "away").startswith("No connection")
    assert all("/events" in complaint for complaint in browser.complaints())  # of a server that has gone


@pytest.mark.slow
def test_the_token_at_the_end_of_an_address_opens_the_page(browser: Browser, made: Made, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    begun(made("simulated"), tmp_path / "run")
    with watching(str(tmp_path / "run"), "--token-file", str(tmp_path / "token")) as served:
        look(browser, served.url)
        assert told(browser, "live") == "Live"
        assert TOKEN not in browser.run("return location.href + document.cookie")


def told(browser: Browser, state: str) -> str:
    until(browser, f"document.querySelector('#live')?.dataset.state === '{state}'")
    found: str = browser.run("return document.querySelector('#live').textContent")
    return found


def until(browser: Browser, condition: str) -> None:
    script = """
      for (let tries = 0; tries < 200; tries += 1) {
        if (%s) return true;
        await new Promise((done) => setTimeout(done, 100));
      }
      return false;
    """
    assert browser.run(script % condition), condition
