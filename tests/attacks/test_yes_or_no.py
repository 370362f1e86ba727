"""A server that offers again and again learns from yes and no what a party states, and nothing of its rows."""

import threading
from pathlib import Path

import pytest

from incrowd.data import Columns, read_table
from incrowd.errors import DataError
from incrowd.federation import Federation
from incrowd.flower.node import join
from incrowd.parties.guard import given
from incrowd.runs import work
from incrowd.runs.config import parse, tables
from tests.parties.members import ALLOW, Hospitals, MemberLine, settings_text

pytestmark = pytest.mark.watched

OFFERED = {
    "as it is": "age = {range = [0, 120]}\n",
    "narrower": "age = {range = [20, 89]}\n",
    "much narrower": "age = {range = [40, 60]}\n",
    "clipped": 'age = {range = [40, 60], outside = "clip"}\n',
    "no range": 'age = "number"\n',
    "whole": 'age = {kind = "whole number", range = [0, 120]}\n',
}
TABLES = {"young": (21, 22, 23), "old": (88, 87, 119), "middle": (45, 50, 55), "broken": (45.5, 50, 55)}


def answers(hospitals: Hospitals, ages: tuple[float, ...]) -> dict[str, str]:
    """What amber says to each offer, when these are the ages in its table."""
    rows = "".join(f"{age},1.0,f,yes\n" for age in ages)
    (hospitals.folder / "amber.csv").write_text(f"age,dose,sex,back\n{rows}")
    found = {}
    for name, words in OFFERED.items():
        (hospitals.folder / "there.toml").write_text(settings_text(here=False, columns=words))
        federation = Federation.from_settings(hospitals.folder / "there.toml")
        line = MemberLine(hospitals, gone={"birch", "cedar"})
        found[name] = hospitals.server().try_over(line, federation)["amber"]
        line.close()
    return found


@pytest.mark.slow
def test_yes_and_no_are_the_same_whatever_the_rows_are(tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    told = {name: answers(hospitals, ages) for name, ages in TABLES.items()}
    assert all(each == told["young"] for each in told.values())
    assert {said == "yes" for said in told["young"].values()} == {True, False}
    assert given(tmp_path / "amber")["events"] == []


def test_control_reading_the_rows_as_offered_tells_them_apart(tmp_path: Path) -> None:
    told = {}
    for name, ages in TABLES.items():
        (tmp_path / "t.csv").write_text("age,back\n" + "".join(f"{age},yes\n" for age in ages))
        offered = Columns(client="", label="back", classes=("no", "yes"), schema={"age": {"range": [40, 60]}})
        try:
            read_table(tmp_path / "t.csv", offered.resolved(()))
            told[name] = "yes"
        except DataError:
            told[name] = "no"
    assert set(told.values()) == {"yes", "no"}


@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_a_loss_that_only_some_labels_fit_is_refused_whatever_the_labels_are(loss: str, tmp_path: Path) -> None:
    hospitals = Hospitals(tmp_path)
    own = 'file = "../amber.csv"\nlabel = "dose"\n'
    columns = "age = {range = [0, 120]}\n"
    hospitals.state("amber", data=own, columns=columns)
    text = settings_text(here=False, columns=columns).replace(
        'label = "back"\nclasses = ["no", "yes"]', 'label = "dose"'
    )
    (tmp_path / "there.toml").write_text(text.replace("[local]\n", f'[local]\nloss = "{loss}"\n'))
    told = set()
    for doses in ((1.0, 0.0), (-1.0, 0.5)):
        rows = "".join(f"30,{dose},f,yes\n" for dose in doses)
        (tmp_path / "amber.csv").write_text(f"age,dose,sex,back\n{rows}")
        line = MemberLine(hospitals, gone={"birch", "cedar"})
        federation = Federation.from_tables(tables(tmp_path / "there.toml"))
        told.add(hospitals.server().try_over(line, federation)["amber"])
        line.close()
    assert parse(tables(tmp_path / "there.toml")).local.loss == loss
    assert len(told) == 1
    assert "is not among those that this party allows for numbers" in told.pop()


CLASSES = ("no", "yes", "maybe")
CLIENTS = "epsilon = 50.0\ndelta = 1e-5\nrounds = 3\n"
SILOS = 'unit = "record"\nepsilon = 40.0\ndelta = 1e-3\nrounds = 3\nrecords = 30\nclip_norm = 1.0\n'


@pytest.mark.parametrize(
    ("loss", "doses", "fits"),
    [
        ("poisson", (0.5, -1.5), False),
        ("logistic", (0.0, 1.5), False),
        ("poisson", (0.5, 1.5), True),
        ("squared", (0.5, -1.5), True),
    ],
)
def test_a_loss_that_an_owner_allows_and_some_labels_do_not_fit_is_told_to_the_owner_alone(
    loss: str, doses: tuple[float, ...], fits: bool, tmp_path: Path
) -> None:
    """Before any question is answered; the control are labels and losses that fit."""
    hospitals = Hospitals(tmp_path)
    columns, own = "age = {range = [0, 120]}\n", 'file = "../amber.csv"\nlabel = "dose"\n'
    hospitals.state("amber", data=own, columns=columns, allow=f'{ALLOW}losses = ["{loss}", "squared"]\n')
    rows = "".join(f"30,{dose},f,yes\n" for dose in doses)
    (tmp_path / "amber.csv").write_text(f"age,dose,sex,back\n{rows}")
    if fits:
        assert hospitals.member("amber").check() == len(doses)
        return
    with pytest.raises(DataError, match=f"not every label fits the loss '{loss}' in allow"):
        hospitals.member("amber").check()
    with pytest.raises(DataError, match="in allow"):
        join(hospitals.member("amber"), threading.Event())


NET = "from torch import nn\ndef net(outputs):\n    return nn.Linear(4, outputs)\n"
LEARNED = {
    "logistic": '[local]\nloss = "logistic"\n',
    "too few outputs": '[model]\nmodule = "own_net:net"\narguments = {outputs = 2}\n[local]\n',
    "enough outputs": '[model]\nmodule = "own_net:net"\narguments = {outputs = 3}\n[local]\n',
    "as usual": "[local]\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("offered", LEARNED)
@pytest.mark.parametrize("unit", ["client", "record"])
def test_what_only_some_classes_fit_is_refused_whatever_the_classes_are(
    offered: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(work, "check_model", lambda *_: None)  # a server that offers what its own program refuses
    (tmp_path / "own_net.py").write_text(NET)
    hospitals = Hospitals(tmp_path)
    more = 'unit = "record"\nrecords = 30\n' if unit == "record" else ""
    allow = 'epsilon = 100.0\ndelta = 1e-3\nmodules = ["own_net:net"]\n'
    own = 'file = "amber.csv"\nfolder = ".."\nlabel = "back"\nclasses = ["no", "yes", "maybe"]\n'
    hospitals.state("amber", data=own, allow=allow, more=more)
    text = settings_text(here=False, privacy=SILOS if unit == "record" else CLIENTS)
    text = text.replace('["no", "yes"]', '["no", "yes", "maybe"]').replace("[local]\n", LEARNED[offered])
    (tmp_path / "there.toml").write_text(text)
    told = set()
    for last in CLASSES:
        rows = "".join(f"30,1.0,f,{label}\n" for label in ["no", "yes"] * 14 + ["no", last])
        (tmp_path / "amber.csv").write_text(f"age,dose,sex,back\n{rows}")
        line = MemberLine(hospitals, gone={"birch", "cedar"})
        told.add(hospitals.server().try_over(line, Federation.from_settings(tmp_path / "there.toml"))["amber"])
        line.close()
    fits = offered in ("enough outputs", "as usual")
    assert told == {"yes"} if fits else len(told) == 1 and "not every class" in told.pop()
