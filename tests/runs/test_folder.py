from pathlib import Path

import pytest

from incrowd._prometheus import metric
from incrowd.runs.config import Config
from incrowd.runs.folder import SHOWN
from incrowd.runs.run import Run
from incrowd.runs.sweep import Search, Sweep, axis
from incrowd.settings import known_keys
from tests.command import command
from tests.runs.small import SEEDED, SMALL, seeded, small
from tests.runs.test_run import stopped
from tests.runs.test_silo_run import small as silos

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_each_run_and_each_search_has_a_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = Run.create(seeded(), folder / "a").train()
    stopped(folder / "b/c", after=2, simulated=False)
    Run.create(small(), folder / "d")
    spent = Run.create(silos(), folder / "e").train()
    search = Search(overrides=(*SMALL, "privacy.rounds=1", *SEEDED), axes=[axis("server.learning_rate=2,8")])
    found = Sweep(search=search, out=folder / "f").run()
    (folder / "g").mkdir()
    (folder / "g/run.sqlite").write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    rows = command(monkeypatch, capsys)("list", str(folder), "--json").object()["runs"]
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
    watched = command(monkeypatch, capsys)("list", str(folder), "--metrics").out
    assert f'incrowd_run_over{{run="{folder / "a"}"}} 1\n' in watched
    assert f'incrowd_run_rounds{{run="{folder / "b/c"}"}} 2\n' in watched


def test_a_label_of_a_metric_is_escaped() -> None:
    assert metric("m", "Words.", {'a"b\\c\n': 1}, label="run").endswith('m{run="a\\"b\\\\c\\n"} 1\n')


KEPT_BACK = (
    "data.enrolled", "data.file", "data.folder", "data.arguments", "data.seed", "data.test_file",
    "features.arguments", "features.cache", "features.folder", "features.weights", "model.arguments", "model.folder",
    "privacy.ledger", "privacy.witness", "run.device", "run.keep", "run.seed", "run.threads", "run.trackers",
)  # fmt: skip
"""The settings that are not handed on: paths, seeds, arguments and facts of the operator's machine."""


def test_every_setting_is_either_shown_or_kept_back() -> None:
    """A new setting cannot be forgotten."""
    known = {*known_keys(Config), *known_keys(Config)}
    known = {".".join(key.split(".")[:2]) for key in known if "." in key}
    shown = {f"{section}.{name}" for section, names in SHOWN.items() for name in names}
    assert shown | set(KEPT_BACK) == known
    assert not shown & set(KEPT_BACK)
