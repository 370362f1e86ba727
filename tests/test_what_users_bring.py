"""Data as a new user has them: each door takes them in a few lines, and a model learns from them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd.data.partition import by_column
from incrowd.errors import ConfigError, DataError, LedgerMismatch

pytestmark = pytest.mark.usefixtures("one_thread")

DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(60, 2)).astype(np.float32)
ANSWERS = np.where(X[:, 0] > 0, "yes", "no")
OWNERS = [f"p{row % 12}" for row in range(60)]
ROWS: list[dict[str, Any]] = [
    {"patient": owner, "a": float(a), "b": float(b), "died": str(died)}
    for owner, (a, b), died in zip(OWNERS, X, ANSWERS, strict=True)
]
COLUMNS = {"a": {"range": [-5, 5]}, "b": {"range": [-5, 5], "missing": 0}}
DIED: dict[str, Any] = {"label": "died", "columns": COLUMNS, "classes": ("no", "yes"), "public": True}


class HuggingFace:
    """A data set with the methods of `datasets.Dataset` that incrowd uses."""

    column_names = tuple(ROWS[0])

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, row: int | str) -> Any:
        return [each[row] for each in ROWS] if isinstance(row, str) else ROWS[row]


class Polars:
    """A frame with the methods of `polars.DataFrame` that incrowd uses."""

    columns = tuple(ROWS[0])

    def iter_rows(self) -> Any:
        return (tuple(row.values()) for row in ROWS)


def trained(data: Any, folder: Path, module: nn.Module | None = None, **how: Any) -> Any:
    privacy = incrowd.Private(epsilon=50, delta=1e-3, rounds=3)
    federation = incrowd.Federation(
        module or nn.Linear(2, 2), data, local=incrowd.Local(learning_rate=1.0), privacy=privacy, **how
    )
    return federation.train(folder / "run", progress=False)


def test_a_csv_with_missing_values_and_words(tmp_path: Path) -> None:
    lines = [
        f"{row['patient']},{row['a']},{row['b'] if place % 9 else ''},{row['died']}" for place, row in enumerate(ROWS)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["patient,a,b,died", *lines]))
    data = incrowd.Clients.from_table(tmp_path / "own.csv", client="patient", **DIED)
    assert (data.clients, data.columns) == (12, ("a", "b"))
    assert set(trained(data, tmp_path).predict(data.examples.features)) <= {"no", "yes"}
    facts: dict[str, Any] = {"label": "died", "columns": COLUMNS, "classes": ("no", "yes")}
    table = incrowd.Table(file=str(tmp_path / "own.csv"), client="patient", clients=12, **facts)
    assert "one client for each patient" in str(trained(table, tmp_path / "private").statement)
    rows = incrowd.Table(
        file=str(tmp_path / "own.csv"), clients=60, **facts | {"columns": COLUMNS | {"patient": "ignore"}}
    )
    with pytest.raises((incrowd.BudgetExceeded, LedgerMismatch)):  # the same rows, whoever a client is
        trained(rows, tmp_path / "again")


@pytest.mark.parametrize(
    "source", [HuggingFace(), Polars(), ROWS, {name: [row[name] for row in ROWS] for name in ROWS[0]}]
)
def test_tables_in_memory_are_read_as_files_are(source: Any) -> None:
    data = incrowd.Clients.from_table(source, client="patient", **DIED)
    assert (data.clients, data.examples.labels.tolist()) == (12, (ANSWERS == "yes").astype(int).tolist())
    assert data.cells is not None


def test_a_frame_and_an_arrow_table() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS)
    assert incrowd.Clients.from_table(frame, client="patient", **DIED).clients == 12
    by_arrays = incrowd.Clients.from_arrays(
        frame[["a", "b"]], frame.died, owner=frame.patient, classes=("no", "yes"), public=True
    )
    assert (by_arrays.clients, by_arrays.owners[:2] if by_arrays.owners else ()) == (12, ("p0", "p1"))
    arrow = pytest.importorskip("pyarrow")
    assert incrowd.Clients.from_table(arrow.Table.from_pylist(ROWS), client="patient", **DIED).clients == 12


def test_a_hugging_face_data_set_of_arrays(tmp_path: Path) -> None:
    stated: dict[str, Any] = {"label": "died", "classes": ("no", "yes"), "public": True}
    data = incrowd.Clients.from_dataset(HuggingFace(), owner="patient", features=("a", "b"), **stated)
    assert (data.clients, data.examples.shape) == (12, (2,))
    assert trained(data, tmp_path).predict(X).shape == (60,)
    images = [{"image": np.zeros((2, 2), np.uint8), "text": [1, 2], "label": row % 2} for row in range(4)]
    pictures = incrowd.Clients.from_dataset(images, features="image", classes=2, public=True)
    assert (pictures.clients, pictures.examples.shape, pictures.examples.scale) == (4, (2, 2), 1 / 255)
    several = incrowd.Clients.from_dataset(images, features=("image", "text"), classes=2, public=True)
    assert set(several.examples.features) == {"image", "text"}


def test_a_torch_data_set(tmp_path: Path) -> None:
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(ANSWERS == "yes").long())
    data = incrowd.Clients.from_dataset(pairs, owner=OWNERS, classes=2, public=True)
    assert trained(data, tmp_path).predict(X).shape == (60,)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for row in range(12):
        place = tmp_path / "pictures" / f"p{row % 3}" / ("dark", "light")[row % 2]
        place.mkdir(parents=True, exist_ok=True)
        image.new("L", (4, 4), 255 * (row % 2)).save(place / f"{row}.png")
    data = incrowd.Clients.from_folder(tmp_path / "pictures", owners=True, classes=("dark", "light"), public=True)
    assert (data.clients, data.examples.shape) == (3, (1, 4, 4))
    result = trained(data, tmp_path, nn.Sequential(nn.Flatten(), nn.Linear(16, 2)))
    assert set(result.predict(data.examples.features)) <= {"dark", "light"}


def test_regression_and_several_labels(tmp_path: Path) -> None:
    numbers = incrowd.Clients.from_arrays(X, X[:, 0] * 2, owner=OWNERS, public=True)
    assert trained(numbers, tmp_path, nn.Linear(2, 1), loss="squared").outputs(X).shape[0] == 60
    several = incrowd.Clients.from_arrays(X, (X > 0).astype(np.float32), owner=OWNERS, public=True)
    result = trained(several, tmp_path / "several", nn.Linear(2, 2), loss="logistic")
    assert result.outputs(X).shape == (60, 2)


def test_without_an_id_each_row_is_a_client(tmp_path: Path) -> None:
    by_array = incrowd.Clients.from_arrays(X, ANSWERS, classes=("no", "yes"), public=True)
    rows = [{name: row[name] for name in ("a", "b", "died")} for row in ROWS]
    by_table = incrowd.Clients.from_table(rows, **DIED)
    assert by_array.clients == by_table.clients == 60
    assert trained(by_table, tmp_path).predict(X).shape == (60,)
    lines = [f"{row['a'] + 0.5},{row['b'] - 0.5},{row['died']}" for row in rows]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,died", *lines]))
    facts: dict[str, Any] = {"label": "died", "columns": COLUMNS, "classes": ("no", "yes")}
    table = incrowd.Table(file=str(tmp_path / "rows.csv"), clients=60, **facts)
    assert "one client for each row" in str(trained(table, tmp_path / "private").statement)
    private = incrowd.Clients.from_table(rows, **DIED | {"public": False, "name": "rows", "clients": 60})
    absent = incrowd.Clients.from_table(rows[1:], **DIED | {"public": False, "name": "rows", "clients": 60})
    assert private.places is not None
    assert absent.places is not None
    assert private.places[1:].tolist() == absent.places.tolist()  # an absent row moves no other client's turn
    twins = incrowd.Clients.from_arrays(np.zeros((3, 2)), [0, 0, 1], classes=2, clients=3, name="twins")
    assert len(set(twins.owners or ())) == 3


def test_groups_and_labels_of_an_estimator_may_be_words() -> None:
    for classes in (("no", "yes"), None):
        model = incrowd.PrivateClassifier(epsilon=50, rounds=3, public=True, classes=classes)
        model.fit(X, ANSWERS, groups=OWNERS)
        assert set(model.predict(X)) <= {"no", "yes"}


@pytest.mark.parametrize("missing", ["None", "np.nan", "pd.NA", "pd.NaT"])
def test_an_owner_that_is_missing_is_refused(missing: str) -> None:
    pd = pytest.importorskip("pandas")
    absent = {"None": None, "np.nan": np.nan, "pd.NA": pd.NA, "pd.NaT": pd.NaT}[missing]
    with pytest.raises(DataError, match="missing at example 1"):
        by_column(pd.Series(["a", absent, "b"], dtype=object))
    assert by_column(pd.Series(["a", "nan", "b"], dtype=object)).clients == 3  # the control: a name like another


def test_words_without_classes_and_classes_without_the_word_are_refused() -> None:
    stated: dict[str, Any] = {"owner": OWNERS, "public": True}
    with pytest.raises(DataError, match="state them in order"):
        incrowd.Clients.from_arrays(X, ANSWERS, **stated)
    with pytest.raises(DataError, match="'yes': it is none of classes"):
        incrowd.Clients.from_arrays(X, ANSWERS, classes=("no", "ja"), **stated)
    with pytest.raises(ConfigError, match="once"):
        incrowd.Clients.from_arrays(X, ANSWERS, classes=("no", "no"), **stated)
