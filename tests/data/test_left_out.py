"""Nothing of the data changes in silence: a column that nothing is stated of, and bytes of pictures without a scale."""

from pathlib import Path

import numpy as np
import pytest

from incrowd import Clients, DataError, PrivateClassifier
from incrowd.data import from_arrays, from_dataset
from incrowd.errors import ConfigError
from incrowd.runs.data_config import Parties
from tests.command import Command, command

pytestmark = pytest.mark.usefixtures("one_thread")

HEADER = "who,age,height,note,ill"
ROWS = [f"u{place % 6},{place},{150 + place},x,{place % 2}" for place in range(60)]
SETTINGS = """
[data]
name = "table"
file = "ward.csv"
client = "who"
label = "ill"
classes = 2
clients = 6
features = {features}
[data.columns]
age = {{range = [0, 100]}}
note = "ignore"
[privacy]
epsilon = 50.0
delta = 1e-3
rounds = 1
[run]
"""


@pytest.fixture
def incrowd(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    Path("ward.csv").write_text("\n".join([HEADER, *ROWS]) + "\n")
    return command(monkeypatch, capsys, "train")


def test_a_column_that_nothing_is_stated_of_is_refused(incrowd: Command) -> None:
    Path("ward.toml").write_text(SETTINGS.format(features="[]"))
    refused = incrowd("ward.toml")
    assert refused.status == 2
    assert "'height'" in refused.err
    assert 'height = "ignore"' in refused.err
    Path("ward.toml").write_text(SETTINGS.format(features='["age"]'))  # the control: the choice is stated
    assert incrowd("ward.toml", "--yes").status == 0


def test_pictures_of_bytes_become_0_to_1_at_every_door() -> None:
    pictures, labels = np.full((6, 2, 2), 255, np.uint8), np.arange(6) % 2
    pairs = list(zip(pictures, labels, strict=True))
    owner = np.arange(6) % 3
    found = [
        from_arrays(pictures, labels, classes=2),
        from_dataset(pairs, classes=2),
        Clients.from_arrays(pictures, labels, owner=owner, classes=2, clients=3, name="a").examples,
        Clients.from_dataset(pairs, owner=owner, classes=2, clients=3, name="b").examples,
        Clients.from_partitions({"u": (pictures, labels)}, classes=2, clients=1, name="c").examples,
    ]
    assert [float(np.max(one.values(slice(None)))) for one in found] == [1.0] * len(found)
    as_they_are = from_arrays(pictures, labels, classes=2, scale=1)  # the control: a stated scale holds
    assert float(np.max(as_they_are.values(slice(None)))) == 255.0
    assert np.max(from_arrays(pictures.astype(np.float32), labels, classes=2).values(slice(None))) == 255.0


def test_bytes_that_are_no_pictures_need_a_scale() -> None:
    rows, labels = np.full((6, 4), 255, np.uint8), np.arange(6) % 2
    with pytest.raises(DataError, match="scale = 1/255"):
        from_arrays(rows, labels, classes=2)
    assert from_arrays(rows, labels, classes=2, scale=1).scale == 1  # the control
    with pytest.raises(ConfigError, match="ranges"):
        PrivateClassifier(epsilon=1.0, delta=1e-3, public=True).fit(rows, labels)
    with pytest.raises(ConfigError, match=r"data\.scale"):
        _parties({"type": "uint8"})
    _parties({"type": "uint8", "scale": 1.0})  # the control


def _parties(stated: dict[str, object]) -> Parties:
    return Parties(federation="f", enrolled=".", shape=(4,), classes=2, **stated)  # type: ignore[arg-type]  # by name
