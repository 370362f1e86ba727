"""Is this URL phishing? 200 devices find out together over HTTP, and none of them shows where it has been.

Starts a service with its page, and devices as clients of it: each has a SQLite table of ten URLs, a ledger and limits
of its own, and sees nothing but the service's address. Stopped and started again with the same folder, it goes on.
Run: python examples/phishing/run.py [--data DIR]
"""

import argparse
import csv
import gzip
import hashlib
import html
import json
import random
import sqlite3
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from incrowd.drawdiscard import Device, Policy, Predictor
from incrowd.drawdiscard.specification import read_specification
from incrowd.errors import BudgetExceeded
from incrowd.service.remote import RemoteServer, Turns, take_turns

PLACE = Path("phishing") / "urls.csv.gz"
"""Columns ``label`` (1 is phishing) and ``url``."""

HELD_OUT = 0.2
"""So many of the hosts are in nobody's table: the public examples."""

_NAMES = (
    *("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "lemon"),
    *("maple", "north", "olive", "pearl", "quartz", "ridge"),
)
_PATHS = ("about", "news", "team", "blog", "shop", "help", "contact", "products", "events", "archive")
_BAIT = ("login", "verify", "secure", "account", "update", "confirm", "signin", "wallet")
_CHEAP = ("top", "xyz", "icu", "club", "live", "site")
_USUAL = ("com", "org", "net", "de")

SPECIFICATION = Path(__file__).with_name("phishing.toml")
PER_DEVICE = 10
LIMITS = Policy(epsilon=2.0, daily_epsilon=20.0)
"""What each owner allows: ten contributions of epsilon 2, and then none any more."""


class Url(NamedTuple):
    """An example: what stood in the address bar, and whether it was phishing."""

    phishing: int
    url: str


def main() -> None:
    """Fill the tables, serve, let the devices contribute, and predict."""
    asked = _arguments()
    mine, public = split(known_urls(asked.data))
    folder = asked.out / ("made-up" if asked.data is None else "real")
    folder.mkdir(parents=True, exist_ok=True)
    devices = [folder / f"device-{number}.sqlite" for number in range(min(asked.devices, len(mine) // PER_DEVICE))]
    for number, place in enumerate(devices):
        fill(place, mine[PER_DEVICE * number :][:PER_DEVICE])
    with serving(folder, port=asked.port) as url:
        print(f"the service is at {url} (incrowd watch {url}): {len(devices)} devices begin", flush=True)
        for turn in range(asked.times):
            said = everyone(devices, url)
            print(
                f"turn {turn + 1}: {', '.join(f'{count} {what}' for what, count in sorted(said.items()))}", flush=True
            )
        show(public, learnt(url))
        if asked.stay:
            input("The service stays until you press Enter. ")


def everyone(devices: list[Path], url: str) -> Counter[str]:
    """A turn of every device, eight at a time: what became of their contributions."""

    def turn(place: Path) -> Turns:
        with Device(place, table="visited", policy=LIMITS) as device:
            return take_turns(device, RemoteServer(url, pace_s=0))  # public examples: their time may tell

    with ThreadPoolExecutor(8) as threads:
        turns = list(threads.map(turn, devices))
    said = Counter(reason.name.lower() for each in turns for reason in each.reasons.elements())
    for each in turns:
        if isinstance(each.stopped, BudgetExceeded):
            said["at their limit"] += 1
        elif each.stopped is not None:
            raise each.stopped
    return said


def fill(place: Path, urls: list[Url]) -> None:
    """What the browser of a device remembers."""
    with closing(sqlite3.connect(place)) as app, app:
        app.execute("CREATE TABLE IF NOT EXISTS visited (phishing INTEGER, url TEXT)")
        if not app.execute("SELECT count(*) FROM visited").fetchone()[0]:
            app.executemany("INSERT INTO visited VALUES (?, ?)", urls)


@contextmanager
def serving(folder: Path, *, port: int) -> Iterator[str]:
    """A service in a process of its own, which keeps its pool in the folder; its address."""
    words = [sys.executable, "-m", "incrowd", "serve", str(SPECIFICATION), "--json", "--port", str(port)]
    words += ["--open-admission"]  # on this machine alone; elsewhere devices show tokens
    words += ["--folder", str(folder / "pool")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            started = process.stdout.readline() if process.stdout is not None else ""
            if not started:
                raise SystemExit("the service did not start")
            yield json.loads(started)["url"]
        finally:
            process.terminate()
            process.wait()


def learnt(url: str) -> Predictor:
    """What anybody may ask of the service: the average of its pool."""
    with urllib.request.urlopen(f"{url}/v1/average", timeout=30) as reply:  # noqa: S310 - the service that was started here
        weights = json.load(reply)["weights"]
    return Predictor(read_specification(SPECIFICATION), np.array(weights))


def show(public: list[Url], predictor: Predictor) -> None:
    """How often it is right about hosts that no device has visited, and what it makes of some URLs."""
    chances = predictor.predict([{"url": url.url} for url in public])
    right = float(np.mean((chances > 0.5) == np.array([url.phishing for url in public], bool)))
    print(f"right about {right:.1%} of {len(public)} URLs of hosts that no device has visited (a coin: about half)")
    for chance, url in [*zip(chances, public, strict=True)][:6]:
        print(f"{chance:4.0%} phishing, and {'is' if url.phishing else 'is not'}: {url.url[:70]}")


def known_urls(folder: Path | None, *, count: int = 4_000) -> list[Url]:
    """Those of a folder, as many of each kind; without a folder, made up."""
    if folder is None:
        made = random.Random(1)  # noqa: S311 - made up, and the same every time
        return [made_up(made) for _ in range(count)]
    with gzip.open(folder / PLACE, "rt", encoding="utf-8", newline="") as lines:
        rows = [Url(int(row["label"]), html.unescape(row["url"]).strip()) for row in csv.DictReader(lines)]
    shuffled = random.Random(2)  # noqa: S311 - who gets which
    kinds = [[url for url in rows if url.phishing == kind] for kind in (0, 1)]
    pairs = zip(*(shuffled.sample(kind, len(kind)) for kind in kinds), strict=False)
    both = [url for pair in pairs for url in pair]
    return shuffled.sample(both, len(both))


def made_up(made: random.Random) -> Url:
    """Like the real ones: bait, borrowed names and odd hosts are more common in phishing, and none of them is proof."""
    phishing = int(made.random() < 0.5)
    odd = 0.65 if phishing else 0.12
    name = made.choice(_NAMES)
    if made.random() < odd:
        name += "-" + made.choice(_BAIT)
    if made.random() < odd / 2:
        name += str(made.randrange(10, 9999))
    host = f"{name}.{made.choice(_CHEAP if made.random() < odd else _USUAL)}"
    if made.random() < odd / 2:
        host = f"{made.choice(_NAMES)}.{made.choice(_NAMES)}.{host}"
    path = "/".join(made.choice(_BAIT if made.random() < odd else _PATHS) for _ in range(made.randrange(4)))
    end = made.choice([".php", ".html"]) if path and made.random() < odd else ""
    scheme = "http" if made.random() < odd else "https"
    return Url(phishing, f"{scheme}://{'' if made.random() < odd else 'www.'}{host}/{path}{end}")


def split(urls: list[Url]) -> tuple[list[Url], list[Url]]:
    """Those of devices, and those that anybody may see: no host is among both."""
    public = [url for url in urls if _place(url.url) < HELD_OUT]
    return [url for url in urls if _place(url.url) >= HELD_OUT], public


def _place(url: str) -> float:
    host = url.rsplit("://", maxsplit=1)[-1].split("/", maxsplit=1)[0].lower().split("@")[-1].split(":")[0]
    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big") / 2**64


def _arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--data", type=Path, help="holds phishing/urls.csv.gz; without it URLs are made up")
    options.add_argument("--out", type=Path, default=Path("out/phishing"), help="where all is kept")
    options.add_argument("--devices", type=int, default=200)
    options.add_argument("--times", type=int, default=10, help="contributions of each device")
    options.add_argument("--port", type=int, default=0, help="of the page; any that is free without it")
    options.add_argument("--stay", action="store_true", help="let the service stay at the end")
    return options.parse_args()


if __name__ == "__main__":
    main()
