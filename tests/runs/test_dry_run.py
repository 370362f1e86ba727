"""A dry run writes no ledger, looks at no private row, and says what the run would cost; a whole budget needs a yes."""

from pathlib import Path

import numpy as np
import pytest

from incrowd.privacy.ledger.home import Home
from incrowd.privacy.ledger.registry import Registered
from incrowd.runs.config import tables
from incrowd.runs.dry_run import made_up
from incrowd.runs.recipes import config_of
from incrowd.runs.work import work_of
from tests.command import Command, command

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = """
[data]
name = "table"
file = "visits.csv"
client = "patient"
label = "died"
classes = ["no", "yes"]
clients = 30
[data.columns]
age = {range = [0, 120]}
sex = {levels = ["f", "m"]}
smokes = "yes/no"
seen = {dates = ["2020-01-01", "2020-12-31"]}
visits = {kind = "whole number", range = [0, 20]}
note = {kind = "text", buckets = 8}
[privacy]
epsilon = 2.0
delta = 1e-3
rounds = 2
room = 0.0
[run]
"""


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.setenv("INCROWD_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path, seed=0)
    (tmp_path / "visits.toml").write_text(SETTINGS)
    return command(monkeypatch, capsys)


def write(folder: Path, *, seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows = [
        f"p{row % 30},{draw.integers(20, 90)},{'fm'[draw.integers(2)]},{'yn'[draw.integers(2)]},"
        f"2020-02-{row % 28 + 1:02},{draw.integers(9)},a note,{('no', 'yes')[draw.integers(2)]}"
        for row in range(90)
    ]
    (folder / "visits.csv").write_text("\n".join(["patient,age,sex,smokes,seen,visits,note,died", *rows]) + "\n")


def ledgers() -> tuple[Registered, ...]:
    return tuple(Home.of_user().ledgers()) if Home.of_user().path.exists() else ()


def test_a_dry_run_says_what_it_would_cost_and_writes_no_ledger(incrowd: Command, tmp_path: Path) -> None:
    found = incrowd("train", "visits.toml", "--dry-run", "--json").object()
    assert found["would_spend"] == pytest.approx(2, abs=0.01)
    assert found["would_be_left"] == pytest.approx(0, abs=0.01)
    assert found["seconds"] > 0
    assert found["memory_mb"] > 50
    assert (ledgers(), (tmp_path / "out").exists()) == ((), False)


def test_a_whole_budget_needs_a_yes_and_a_part_of_it_does_not(incrowd: Command) -> None:
    refused = incrowd("train", "visits.toml", "--json")
    assert (refused.status, ledgers()) == (2, ())
    assert "would spend epsilon = 2 and leave" in refused.err
    assert incrowd("train", "visits.toml", "--set", "privacy.room=1", "--json").status == 0
    left = incrowd("train", "visits.toml", "--dry-run", "--set", "privacy.epsilon=0.5", "--json").object()
    assert (left["budget"], 0.2 < left["would_be_left"] < 1) == (3, True)
    assert left["would_spend"] + left["would_be_left"] < 1.3
    assert incrowd("train", "visits.toml", "--set", "privacy.epsilon=0.9", "--json").status == 0  # it leaves a part
    assert incrowd("train", "visits.toml", "--json").status == 3  # the control: no yes makes room


def test_a_public_run_asks_nothing(incrowd: Command) -> None:
    assert incrowd("train", "visits.toml", "--set", "data.public=true", "--json").status == 0


@pytest.mark.usefixtures("incrowd")
def test_made_up_rows_do_not_depend_on_private_ones(tmp_path: Path) -> None:
    first = made_up(work_of(config_of(tables(tmp_path / "visits.toml"))))
    write(tmp_path, seed=1)
    second = made_up(work_of(config_of(tables(tmp_path / "visits.toml"))))
    np.testing.assert_array_equal(first.examples.features, second.examples.features)
    np.testing.assert_array_equal(first.sizes, second.sizes)
    assert set(first.sizes) == {10}
    text = (
        SETTINGS.replace('client = "patient"\n', "")
        .replace("[data.columns]", '[data.columns]\npatient = "ignore"')
        .replace("clients = 30", "clients = 90")
    )
    (tmp_path / "rows.toml").write_text(text)
    assert set(made_up(work_of(config_of(tables(tmp_path / "rows.toml")))).sizes) == {1}  # each row is a client
    public = made_up(work_of(config_of(tables(tmp_path / "visits.toml", overrides=["data.public=true"]))))
    assert not np.array_equal(public.sizes, first.sizes)  # the control: of public data sizes may be seen
