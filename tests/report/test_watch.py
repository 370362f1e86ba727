"""The live page as people meet it: served by the command, asked over HTTP, opened in a browser."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from incrowd.runs.folder import Database
from tests.report.conftest import Made
from tests.report.test_browser import CONTRASTS, FAULTS, PHONE, look
from tests.service.browser import Browser, browsing

pytestmark = pytest.mark.timeout(180)


def begun(finished: Path, folder: Path, *, rounds: int = 2) -> Path:
    """A run that has taken so many of its rounds: a copy of one that is over, without its end."""
    shutil.copytree(finished, folder)
    for name in ("summary.json", "model.safetensors", "statement.json", "statement.txt"):
        (folder / name).unlink(missing_ok=True)
    database = Database(folder / "run.sqlite")
    database._connection.execute("DELETE FROM rounds WHERE round >= ?", (rounds,))
    database.close()
    return folder


def another_round(finished: Path, folder: Path) -> None:
    """The run takes its next round, as the one did that is over."""
    over, database = Database(finished / "run.sqlite"), Database(folder / "run.sqlite")
    database.add(over.rounds()[len(database.rounds())])
    over.close()
    database.close()


@contextmanager
def watching(*arguments: str) -> Iterator[str]:
    """`incrowd watch` of these arguments: its address."""
    command = [sys.executable, "-m", "incrowd", "watch", *arguments, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def ask(url: str, path: str, *, method: str = "GET", **headers: str) -> tuple[int, Mapping[str, str], str]:
    line = HTTPConnection(urlsplit(url).netloc, timeout=20)
    try:
        line.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = line.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode()
    finally:
        line.close()


@pytest.fixture(scope="module")
def served(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with watching(str(begun(made("simulated"), tmp_path_factory.mktemp("watched") / "run"))) as url:
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browsing(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [
        ("/", "GET", "example.org", 400),  # a name of somebody else's that leads here
        ("/", "GET", "127.0.0.1.example.org", 400),
        ("/", "POST", "localhost", 405),
        ("/run.sqlite", "GET", "localhost", 404),
        ("/../run.sqlite", "GET", "localhost", 404),
        ("/", "GET", "localhost", 200),  # the control
    ],
)
def test_nothing_else_is_answered(served: str, path: str, method: str, host: str, status: int) -> None:
    got, headers, body = ask(served, path, method=method, host=host)
    assert got == status
    assert (headers.get("x-frame-options") == "DENY") == (status == 200)
    assert status == 200 or len(body) < 100


def test_the_same_page_is_not_sent_again(served: str) -> None:
    _, headers, _ = ask(served, "/")
    assert headers["cache-control"] == "no-store"
    assert ask(served, "/", if_none_match=headers["etag"])[0] == 304


@pytest.mark.slow
def test_two_runs_go_on_while_their_page_is_open(browser: Browser, made: Made, tmp_path: Path) -> None:
    runs = [begun(made("simulated"), tmp_path / name) for name in ("first", "second")]
    with watching(str(tmp_path)) as url:
        look(browser, url, size=PHONE, dark=True)
        assert browser.run("return document.querySelector('#live').textContent") == "Live"
        browser.run("document.querySelector('#rounds details').open = true")
        before = browser.run("return document.querySelectorAll('#rounds tr').length")
        for run in runs:
            another_round(made("simulated"), run)
        until(browser, f"document.querySelectorAll('#rounds tr').length > {before}")
        assert browser.run("return document.querySelector('#rounds details').open")
        assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
        worst = browser.run(CONTRASTS)[0]
        assert worst[0] >= 4.5, worst
        assert browser.run(FAULTS) == []
        for run in runs:
            shutil.copytree(made("simulated"), run, dirs_exist_ok=True)
        until(browser, "document.querySelector('#live').textContent.startsWith('Over')")
        assert browser.complaints() == []
    until(browser, "document.querySelector('#live').textContent.startsWith('No connection')")


def until(browser: Browser, condition: str) -> None:
    script = """
      for (let tries = 0; tries < 600; tries += 1) {
        if (%s) return true;
        await new Promise((done) => setTimeout(done, 100));
      }
      return false;
    """
    assert browser.run(script % condition), condition
