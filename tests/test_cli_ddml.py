"""`incrowd ddml simulate`."""

from pathlib import Path

import pytest

from tests.command import Command, command

SPECIFICATION = """
name = "mail"
formula = "opened ~ sender + words"
gamma = 1.0
clip = 0.1
epsilon = 2.0
bound = "norm"
instances = 4
merge = 0.5

[fields]
opened = {type = "boolean"}
sender = {type = "category", levels = ["friend", "shop"]}
words = {type = "integer", low = 0, high = 500}
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    asked, table = tmp_path / "mail.toml", tmp_path / "mails.csv"
    asked.write_text(SPECIFICATION)
    rows = [f"{['no', 'yes'][n % 2]},{['friend', 'shop'][n % 2]},{37 * n % 500}" for n in range(200)]
    table.write_text("\n".join(["opened,sender,words", *rows, "yes,stranger,9999"]))
    return str(asked), str(table)


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command(monkeypatch, capsys, "ddml", "simulate")


def test_what_would_be_learnt_is_one_object(simulate: Command, files: tuple[str, str]) -> None:
    asked, table = files
    found = simulate(asked, "--csv", table, "--contributions", "300", "--json").object()
    assert found["metrics"]["accuracy"] > 0.9 > found["baseline"]["accuracy"]
    assert found["without_noise"]["accuracy"] > 0.9
    assert found["epsilon"] == 2.0
    assert found["contributions"] == found["curve"][-1]["contributions"] == 300
    assert "sender: 1 of 201 is none of the levels (such as 'stranger')" in found["fit"]["problems"]
    words = ("--contributions", "30", "--epsilon", "0.5", "--devices", "3", "--seed", "2", "--json")
    changed = simulate(asked, "--csv", table, *words).object()
    assert (changed["epsilon"], changed["devices"]) == (0.5, 3)


def test_people_get_tables_and_nothing_is_written(simulate: Command, files: tuple[str, str], tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    finished = simulate(files[0], "--csv", files[1], "--contributions", "30")
    assert finished.status == 0
    for text in ("SIMULATION", "without noise", "contributions", "201 of 201 rows", "- words: 1 of 201 lies beyond"):
        assert text in finished.out
    assert sorted(tmp_path.iterdir()) == before
