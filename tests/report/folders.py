"""Folders of each kind, small and quick, for tests of what is shown of them."""

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from incrowd.drawdiscard import Server
from incrowd.runs.evaluation import EvaluationConfig
from incrowd.runs.run import Run
from incrowd.runs.sweep import Search, Sweep, axis
from tests.drawdiscard import mail
from tests.runs.small import seeded, small
from tests.runs.test_run import stopped
from tests.runs.test_silo_run import SEEDED
from tests.runs.test_silo_run import small as two_silos
from tests.runs.test_sweep import BASE
from tests.service import letters


def simulated(place: Path) -> Path:
    """A simulation of public data that looked at contributions."""
    Run.create(seeded("run.diagnose=true"), place).train()
    return place


def in_earnest(place: Path) -> Path:
    """A run whose noise is the operating system's, with an evaluation."""
    run = Run.create(small("privacy.room=8"), place)
    run.train()
    run.evaluate(EvaluationConfig(epsilon=2.0, by_class=True))
    return place


def unfinished(place: Path) -> Path:
    """A run that was stopped after two of its four rounds."""
    stopped(place, after=2)
    return place


def local(place: Path) -> Path:
    """A run whose clients add the noise."""
    Run.create(seeded("privacy.noise_by=party"), place).train()
    return place


def silos(place: Path) -> Path:
    """Two silos."""
    Run.create(two_silos("privacy.rounds=2", *SEEDED), place).train()
    return place


def search(place: Path) -> Path:
    """Four settings side by side."""
    axes = [axis("server.learning_rate=2,4"), axis("privacy.rounds=1,2")]
    Sweep(search=Search(overrides=BASE, axes=axes), out=place).run()
    return place


def pool(place: Path) -> Path:
    """A server of draw and discard that took three answers, and was closed."""
    with Server(letters.asked(instances=5), folder=place, turned_away=1e-9) as server:
        for seed in range(3):
            server.offer(*mail.honest(server, seed))
    return place


KINDS: Mapping[str, Callable[[Path], Path]] = {
    "simulated": simulated,
    "in earnest": in_earnest,
    "unfinished": unfinished,
    "local": local,
    "silos": silos,
    "search": search,
    "pool": pool,
}


def change_settings(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a run's settings say, as an operator's own settings could have had it."""
    with closing(sqlite3.connect(folder / "run.sqlite")) as database, database:
        config = json.loads(database.execute("SELECT value FROM settings WHERE name = 'config'").fetchone()[0])
        change(config)
        database.execute("UPDATE settings SET value = ? WHERE name = 'config'", (json.dumps(config),))
