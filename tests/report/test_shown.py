"""What is shown of each kind of folder: what may be handed on, and nothing else."""

import json
import os
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import incrowd
from incrowd.drawdiscard import Device, Server
from incrowd.errors import ConfigError, DataError
from incrowd.report.page import page
from incrowd.report.shown import Shown, of_status, read
from incrowd.runs.folder import Record, database_in
from tests.drawdiscard import mail
from tests.report import folders
from tests.report.conftest import Made
from tests.runs.test_folder import KEPT_BACK
from tests.service import letters

CANARY = "canary-in-a-mine"


def all_of(shown: Shown) -> str:
    """Whatever a page of it could show."""
    return json.dumps(shown.to_json(), ensure_ascii=False) + page([shown]) + page([shown], state="Live")


def state_of(folder: Path) -> list[tuple[str, int, bytes]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path), path.stat().st_mtime_ns, path.read_bytes()) for path in files]


@pytest.mark.parametrize("kind", folders.KINDS)
def test_every_kind_has_a_page_and_looking_changes_no_byte(made: Made, kind: str) -> None:
    before = state_of(made(kind))
    shown = read(made(kind))
    assert json.loads(json.dumps(shown.to_json(), allow_nan=False))["name"] == kind.replace(" ", "-")
    text = page([shown])
    assert text == page([read(made(kind))])
    assert "http" not in re.sub(r'base64,[^"]+', "", text).replace("http-equiv", "")
    assert state_of(made(kind)) == before


def test_of_a_run_result_promise_rounds_ledger_and_settings(made: Made) -> None:
    folder = made("simulated")
    shown, summary = read(folder), json.loads((folder / "summary.json").read_text())
    assert (shown.kind, shown.unit) == ("clients", "client")
    assert shown.over
    assert shown.simulated
    assert shown.public
    assert shown.result["accuracy"] == summary["accuracy"]
    assert shown.epsilon == summary["epsilon"]
    assert shown.promises[""]["text"] == summary["statement"]["text"]
    assert [row["round"] for row in shown.rounds] == [0, 1, 2, 3]
    assert all(len(row["simulation"]["norms"]) == 5 for row in shown.rounds)
    (book,) = shown.ledgers
    assert [line["kind"] for line in book["lines"]] == ["terms", "reserve", *["charge"] * 4]
    assert book["lines"][-1]["hash"] == book["head"]
    assert book["epsilon"] == pytest.approx(summary["epsilon"])
    assert shown.schedule[0]["rounds"] == 4
    assert shown.settings["privacy"]["epsilon"] == 8.0


def test_in_earnest_nothing_of_single_contributions_is_shown(made: Made, folder: Path) -> None:
    """Not even where somebody wrote it down."""
    shutil.copytree(made("in earnest"), folder / "run")
    with database_in(folder / "run") as database:
        told = {"diagnostics": {"norms": [0.12345] * 5}, "observed": {"contributions": 77123}}
        database.add(Record(round=3, epsilon=1.0, seconds=98.7654, clients_per_second=54.321, simulation=told))
    shown = read(folder / "run")
    assert [row["simulation"] for row in shown.rounds] == [None] * 4
    text = all_of(shown)
    assert not any(one in text for one in ("0.12345", "77123", "98.7654", "54.321"))


def test_of_private_data_a_simulation_shows_no_contributions_either(made: Made, folder: Path) -> None:
    shutil.copytree(made("simulated"), folder / "run")
    folders.change_settings(folder / "run", lambda config: config["data"].update(public=False))
    assert [row["simulation"] for row in read(folder / "run").rounds] == [None] * 4


def test_what_is_kept_back_is_on_no_page(made: Made, folder: Path) -> None:
    """A canary in every setting that is kept back, in every key that is not listed, and in every file that is not."""
    run = folder / "run"
    shutil.copytree(made("in earnest"), run)

    def tell(config: dict[str, Any]) -> None:
        for key in KEPT_BACK:
            section, name = key.split(".")
            config.setdefault(section, {})[name] = (
                [CANARY] if name == "trackers" else CANARY if name != "seed" else None
            )
        config["data"]["fresh"] = config["fresh"] = CANARY

    folders.change_settings(run, tell)
    for name, inside in (("summary.json", None), ("evaluation.json", "evaluations"), ("statement.json", None)):
        content = json.loads((run / name).read_text())
        for each in content[inside] if inside else [content, content.get("statement", {})]:
            each |= {"run": CANARY, "fresh": CANARY, "plot": CANARY}
        (run / name).write_text(json.dumps(content))
    audit = {"epsilon_claimed": 8.0, "fresh": CANARY, "findings": [{"fresh": CANARY}], "checks": [{"fresh": CANARY}]}
    (run / "audit.json").write_text(json.dumps(audit))
    for name in ("rounds.csv", "rounds.jsonl", "paused", "contributions.npy", "notes.txt"):
        (run / name).write_text(CANARY)
    payer = json.loads((run / "ledger.json").read_text())
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        days = [day for (day,) in ledger.execute("SELECT DISTINCT at FROM entries")]
        bodies = [json.loads(body) for (body,) in ledger.execute("SELECT body FROM entries")]
    text = all_of(read(run))
    assert CANARY not in text
    assert str(folder) not in text
    secrets = [payer["label"], payer["id"], payer["identity"]["fingerprint"], *(body["nonce"] for body in bodies)]
    assert not [one for one in [*days, *secrets] if one in text]


def test_of_a_search_no_setting_that_is_kept_back(folder: Path) -> None:
    folders.search(folder / "search")
    shown = read(folder / "search")
    assert shown.search is not None
    assert len(shown.search["rows"]) == 4
    result = json.loads((folder / "search/result.json").read_text())
    for row in [*result["runs"], result["best"]]:
        row["settings"]["run.seed"] = row["settings"]["model.arguments.x"] = row["run"] = CANARY
    (folder / "search/result.json").write_text(json.dumps(result))
    assert CANARY not in all_of(read(folder / "search"))


def test_an_attempt_of_a_private_search_is_refused(made: Made, folder: Path) -> None:
    shutil.copytree(made("simulated"), folder / "attempt")
    payer = json.loads((folder / "attempt/ledger.json").read_text())
    (folder / "attempt/ledger.json").write_text(json.dumps(payer | {"search": "its label"}))
    with pytest.raises(ConfigError, match="attempt of a private search"):
        read(folder / "attempt")


def test_of_silos_each_has_its_spending_and_its_ledger(made: Made) -> None:
    shown = read(made("silos"))
    assert shown.kind == "silos"
    assert [silo["silo"] for silo in shown.silos] == ["silo-1", "silo-2"]
    assert all(0 < silo["epsilon"] <= silo["budget"] for silo in shown.silos)
    assert [book["party"] for book in shown.ledgers] == ["silo-1", "silo-2"]
    charges = [line for book in shown.ledgers for line in book["lines"] if line["kind"] == "charge"]
    assert len(charges) == 4
    assert all(line["own"] for line in charges)
    assert [row["simulation"] for row in shown.rounds] == [None] * 2


def test_a_run_that_is_not_over_shows_how_far_it_is(made: Made) -> None:
    shown = read(made("unfinished"))
    assert (shown.over, len(shown.rounds), shown.planned, shown.promises) == (False, 2, 4, {})
    assert shown.epsilon == shown.rounds[-1]["epsilon"]
    assert "no statement yet" in page([shown])


def test_the_ledger_of_a_live_run_is_priced_when_it_is_over(made: Made) -> None:
    assert read(made("unfinished"), live=True).ledgers[0]["epsilon"] is None
    assert read(made("simulated"), live=True).ledgers == read(made("simulated")).ledgers


def test_of_a_pool_what_its_server_shows(made: Made) -> None:
    shown = read(made("pool"))
    assert shown.pool is not None
    assert shown.pool["accepted"] == 3
    assert shown.pool["instances"] == 5
    assert len(shown.pool["adversaries"]) == 3
    told = of_status({**shown.pool, "fresh": CANARY}, name="pool")
    assert told == shown
    assert CANARY not in all_of(told)


def test_a_pool_is_read_while_its_server_runs_and_nothing_is_made_there(folder: Path) -> None:
    with letters.server(instances=5) as forgotten, Server(forgotten.specification, folder=folder / "pool") as server:
        server.offer(*mail.honest(server, 1))
        files = sorted(path.name for path in (folder / "pool").iterdir())
        shown = read(folder / "pool")
        assert shown.pool is not None
        assert shown.pool["accepted"] == server.accepted
        assert sorted(path.name for path in (folder / "pool").iterdir()) == files


def test_a_search_that_is_not_over_shows_no_run(made: Made, folder: Path) -> None:
    shutil.copytree(made("search"), folder / "search")
    (folder / "search/result.json").unlink()
    shown = read(folder / "search")
    assert (shown.over, shown.promises, shown.ledgers) == (False, {}, ())
    assert shown.search == {"rows": [], "best": None}
    assert "It is not over; what it compares" in page([shown])


def test_the_ledger_of_private_data_is_found_wherever_it_is(folder: Path) -> None:
    table = "patient,age,well\n" + "".join(f"c{place % 12},{20 + place},{place % 2}\n" for place in range(48))
    (folder / "visits.csv").write_text(table)
    settings = {
        "data": {"name": "table", "file": str(folder / "visits.csv"), "client": "patient", "label": "well",
                 "classes": 2, "features": ["age"], "columns": {"age": {"range": [0, 120]}}, "clients": 12},
        "privacy": {"epsilon": 4.0, "delta": 1e-3, "rounds": 2},
        "run": {},
    }  # fmt: skip
    incrowd.Federation.from_tables(settings).train(folder / "run", progress=False)
    assert not (folder / "run/ledger.sqlite").exists()
    shown = read(folder / "run")
    (book,) = shown.ledgers
    assert (shown.public, shown.simulated, book["problem"], book["data"]) == (False, False, None, "visits.csv")
    assert [line["kind"] for line in book["lines"]] == ["terms", "reserve", "charge", "charge"]
    assert [line["own"] for line in book["lines"]] == [False, True, True, True]
    assert str(folder) not in all_of(shown)
    assert "one client (one patient)" in page([shown])


def test_a_device_s_ledger_is_shown_by_itself(folder: Path) -> None:
    with Device(letters.letters(), ledger=folder / "ledger", policy=mail.LOOSE) as device:
        device.contribute(letters.server())
    shown = read(folder / "ledger")
    assert shown.kind == "ledger"
    assert any(line["kind"] == "charge" for line in shown.ledgers[0]["lines"])
    assert "ledger" in page([shown])


def test_a_run_can_be_looked_at_while_somebody_writes(made: Made, folder: Path) -> None:
    shutil.copytree(made("unfinished"), folder / "run")
    with closing(sqlite3.connect(folder / "run/run.sqlite", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert len(read(folder / "run").rounds) == 2
        writer.execute("INSERT INTO rounds (round, epsilon, lost) VALUES (2, 1.0, 0)")
        writer.execute("COMMIT")
    assert len(read(folder / "run").rounds) == 3


def test_damaged_files_and_links_are_refused(made: Made, folder: Path) -> None:
    for name, change in (("summary.json", b"{"), ("summary.json", b"[]"), ("run.sqlite", b"no database at all" * 9)):
        shutil.copytree(made("simulated"), folder / "run", dirs_exist_ok=True)
        (folder / "run" / name).write_bytes(change)
        with pytest.raises(DataError, match=name):
            read(folder / "run")
    shutil.copytree(made("simulated"), folder / "linked")
    (folder / "linked/evaluation.json").symlink_to("/etc/hostname")
    with pytest.raises(DataError, match="no plain file"):
        read(folder / "linked")


def test_a_ledger_that_is_gone_or_another_says_so_and_nothing_else(made: Made, folder: Path) -> None:
    shutil.copytree(made("simulated"), folder / "run")
    os.replace(folder / "run/ledger.sqlite", folder / "elsewhere")  # noqa: PTH105 - between two folders
    assert read(folder / "run").ledgers == [{"party": "", "problem": "unreadable", "lines": []}]
    shutil.copytree(made("in earnest"), folder / "other")
    for name in ("ledger.sqlite", "ledger.sqlite.witness"):
        shutil.copy(folder / "other" / name, folder / "run" / name)
    assert read(folder / "run").ledgers == [{"party": "", "problem": "another", "lines": []}]
