"""Who reads a mail? 200 phones learn it together, and none of them shows its mails to anyone.

Each phone has a SQLite table of its own, a ledger and a daily limit. Killed at any moment and started again, the
example goes on. Run: python examples/draw_and_discard.py
"""

import math
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

import incrowd

FIELDS = {
    "opened": {"type": "boolean"},
    "sender": {"type": "category", "levels": ["friend", "shop"], "baseline": "shop"},
    "words": {"type": "integer", "low": 0, "high": 500},
}
STEP = {"gamma": 0.4, "clip": 0.3, "bound": "norm", "instances": 2}
"""How far a phone moves the model: bounds on its gradient, and the share of it that counts."""


def learn(out: Path, phones: int) -> incrowd.Server:
    """The ten lines: a server, and phones that contribute, some at a time."""
    asked = incrowd.Specification.from_formula(
        "opened ~ sender + words", name="mail", fields=FIELDS, epsilon=2.0, **STEP
    )
    server = incrowd.Server(asked, folder=out / "server")

    def contribute(number: int) -> None:
        with incrowd.Device(out / f"phone-{number}.sqlite", table="mails") as phone, suppress(incrowd.BudgetExceeded):
            phone.contribute(server)  # its owner allows one a day

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(contribute, range(phones)))
    return server


def fill(path: Path, number: int) -> None:
    """What the mail app of a phone has kept: made up here, as nobody may see real ones."""
    made = np.random.default_rng(number)
    mails = [("friend" if made.random() < 0.5 else "shop", int(made.integers(0, 500))) for _ in range(20)]
    rows = [(int(made.random() < chance(sender, words)), sender, words) for sender, words in mails]
    with closing(sqlite3.connect(path)) as app, app:
        app.execute("CREATE TABLE IF NOT EXISTS mails (opened INTEGER, sender TEXT, words INTEGER)")
        if not app.execute("SELECT count(*) FROM mails").fetchone()[0]:
            app.executemany("INSERT INTO mails VALUES (?, ?, ?)", rows)


def chance(sender: str, words: int) -> float:
    """The truth that is to be found: mails of friends are opened, long ones are not."""
    return 1 / (1 + math.exp(-(3 * (sender == "friend") - 4 * words / 500)))


def main(out: Path, phones: int = 200) -> None:
    """Make the phones, let them contribute, and show what was learnt."""
    out.mkdir(parents=True, exist_ok=True)
    for number in range(phones):
        fill(out / f"phone-{number}.sqlite", number)
    with learn(out, phones) as server:
        model = server.model()
        for sender in ("friend", "shop"):
            for words in (20, 480):
                (found,) = model.predict([{"sender": sender, "words": words}])
                print(f"{sender:8} {words:4} words: opened {found:.2f}, in truth {chance(sender, words):.2f}")
        print(server.statement())


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "out/draw-and-discard"), *map(int, sys.argv[2:3]))
