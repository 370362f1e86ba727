import csv
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from incrowd import _files
from incrowd._log import metric
from incrowd.errors import ConfigError, DataError, IncrowdError
from incrowd.privacy.ledger.ledger import verify
from incrowd.runs.config import Config
from incrowd.runs.folder import SHOWN, Database, Record, Summary, export
from incrowd.runs.run import Run
from incrowd.runs.sweep import Search, Sweep, axis
from incrowd.settings import known_keys
from tests.command import command
from tests.privacy.ledgers import start, status_of
from tests.runs.kills import killed_at
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


RECORD = Record(round=3, epsilon=1.5, seconds=0.25, clients_per_second=400.0, accuracy=0.5, loss=1.25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.sqlite"


def test_settings_and_the_latest_rounds_are_still_there_after_closing(path: Path) -> None:
    settings = {"config": {"a": [1, 2.5, None]}, "chunk": 8}
    seen = Record(round=1, epsilon=0.1, lost=True, simulation={"observed": {"dropped": 2}})
    with closing(Database(path)) as first:
        first.write_settings(settings)
        for record in (Record(round=3, epsilon=1.5), seen, RECORD):
            first.add(record)
    with closing(Database(path)) as second:
        assert second.settings == settings
        assert second.rounds() == [seen, RECORD]


def test_a_newer_version_is_refused_and_not_touched(path: Path) -> None:
    Database(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(DataError, match="is of version 99, and this incrowd writes 3"):
        Database(path)


@pytest.mark.slow
def test_a_process_killed_at_any_line_leaves_all_settings_or_none(path: Path) -> None:
    settings = {"one": 1, "two": 2}

    def work() -> None:
        store = Database(path)
        store.write_settings(settings)
        store.close()

    statuses = []
    for line in range(1, 200):
        path.unlink(missing_ok=True)
        statuses.append(status_of(start(lambda: killed_at("/runs/folder.py", line, work))))  # noqa: B023 - waited for
        store = Database(path)
        assert store.settings in ({}, settings)
        store.close()
        if statuses[-1] == 0:
            break
    assert statuses[-1] == 0
    assert len(statuses) > 15


def test_a_folder_that_is_removed_in_the_middle_leaves_the_ledger_with_all_that_was_charged(folder: Path) -> None:
    run, ledger = folder / "run", folder / "mine.sqlite"

    class Remover:
        def start(self, settings: object, past: object) -> None:
            pass

        def round(self, record: object) -> None:
            shutil.rmtree(run, ignore_errors=True)

        def end(self, summary: object) -> None:
            pass

    begun = Run.create(seeded(f"privacy.ledger='{ledger}'"), run)
    with pytest.raises((IncrowdError, OSError)):
        begun.train([Remover()])
    report = verify(ledger)
    assert report["intact"]
    assert report["events"] in (1, 2)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Summary]:
    """A run that is over, and what came out; nothing changes it."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, Run.create(small(), folder).train()


def test_of_a_run_model_statement_result_settings_rounds_and_spending(
    finished: tuple[Path, Summary], tmp_path: Path
) -> None:
    run, summary = finished
    out = tmp_path / "out"
    assert export(run, out) == [
        "ledger.json", "model.safetensors", "rounds.csv", "settings.json", "statement.json",
        "statement.txt", "summary.json",
    ]  # fmt: skip
    for name in ("model.safetensors", "statement.txt", "statement.json"):
        assert (out / name).read_bytes() == (run / name).read_bytes()
    shown, settings, spent = (
        json.loads((out / f"{name}.json").read_text()) for name in ("summary", "settings", "ledger")
    )
    assert shown["accuracy"] == summary["accuracy"]
    assert not {"run", "plot", "seconds", "client_updates_per_second"} & set(shown)
    assert settings["privacy"]["epsilon"] == 8.0
    assert "seed" not in {*settings["run"], *settings["data"]}
    assert spent["epsilon"] == pytest.approx(summary["epsilon"])
    assert sum(event["count"] for event in spent["events"]) == 4
    with (out / "rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[-1]["accuracy"]) == summary["accuracy"]


def test_for_egress_there_is_one_page_to_file(
    finished: tuple[Path, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "export", str(finished[0]), str(tmp_path / "out"), "--for", "egress", "--json"
    found = command(monkeypatch, capsys)(*words).object()["files"]
    assert {"egress.html", "model.safetensors"} < set(found) == {path.name for path in (tmp_path / "out").iterdir()}
    shown = (tmp_path / "out/egress.html").read_text()
    assert "differentially private" in shown
    assert str(finished[0].parent) not in shown


def test_of_silos_each_has_what_it_may_show(folder: Path) -> None:
    summary = Run.create(silos(), folder / "run").train()
    found = export(folder / "run", folder / "out")
    for silo, epsilon in summary["epsilon_by_silo"].items():
        assert {f"silos/{silo}/{name}" for name in ("statement.txt", "statement.json", "ledger.json")} < set(found)
        statement = json.loads((folder / "out/silos" / silo / "statement.json").read_text())
        assert statement["epsilon"] == pytest.approx(epsilon)
        spent = json.loads((folder / "out/silos" / silo / "ledger.json").read_text())
        assert spent["epsilon"] == pytest.approx(epsilon)
    assert not any("sent" in name for name in found)


@pytest.mark.slow
def test_of_a_search_what_it_shows(folder: Path) -> None:
    search = Search(overrides=(*SMALL, "privacy.rounds=2", *SEEDED), axes=[axis("server.learning_rate=2,8")])
    found = Sweep(search=search, out=folder / "search").run()
    files = export(folder / "search", folder / "out")
    models = [name for name in files if name.endswith("model.safetensors")]
    assert models == [f"runs/000{n}/model.safetensors" for n in (0, 1)]
    assert "ledger.json" in files
    shown = json.loads((folder / "out/result.json").read_text())
    assert shown["best"]["settings"] == found["best"]["settings"]
    assert f"{shown['best']['run']}/model.safetensors" in models
    assert (folder / "out/statement.txt").read_text() == found["statement"]["text"] + "\n"


def test_a_run_that_is_not_over_is_refused(folder: Path) -> None:
    stopped(folder / "run", after=2)
    with pytest.raises(ConfigError, match=r"it is not over: go on with `incrowd resume"):
        export(folder / "run", folder / "out")
    Run.open(folder / "run").train()
    (folder / "run/private").mkdir()
    with pytest.raises(ConfigError, match="it is not over"):
        export(folder / "run", folder / "out")
    assert not (folder / "out").exists()


def test_nothing_is_overwritten_and_what_cannot_be_written_in_full_is_not_there(
    finished: tuple[Path, Summary], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for out in ("out", "link"):
        with pytest.raises(ConfigError, match="does not exist yet"):
            export(finished[0], tmp_path / out)
    with pytest.raises(ConfigError, match="there is no run"):
        export(tmp_path / "out", tmp_path / "more")

    def full(_: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(_files, "undate", full)
    with pytest.raises(OSError, match="no space"):
        export(finished[0], tmp_path / "deep/out")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "statement.txt"])
def test_a_link_is_not_followed_and_nothing_is_written(folder: Path, name: str) -> None:
    Run.create(small(), folder / "run").train()
    (folder / "secret").write_bytes(b"contributions")
    (folder / "run" / name).unlink()
    (folder / "run" / name).symlink_to(folder / "secret")
    with pytest.raises(DataError, match="plain file"):
        export(folder / "run", folder / "out")
    (folder / "run" / name).unlink()
    (folder / "run" / name).mkdir()
    with pytest.raises(DataError, match="plain file"):
        export(folder / "run", folder / "out")
    (folder / "run" / name).rmdir()
    with pytest.raises(DataError, match="cannot be read"):
        export(folder / "run", folder / "out")
    assert sorted(path.name for path in folder.iterdir()) == ["run", "secret"]
