"""URLs that nobody ever registered, made up from words: honest ones and others that look for passwords."""

import csv
import gzip
from pathlib import Path

import numpy as np

_PLACES = ("river", "garden", "museum", "bakery", "school", "travel", "music", "harbour")
_PAGES = ("about-us", "opening-hours", "contact", "news/spring", "people", "gallery.svg", "prices.pdf", "")
_BAIT = ("secure-login", "account-verify", "paypal-update", "office365-signin", "bank-confirm", "mail-auth")


def made_up(count: int, *, seed: int = 1) -> list[tuple[int, str]]:
    """Labels and URLs; about every fifth is bait."""
    generator = np.random.Generator(np.random.SFC64(seed))
    found = []
    for number in range(count):
        place, page, bait = (int(generator.integers(8)) for _ in range(3))
        if generator.random() < 0.2:
            host = f"{_BAIT[bait % 6]}{number}.{_PLACES[place]}{int(generator.integers(99))}.tk"
            found.append((1, f"http://{host}/{_BAIT[page % 6]}/login.php?id={int(generator.integers(10**6))}"))
        else:
            found.append((0, f"https://www.{_PLACES[place]}-{number // 2}.org/{_PAGES[page]}"))
    return found


def write_urls(folder: Path, rows: list[tuple[int, str]], *, header: tuple[str, str] = ("label", "url")) -> Path:
    """The table where a data folder has it; gives the folder."""
    (folder / "phishing").mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "phishing" / "urls.csv.gz", "wt", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows([header, *rows])
    return folder
