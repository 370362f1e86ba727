"""A server that offers again and again learns from yes and no what a party states, and nothing of its rows.

Who offers names ranges, losses, classes and features. Each of these told a server, for nothing and as often as it
asked, whether a party has a certain row: a range that moved a little each time found the largest value that the party
clips, and a square that float32 cannot hold failed (`tests/learning/test_features.py` tries such numbers).
"""

import threading
from pathlib import Path

import numpy as np
import pytest

from incrowd.data import Columns, Examples, read_table
from incrowd.errors import ConfigError, DataError
from incrowd.federation import Federation
from incrowd.flower.node import join
from incrowd.learning.features import from_callable, transform
from incrowd.parties.guard import given
from incrowd.runs import work
from tests.parties.members import ALLOW, Hospitals, MemberLine, party_text, settings_text

pytestmark = pytest.mark.watched


def tried(hospitals: Hospitals, settings: str, rows: str | None = None) -> tuple[str, list[str]]:
    """What amber says to a trial of these settings when its table has these rows, and what went wrong there."""
    if rows is not None:
        (hospitals.folder / "amber.csv").write_text(f"age,dose,sex,back\n{rows}")
    (hospitals.folder / "there.toml").write_text(settings)
    line = MemberLine(hospitals, gone={"birch", "cedar"})
    try:
        said = hospitals.server().try_over(line, Federation.from_settings(hospitals.folder / "there.toml"))["amber"]
    finally:
        line.close()
    return said, list(map(str, line.failed))


AGE = "age = {range = [0, 120]}"
CLIPPED = 'age = {range = [0, 120], outside = "clip"}'
DATES = 'age = {dates = ["2020-01-01", "2020-12-31"]}'
# What the party states, what the server wants, a cell that would do, another that is as stated; the answer to both.
ORACLES: dict[str, tuple[str, str, str, str, bool]] = {
    "as it is": (AGE, AGE, "21", "119", True),
    "a narrower range": (AGE, "age = {range = [40, 60]}", "50", "119", False),
    "a narrower range that is clipped": (AGE, 'age = {range = [40, 60], outside = "clip"}', "50", "119", True),
    "no range": (AGE, 'age = "number"', "50", "119", True),
    "whole numbers": (AGE, 'age = {kind = "whole number", range = [0, 120]}', "50", "45.5", False),
    "beyond a range that is clipped": (CLIPPED, AGE, "30", "500", False),
    "beyond every float32": (CLIPPED, 'age = "number"', "30", "1e300", False),
    "a whole number that float32 rounds": ("age = {range = [0, 1e9]}", 'age = "number"', "30", "16777217", False),
    "before the first day": (f'{DATES[:-1]}, outside = "clip"}}', DATES, "2020-05-01", "1999-05-01", False),
    "a level that is written like a missing value": (
        'age = {levels = ["young", "NA"]}',
        'age = {levels = ["young"], other = true}',
        "young",
        "NA",
        False,
    ),
}


@pytest.mark.parametrize("kind", ORACLES)
def test_all_rows_that_are_as_stated_get_the_same_answer(kind: str, hospitals: Hospitals) -> None:
    own, wanted, *cells, taken = ORACLES[kind]
    hospitals.state("amber", columns=f"{own}\n")
    settings, told = settings_text(here=False, columns=f"{wanted}\n"), []
    for cell in cells:
        told.append(tried(hospitals, settings, f"{cell},1.0,f,yes\n"))
        assert hospitals.member("amber").check() == 1  # it is as stated
    assert told[0] == told[1]
    said, failed = told[0]
    assert failed == []
    assert said != "no answer"
    assert (said == "yes") is taken
    assert given(hospitals.folder / "amber")["events"] == []


@pytest.mark.parametrize(("stated", "cell"), [({"range": [40, 60]}, "88"), ({"range": [0, 120]}, "500")])
def test_control_reading_the_rows_as_wanted_tells_them_apart(
    stated: dict[str, object], cell: str, tmp_path: Path
) -> None:
    wanted = Columns(label="back", client="", classes=("no", "yes"), schema={"age": stated}).resolved(())
    (tmp_path / "t.csv").write_text(f"age,back\n{cell},yes\n")
    with pytest.raises(DataError, match="outside of the stated range"):
        read_table(tmp_path / "t.csv", wanted)
    (tmp_path / "t.csv").write_text("age,back\n50,yes\n")
    read_table(tmp_path / "t.csv", wanted)


# Losses and classes that only some labels fit


NUMBERS = {"columns": f"{AGE}\n", "data": 'file = "../amber.csv"\nlabel = "dose"\n'}


@pytest.mark.parametrize("loss", ["poisson", "logistic"])
def test_a_loss_that_only_some_labels_fit_is_refused_whatever_the_labels_are(loss: str, hospitals: Hospitals) -> None:
    hospitals.state("amber", **NUMBERS)
    text = settings_text(here=False, columns=f"{AGE}\n").replace("[local]\n", f'[local]\nloss = "{loss}"\n')
    text = text.replace('label = "back"\nclasses = ["no", "yes"]', 'label = "dose"')
    told = {tried(hospitals, text, f"30,{one},f,yes\n30,0.5,f,yes\n")[0] for one in ("1.0", "-1.0")}
    assert len(told) == 1
    assert "is not among those that this party allows for numbers" in told.pop()


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
    loss: str, doses: tuple[float, ...], fits: bool, hospitals: Hospitals
) -> None:
    """Before any question is answered; the control are labels and losses that fit."""
    hospitals.state("amber", **NUMBERS, allow=f'{ALLOW}losses = ["{loss}", "squared"]\n')
    rows = "".join(f"30,{dose},f,yes\n" for dose in doses)
    (hospitals.folder / "amber.csv").write_text(f"age,dose,sex,back\n{rows}")
    if fits:
        assert hospitals.member("amber").check() == len(doses)
        return
    with pytest.raises(DataError, match=f"not every label fits the loss '{loss}' in allow"):
        hospitals.member("amber").check()
    with pytest.raises(DataError, match="in allow"):
        join(hospitals.member("amber"), threading.Event())


CLIENTS = "epsilon = 50.0\ndelta = 1e-5\nrounds = 3\n"
SILOS = 'unit = "record"\nepsilon = 40.0\ndelta = 1e-3\nrounds = 3\nrecords = 30\nclip_norm = 1.0\n'
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
    offered: str, unit: str, hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(hospitals.folder))
    monkeypatch.setattr(work, "check_model", lambda *_: None)  # a server that offers what its own program refuses
    (hospitals.folder / "own_net.py").write_text(NET)
    hospitals.state(
        "amber",
        data='file = "amber.csv"\nfolder = ".."\nlabel = "back"\nclasses = ["no", "yes", "maybe"]\n',
        allow='epsilon = 100.0\ndelta = 1e-3\nmodules = ["own_net:net"]\n',
        more='unit = "record"\nrecords = 30\n' if unit == "record" else "",
    )
    text = settings_text(here=False, privacy=SILOS if unit == "record" else CLIENTS)
    text = text.replace('["no", "yes"]', '["no", "yes", "maybe"]').replace("[local]\n", LEARNED[offered])
    told = set()
    for last in ("no", "yes", "maybe"):
        rows = "".join(f"30,1.0,f,{label}\n" for label in ["no", "yes"] * 14 + ["no", last])
        told.add(tried(hospitals, text, rows)[0])
    fits = offered in ("enough outputs", "as usual")
    assert told == {"yes"} if fits else len(told) == 1 and "not every class" in told.pop()


# Features that only some numbers have


def test_an_offer_of_features_is_answered_alike_whatever_the_numbers_are(hospitals: Hospitals) -> None:
    (hospitals.folder / "own_arrays.py").write_text(
        "import numpy as np\ndef load(largest):\n    g = np.random.default_rng(1)\n"
        "    x = g.random(size=(9, 8, 8)).astype(np.float32)\n    x[4] *= np.float32(largest)\n"
        "    return x, g.integers(0, 3, 9)\n"
    )
    data = '[data]\nname = "parties"\nfederation = "arrays"\nenrolled = "enrolled"\nshape = [8, 8]\nclasses = 3\n'
    rest = f'[privacy]\n{CLIENTS}[run]\nrandomness = "seeded"\nseed = 1\n'
    for largest in (1.0, 3e38):
        own = f'function = "own_arrays:load"\nfolder = ".."\nclasses = 3\narguments = {{largest = {largest}}}\n'
        text = party_text("amber", data=own, columns="").replace("[data.columns]\n", "")
        (hospitals.folder / "amber" / "party.toml").write_text(text)
        for words in ("", 'name = "unit"\ncentred = true\n', 'name = "energies"\noctave = 0\nstride = 2\n'):
            assert tried(hospitals, data + (words and f"[features]\n{words}") + rest)[0] == "yes"


def test_control_a_map_in_which_examples_meet_is_refused() -> None:
    values = np.random.default_rng(0).random((32, 16, 16)).astype(np.float32)
    mixing = from_callable(lambda several: several.reshape(len(several), -1) - several.mean(), name="mixing")
    with pytest.raises(ConfigError, match="change with the examples around it"):
        transform(mixing, Examples(features=values, labels=np.zeros(32, np.int64), classes=2))
