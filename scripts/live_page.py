"""Make the pictures that docs/watch.md shows: a live page of two runs while they train. `python -m scripts.live_page`.

Two simulations of the embedded digits train beside it, so what round they are in is another one each time.
"""

import base64
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from scripts._common import ROOT
from tests.service.browser import Browser, browsing

OUT = ROOT / "docs" / "_static" / "reports"
SETTINGS = (
    "run.randomness=seeded",
    "run.seed=1",
    "run.diagnose=true",
    "run.plot=false",
    "privacy.rounds=400",
    "model.kind=mlp",
)
RUNS = {"epsilon-8": "privacy.epsilon=8", "epsilon-2": "privacy.epsilon=2"}
PICTURES = (
    ("desk", 1280, 900, "light"),
    ("desk", 1280, 900, "dark"),
    ("phone", 390, 844, "light"),
    ("phone", 390, 844, "dark"),
)
ROUNDS = 60
"""So many rounds are over when the pictures are taken."""


def main() -> None:
    """Train, watch, look."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, setting in RUNS.items():
            given = [each for value in (*SETTINGS, setting) for each in ("--set", value)]
            stack.enter_context(_Ended([sys.executable, "-m", "incrowd", "train", *given, "--out", str(folder / name)]))
        while not all((folder / name / "run.sqlite").exists() for name in RUNS):
            time.sleep(0.2)
        served = stack.enter_context(_Ended([sys.executable, "-m", "incrowd", "watch", str(folder), "--json"]))
        url = json.loads(served.line())["url"]
        browser = stack.enter_context(browsing(folder / "profile"))
        for size, width, height, scheme in PICTURES:
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
            browser.tools("Emulation.setDeviceMetricsOverride", **metrics)
            browser.tools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.go(url)
            _wait(browser)
            clip = {"x": 0, "y": 0, "width": width, "height": 1.75 * height, "scale": 0.6 if size == "desk" else 0.85}
            shot = browser.tools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
            (OUT / f"live-{size}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))


def _wait(browser: Browser) -> None:
    """Until the page is live, and enough rounds are over."""
    browser.run(
        """
        while (document.querySelector("#live")?.dataset.state !== "live"
               || document.querySelectorAll("#rounds tr[data-x]").length < given) {
          await new Promise((done) => setTimeout(done, 200));
        }
        """,
        ROUNDS,
    )


class _Ended:
    """A process that ends with the block."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        return self._process.stdout.readline()

    def __enter__(self) -> "_Ended":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)


if __name__ == "__main__":
    main()
