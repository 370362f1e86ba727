"""Make the reports that docs/report.md shows, and pictures of them: `python -m scripts.reports --data DIR`.

The runs are simulations of MNIST (from DIR/mnist). Their figures are the same each time; the
hashes of their ledgers are not, because each entry has a random number in it.
"""

import argparse
import base64
import tempfile
from pathlib import Path

import incrowd
from incrowd.report.page import page
from incrowd.report.shown import read_all
from scripts._common import ROOT

OUT = ROOT / "docs" / "_static" / "reports"
SEEDED = ("run.randomness=seeded",)
SIZES = {"desk": (1280, 900), "phone": (390, 844)}
PICTURES = (("table-1", "desk", "light"), ("table-1", "phone", "dark"), ("silos", "desk", "dark"))


def main() -> None:
    """Train, write the pages, look at them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds mnist/")
    parser.add_argument("--runs", type=Path, help="where the runs are kept, and not trained again")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        place = given.runs or Path(made)
        folders = {"table-1": table_1(place, given.data), "silos": silos(place, given.data)}
        for name, folder in folders.items():
            (OUT / f"{name}.html").write_text(page(read_all([folder])), encoding="utf-8")
        side_by_side = [folders["table-1"], careful(place, given.data)]
        (OUT / "side-by-side.html").write_text(page(read_all(side_by_side)), encoding="utf-8")
    pictures()


def table_1(place: Path, data: Path) -> Path:
    """MNIST of 100 clients at epsilon 8, as in the paper's Table 1."""
    return _trained(place / "table-1", ROOT / "examples/mnist.toml", data, "run.seed=1", "run.diagnose=true")


def careful(place: Path, data: Path) -> Path:
    """The same at epsilon 2."""
    settings = ("run.seed=1", "run.diagnose=true", "privacy.epsilon=2")
    return _trained(place / "careful", ROOT / "examples/mnist.toml", data, *settings)


def silos(place: Path, data: Path) -> Path:
    """MNIST in ten silos."""
    return _trained(place / "silos", ROOT / "examples/silos.toml", data, "run.seed=1")


def pictures() -> None:
    """What the pages look like, in light and dark, at a desk and on a phone."""
    from tests.service.browser import browsing

    with tempfile.TemporaryDirectory() as profile, browsing(Path(profile)) as browser:
        for name, size, scheme in PICTURES:
            width, height = SIZES[size]
            metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"}
            browser.tools("Emulation.setDeviceMetricsOverride", **metrics)
            browser.tools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            browser.go((OUT / f"{name}.html").as_uri())
            clip = {"x": 0, "y": 0, "width": width, "height": 1.75 * height, "scale": 0.65 if size == "desk" else 0.9}
            shot = browser.tools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
            (OUT / f"{name}-{size}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))


def _trained(folder: Path, settings: Path, data: Path, *overrides: str) -> Path:
    if not (folder / "summary.json").exists():
        federation = incrowd.Federation.from_settings(settings, overrides=[*SEEDED, *overrides], data=data)
        federation.train(folder, progress=False)
    return folder


if __name__ == "__main__":
    main()
