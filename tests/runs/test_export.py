"""What is handed on, file by file, of runs of each kind."""

import csv
import json
from pathlib import Path

import pytest

from incrowd import _files
from incrowd.errors import ConfigError, DataError
from incrowd.runs.export import export
from incrowd.runs.run import Run
from incrowd.runs.sweep import Search, Sweep, axis
from tests.command import command
from tests.runs.small import SEEDED, SMALL, small
from tests.runs.test_run import stopped
from tests.runs.test_silo_run import small as silos

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_of_a_run_model_statement_result_settings_rounds_and_spending(folder: Path) -> None:
    summary = Run.create(small(), folder / "run").train()
    assert export(folder / "run", folder / "out") == [
        "ledger.json", "model.safetensors", "rounds.csv", "settings.json", "statement.json",
        "statement.txt", "summary.json",
    ]  # fmt: skip
    for name in ("model.safetensors", "statement.txt", "statement.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "run" / name).read_bytes()
    shown = json.loads((folder / "out/summary.json").read_text())
    assert shown["accuracy"] == summary["accuracy"]
    assert not {"run", "plot", "seconds", "client_updates_per_second"} & set(shown)
    settings = json.loads((folder / "out/settings.json").read_text())
    assert settings["privacy"]["epsilon"] == 8.0
    assert "seed" not in settings["run"]
    assert "seed" not in settings["data"]
    spent = json.loads((folder / "out/ledger.json").read_text())
    assert spent["epsilon"] == pytest.approx(summary["epsilon"])
    assert sum(event["count"] for event in spent["events"]) == 4
    with (folder / "out/rounds.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[-1]["accuracy"]) == summary["accuracy"]


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


def test_for_egress_there_is_one_page_to_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Run.create(small(), folder / "run").train()
    found = command(monkeypatch, capsys)(
        "export", str(folder / "run"), str(folder / "out"), "--for", "egress", "--json"
    )
    assert {"egress.html", "model.safetensors"} < set(found.object()["files"])
    assert {path.name for path in (folder / "out").iterdir()} == set(found.object()["files"])
    shown = (folder / "out/egress.html").read_text()
    assert "differentially private" in shown
    assert str(folder) not in shown


def test_a_run_that_is_not_over_is_refused(folder: Path) -> None:
    stopped(folder / "run", after=2)
    with pytest.raises(ConfigError, match=r"it is not over: go on with `incrowd resume"):
        export(folder / "run", folder / "out")
    Run.open(folder / "run").train()
    (folder / "run/private").mkdir()
    with pytest.raises(ConfigError, match="it is not over"):
        export(folder / "run", folder / "out")
    assert not (folder / "out").exists()


def test_what_is_there_is_not_overwritten(folder: Path) -> None:
    Run.create(small(), folder / "run").train()
    (folder / "out").mkdir()
    (folder / "link").symlink_to(folder / "nowhere")
    for out in ("out", "link"):
        with pytest.raises(ConfigError, match="does not exist yet"):
            export(folder / "run", folder / out)
    with pytest.raises(ConfigError, match="there is no run"):
        export(folder / "out", folder / "more")


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


def test_what_cannot_be_written_in_full_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run.create(small(), folder / "run").train()

    def full(_: Path) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(_files, "undate", full)
        with pytest.raises(OSError, match="no space"):
            export(folder / "run", folder / "deep/out")
    assert list((folder / "deep").iterdir()) == []
