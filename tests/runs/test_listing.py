from pathlib import Path

import pytest

from incrowd.runs.folder import listed
from incrowd.runs.run import Run
from incrowd.runs.search import Search, axis
from incrowd.runs.sweep import Sweep
from tests.runs.small import SEEDED, SMALL, seeded, small
from tests.runs.test_run import stopped
from tests.runs.test_silo_run import small as silos

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_each_run_and_each_search_has_a_row(folder: Path) -> None:
    over = Run.create(seeded(), folder / "a").train()
    stopped(folder / "b/c", after=2, simulated=False)
    Run.create(small(), folder / "d")
    spent = Run.create(silos(), folder / "e").train()
    search = Search(overrides=(*SMALL, "privacy.rounds=1", *SEEDED), axes=[axis("server.learning_rate=2,8")])
    found = Sweep(search=search, out=folder / "f").run(jobs=1)
    (folder / "g").mkdir()
    (folder / "g/run.sqlite").write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    rows = listed(folder)
    assert [Path(row["run"]).name for row in rows] == ["a", "c", "d", "e", "f", "g"]
    states = [row["state"] for row in rows]
    assert states[:5] == ["over", "after 2 of 4 rounds", "after 0 of 4 rounds", "over", "a search, over"]
    assert states[5].startswith("cannot be read")
    assert [row["unit"] for row in rows] == ["client", "client", "client", "record", "client", None]
    assert [row["simulated"] for row in rows] == [True, False, False, False, True, None]
    assert rows[0]["epsilon"] == over["epsilon"]
    assert 0 < rows[1]["epsilon"] < 8
    assert [rows[place]["epsilon"] for place in (2, 3, 4)] == [0.0, spent["epsilon"], found["epsilon_of_search"]]
    assert {row["data"] for row in rows[:5]} == {"digits"}
