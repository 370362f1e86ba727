"""A Chromium without a screen, driven by its chromedriver (W3C WebDriver) with the standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,900",
)
RUN = """
const done = arguments[arguments.length - 1], given = arguments[0];
(async () => { %s })().then((value) => done({ value }), (error) => done({ error: `${error.name}: ${error.message}` }));
"""


class Failed(Exception):
    """What a script in the page threw: the error's name and message."""


def needed() -> tuple[str, str]:
    """The browser and its driver; without them a test is skipped here, and fails where everything has to run."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is not None and driver is not None:
        return browser, driver
    why = "chromium and chromedriver are not installed: apt-get install chromium chromium-driver"
    if os.environ.get("INCROWD_ALL_TESTS"):
        pytest.fail(why)
    pytest.skip(why)


@dataclass
class Browser:
    """A session of the browser: one profile, any number of tabs."""

    session: str
    process: int = 0

    def command(self, path: str, body: object = None, *, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.session + path, data, {"content-type": "application/json"}, method=method)  # noqa: S310 - the driver of this test
        try:
            with urllib.request.urlopen(request, timeout=90) as reply:  # noqa: S310 - the same
                return json.load(reply)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from error

    def go(self, url: str) -> None:
        self.command("/url", {"url": url})

    def run(self, script: str, given: object = None) -> Any:
        """What the body of an async function returns, in the present tab; `given` is its argument."""
        found = self.command("/execute/async", {"script": RUN % script, "args": [given]})
        if "error" in found:
            raise Failed(found["error"])
        return found.get("value")

    def tab(self) -> str:
        """A new tab, which is the present one from now on."""
        handle: str = self.command("/window/new", {"type": "tab"})["handle"]
        self.switch(handle)
        return handle

    def here(self) -> str:
        handle: str = self.command("/window")
        return handle

    def switch(self, handle: str) -> None:
        self.command("/window", {"handle": handle})

    def keep_storage(self, *, allowed: bool) -> None:
        """What the browser's user says when the page at hand asks to store data for good."""
        state = "granted" if allowed else "denied"
        self.command("/permissions", {"descriptor": {"name": "persistent-storage"}, "state": state})

    def tools(self, name: str, **given: object) -> Any:
        """A command of the browser's own tools for developers."""
        return self.command("/goog/cdp/execute", {"cmd": name, "params": given})

    def complaints(self) -> list[str]:
        """What the console was told since the last time it was asked."""
        return [str(entry["message"]) for entry in self.command("/se/log", {"type": "browser"})]

    def picture(self, place: Path) -> None:
        place.write_bytes(base64.b64decode(self.command("/screenshot")))


@contextmanager
def browsing(profile: Path, *flags: str) -> Iterator[Browser]:
    """A browser with this profile, for as long as it is needed."""
    binary, driver = needed()
    with subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True) as running:
        try:
            port = _port(running)
            options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={profile}", *flags]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            opened = Browser(f"http://127.0.0.1:{port}/session")
            made = opened.command("", {"capabilities": {"alwaysMatch": wanted}})
            opened.session += f"/{made['sessionId']}"
            opened.process = int(made["capabilities"]["goog:processID"])
            try:
                opened.command("/timeouts", {"script": 60_000, "pageLoad": 60_000})
                yield opened
            finally:
                with suppress(OSError, AssertionError):
                    opened.command("", method="DELETE")
        finally:
            running.terminate()
            running.wait(20)


def _port(running: "subprocess.Popen[str]") -> int:
    for line in running.stdout or ():
        if "started successfully on port" in line:
            return int(line.rsplit(" ", 1)[1].strip(" .\n"))
    raise AssertionError("chromedriver did not start")
