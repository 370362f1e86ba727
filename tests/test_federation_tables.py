"""The front door for tables: a file or a data frame, whose columns mean what is stated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import incrowd
from incrowd.data import Columns
from incrowd.errors import ConfigError
from incrowd.runs.predict import predict
from tests.attacks import shop

pandas = pytest.importorskip("pandas")

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = incrowd.RunOptions(threads=1)
WARD = Columns(
    client="patient", label="ill", classes=("no", "yes"), schema={"age": {"range": [0, 100]}, "smoker": "yes/no"}
)


def frame(seed: int = 0, count: int = 200) -> Any:
    generator = np.random.default_rng(seed)
    age = generator.integers(0, 101, count)
    smoker = generator.choice(["yes", "no"], count)
    ill = np.where(age > 50, "yes", "no")
    return pandas.DataFrame({"patient": np.arange(count) % 20, "age": age, "smoker": smoker, "ill": ill})


def train(data: incrowd.Clients | incrowd.Table, folder: Path, inputs: int = 2, **privacy: Any) -> incrowd.Result:
    promise = incrowd.Private(**{"epsilon": 5000, "delta": 1e-3, "rounds": 8, **privacy})
    local = incrowd.Local(learning_rate=0.5, batch_size=5)
    federation = incrowd.Federation(nn.Linear(inputs, 2), data, local=local, privacy=promise, run=QUICK)
    return federation.train(folder, progress=False)


def table(path: Path, **given: Any) -> incrowd.Table:
    frame().to_csv(path, index=False)
    words = {"age": {"range": [0, 100]}, "smoker": "yes/no"}
    return incrowd.Table(
        **{
            "file": str(path),
            "client": "patient",
            "label": "ill",
            "classes": ("no", "yes"),
            "columns": words,
            "public": True,
            **given,
        }
    )


@pytest.mark.slow
def test_a_data_frame_is_learned_from_as_its_columns_mean(tmp_path: Path) -> None:
    data = incrowd.Clients.from_table(frame(), columns=WARD, test=frame(1).assign(patient="x"), public=True)
    result = train(data, tmp_path / "run")
    assert result.accuracy is not None
    assert result.accuracy > 0.8
    unseen = frame(2).drop(columns=["patient", "ill"])[["smoker", "age"]]
    assert np.mean(result.predict(unseen) == frame(2)["ill"]) > 0.8
    unseen.to_csv(tmp_path / "unseen.csv", index=False)
    assert result.predict(tmp_path / "unseen.csv").tolist() == result.predict(unseen).tolist()
    numbers = np.stack([frame(2)["age"] / 50 - 1, frame(2)["smoker"] == "yes"], axis=1).astype(np.float32)
    assert np.allclose(result.predict_proba(numbers), result.predict_proba(unseen), atol=1e-6)


@pytest.mark.slow
def test_a_table_in_a_file_is_learned_from_in_the_same_way(tmp_path: Path) -> None:
    result = train(table(tmp_path / "ward.csv", holdout_clients=0.2), tmp_path / "run")
    assert result.predict(tmp_path / "ward.csv").tolist() == result.predict(frame()).tolist()
    again = train(table(tmp_path / "ward.csv", holdout_clients=0.2), tmp_path / "run")
    assert np.array_equal(again.outputs(frame()), result.outputs(frame()))
    with pytest.raises(ConfigError, match=r"a program began the run.*let it call result\.predict"):
        predict(tmp_path / "run", tmp_path / "ward.csv")
    with pytest.raises(ConfigError, match=r"data\.label = 'ill'.*was begun there"):
        train(table(tmp_path / "ward.csv", holdout_clients=0.2, label="smoker", columns={}), tmp_path / "run")


def test_a_schema_of_objects_is_for_frames(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.columns\.age = 'Number': write it as settings do"):
        table(tmp_path / "ward.csv", columns={"age": WARD.meaning("age")})


def test_a_private_file_is_handed_over_as_a_table(tmp_path: Path) -> None:
    """As clients it would be known by the numbers that its cells became, and have a second ledger."""
    path = shop.write(tmp_path / "shop.csv", shop.HEADER, shop.rows())
    columns = Columns(client="user", label="bought", classes=2)
    with pytest.raises(ConfigError, match=r"file = 'shop\.csv': give it as incrowd\.Table"):
        train(incrowd.Clients.from_table(path, columns=columns, clients=13), tmp_path / "run", inputs=3)
