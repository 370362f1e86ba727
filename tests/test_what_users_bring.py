"""Each thing that a new user brings is a program of at most 15 lines, whose model learns."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import incrowd
from incrowd import _extensions
from incrowd.data.partition import by_column
from incrowd.errors import ConfigError, DataError, LedgerMismatch
from incrowd.types import register

pytestmark = pytest.mark.usefixtures("one_thread")

X = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
DIED = np.where(X[:, 0] > 0, "yes", "no")
OWNERS = [f"p{row % 60}" for row in range(600)]
ROWS: list[dict[str, Any]] = [
    {"patient": owner, "a": float(a), "b": float(b), "died": str(died)}
    for owner, (a, b), died in zip(OWNERS, X, DIED, strict=True)
]
COLUMNS = {"a": {"range": [-5, 5]}, "b": {"range": [-5, 5], "missing": 0}}
FACTS: dict[str, Any] = {"label": "died", "columns": COLUMNS, "classes": ("no", "yes")}
PUBLIC = FACTS | {"public": True}
QUICK = incrowd.Local(learning_rate=1.0)
PRIVACY = incrowd.Private(epsilon=50, delta=1e-3, rounds=5)
ARRAYS = incrowd.Clients.from_arrays(X, DIED, owner=OWNERS, classes=("no", "yes"), public=True)


def a_csv_with_missing_values_and_words(folder: Path) -> Any:
    table = incrowd.Table(
        file="own.csv",
        folder=str(folder),
        client="patient",
        clients=60,
        label="died",
        classes=("no", "yes"),
        columns={"a": {"range": [-5, 5]}, "b": {"range": [-5, 5], "missing": 0}},
    )
    result = incrowd.Federation(nn.Linear(2, 2), table, privacy=PRIVACY, local=QUICK).train(folder / "run")
    assert "one client for each patient" in str(result.statement)
    return result.predict(folder / "own.csv") == DIED


def a_frame_with_owners_that_are_words(folder: Path) -> Any:
    pandas = pytest.importorskip("pandas")
    data = incrowd.Clients.from_table(
        pandas.DataFrame(ROWS),
        client="patient",
        label="died",
        classes=("no", "yes"),
        columns=COLUMNS,
        name="ward 7",
        clients=60,
    )
    result = incrowd.Federation(nn.Linear(2, 2), data, privacy=PRIVACY, local=QUICK).train(folder)
    return result.predict(pandas.DataFrame(ROWS)) == DIED


def a_hugging_face_data_set(folder: Path) -> Any:
    data = incrowd.Clients.from_dataset(
        HuggingFace(), owner="patient", features=("a", "b"), label="died", classes=("no", "yes"), public=True
    )
    result = incrowd.Federation(nn.Linear(2, 2), data, privacy=PRIVACY, local=QUICK).train(folder)
    return result.predict(X) == DIED


def a_data_set_of_torch(folder: Path) -> Any:
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(DIED == "yes").long())
    data = incrowd.Clients.from_dataset(pairs, owner=OWNERS, classes=2, public=True)
    result = incrowd.Federation(nn.Linear(2, 2), data, privacy=PRIVACY, local=QUICK).train(folder)
    return result.predict(X) == (DIED == "yes")


def a_folder_of_pictures(folder: Path) -> Any:
    data = incrowd.Clients.from_folder(folder / "pictures", owners=True, classes=("dark", "light"), public=True)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    result = incrowd.Federation(module, data, privacy=PRIVACY, local=QUICK).train(folder / "run")
    return result.predict(data.examples.features) == np.array(["dark", "light"])[data.examples.labels]


def a_module_with_pretrained_weights(folder: Path) -> Any:
    module = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    module.load_state_dict(torch.load(folder / "pretrained.pt"))
    module[0].requires_grad_(False)  # only the head is trained and noised
    result = incrowd.Federation(module, ARRAYS, privacy=PRIVACY, local=QUICK).train(folder / "run")
    assert torch.equal(result.module.get_parameter("0.weight"), module.get_parameter("0.weight"))
    return result.predict(X) == DIED


def a_loss(folder: Path) -> Any:
    def weighted(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels, weight=torch.tensor([1.0, 2.0]))

    result = incrowd.Federation(nn.Linear(2, 2), ARRAYS, privacy=PRIVACY, local=QUICK, loss=weighted).train(folder)
    assert "loss weighted" in " ".join(str(result.statement).split())
    return result.predict(X) == DIED


def an_optimizer_of_the_server(folder: Path) -> Any:
    class Signs:
        def __init__(self, settings: incrowd.ServerOptimizer) -> None: ...

        def init(self, size: int) -> dict[str, Any]:
            return {"steps": np.zeros(size)}

        def update(self, mean: Any, state: Any) -> Any:
            return np.sign(mean), {"steps": state["steps"] + 1}

    register("server_optimizers", "signs", Signs)
    server = incrowd.ServerOptimizer(kind="signs", learning_rate=0.5)
    result = incrowd.Federation(nn.Linear(2, 2), ARRAYS, privacy=PRIVACY, local=QUICK, server=server).train(folder)
    return result.predict(X) == DIED


def a_training_loop_with_an_optimizer(folder: Path) -> Any:
    def trained(module: nn.Module, features: Any, labels: torch.Tensor) -> nn.Module:
        optimizer = torch.optim.RMSprop(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()  # type: ignore[no-untyped-call]  # torch says no types
            optimizer.step()
        return module

    federation = incrowd.Federation(nn.Linear(2, 2), ARRAYS, privacy=PRIVACY)
    with federation.session(folder) as session:
        for now in session:
            now.submit({client: trained(now.module(), *now.examples(client)) for client in now.cohort})
    return federation.result(folder).predict(X) == DIED


def numbers_to_predict(folder: Path) -> Any:
    data = incrowd.Clients.from_arrays(X, X[:, 0], owner=OWNERS, public=True)
    local = incrowd.Local(learning_rate=0.1, epochs=5)
    result = incrowd.Federation(nn.Linear(2, 1), data, privacy=PRIVACY, local=local, loss="squared").train(folder)
    return abs(result.outputs(X)[:, 0] - X[:, 0]) < 0.5


def several_labels(folder: Path) -> Any:
    data = incrowd.Clients.from_arrays(X, (X > 0).astype(np.float32), owner=OWNERS, public=True)
    result = incrowd.Federation(nn.Linear(2, 2), data, privacy=PRIVACY, local=QUICK, loss="logistic").train(folder)
    return (result.outputs(X) > 0) == (X > 0)


def no_column_of_owners(folder: Path) -> Any:
    data = incrowd.Clients.from_arrays(X, DIED, classes=("no", "yes"), name="ward 8", clients=600)
    result = incrowd.Federation(nn.Linear(2, 2), data, privacy=PRIVACY, local=QUICK).train(folder)
    return result.predict(X) == DIED


PROGRAMS: list[Callable[[Path], Any]] = [
    a_csv_with_missing_values_and_words,
    a_frame_with_owners_that_are_words,
    a_hugging_face_data_set,
    a_data_set_of_torch,
    a_folder_of_pictures,
    a_module_with_pretrained_weights,
    a_loss,
    an_optimizer_of_the_server,
    a_training_loop_with_an_optimizer,
    numbers_to_predict,
    several_labels,
    no_column_of_owners,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_takes_at_most_fifteen_lines_and_learns(
    program: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_extensions, "_REGISTERED", {})
    prepare(tmp_path)
    _, *body = filter(str.strip, inspect.getsource(program).splitlines())
    assert len(body) <= 15
    assert np.mean(program(tmp_path)) > 0.8


def prepare(folder: Path) -> None:
    """The files that users have."""
    cells = [
        f"{row['patient']},{row['a']},{row['b'] if place % 9 else ''},{row['died']}" for place, row in enumerate(ROWS)
    ]
    (folder / "own.csv").write_text("\n".join(["patient,a,b,died", *cells]))
    torch.manual_seed(0)
    torch.save(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).state_dict(), folder / "pretrained.pt")
    image = pytest.importorskip("PIL.Image")
    for row in range(120):
        place = folder / "pictures" / f"p{row % 60}" / ("dark", "light")[row // 60]
        place.mkdir(parents=True)
        image.new("L", (4, 4), 255 * (row // 60)).save(place / "one.png")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(",".join(map(str, cells)) for cells in (rows[0], *(row.values() for row in rows))))


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


@pytest.mark.parametrize(
    "source", [HuggingFace(), Polars(), ROWS, {name: [row[name] for row in ROWS] for name in ROWS[0]}]
)
def test_tables_in_memory_are_read_as_files_are(source: Any) -> None:
    data = incrowd.Clients.from_table(source, client="patient", **PUBLIC)
    assert (data.clients, data.examples.labels.tolist()) == (60, (DIED == "yes").astype(int).tolist())
    assert data.cells is not None


def test_an_arrow_table_is_read_as_a_file_is() -> None:
    arrow = pytest.importorskip("pyarrow")
    assert incrowd.Clients.from_table(arrow.Table.from_pylist(ROWS), client="patient", **PUBLIC).clients == 60
    frame = pytest.importorskip("pandas").DataFrame(ROWS)
    by_arrays = incrowd.Clients.from_arrays(
        frame[["a", "b"]], frame.died, owner=frame.patient, classes=("no", "yes"), public=True
    )
    assert (by_arrays.clients, (by_arrays.owners or ())[:2]) == (60, ("p0", "p1"))


def test_pictures_of_a_data_set_have_a_scale_and_tokens_have_none() -> None:
    items = [{"image": np.zeros((2, 2), np.uint8), "text": [1, 2], "label": row % 2} for row in range(4)]
    pictures = incrowd.Clients.from_dataset(items, features="image", classes=2, public=True)
    assert (pictures.clients, pictures.examples.shape, pictures.examples.scale) == (4, (2, 2), 1 / 255)
    several = incrowd.Clients.from_dataset(items, features=("image", "text"), classes=2, public=True)
    assert set(several.examples.features) == {"image", "text"}


def test_the_same_rows_share_one_ledger_whatever_a_client_is(tmp_path: Path) -> None:
    prepare(tmp_path)
    a_csv_with_missing_values_and_words(tmp_path)
    ignored = FACTS | {"columns": COLUMNS | {"patient": "ignore"}}
    rows = incrowd.Table(file=str(tmp_path / "own.csv"), clients=600, **ignored)
    with pytest.raises((incrowd.BudgetExceeded, LedgerMismatch)):
        incrowd.Federation(nn.Linear(2, 2), rows, privacy=PRIVACY).train(tmp_path / "again", progress=False)


def test_without_an_id_each_row_is_a_client(tmp_path: Path) -> None:
    rows = [{name: row[name] for name in ("a", "b", "died")} for row in ROWS[:60]]
    assert incrowd.Clients.from_table(rows, **PUBLIC).clients == 60
    (tmp_path / "rows.csv").write_text(
        "\n".join(["a,b,died", *(f"{one['a']},{one['b']},{one['died']}" for one in rows)])
    )
    table = incrowd.Table(file=str(tmp_path / "rows.csv"), clients=60, **FACTS)
    result = incrowd.Federation(nn.Linear(2, 2), table, privacy=PRIVACY).train(tmp_path / "run", progress=False)
    assert "one client for each row" in str(result.statement)
    private, absent = (
        incrowd.Clients.from_table(some, **FACTS, name="rows", clients=60).places for some in (rows, rows[1:])
    )
    assert private is not None
    assert absent is not None
    assert private[1:].tolist() == absent.tolist()  # an absent row moves no other client's turn
    twins = incrowd.Clients.from_arrays(np.zeros((3, 2)), [0, 0, 1], classes=2, clients=3, name="twins")
    assert len(set(twins.owners or ())) == 3


def test_groups_and_labels_of_an_estimator_may_be_words() -> None:
    for classes in (("no", "yes"), None):
        model = incrowd.PrivateClassifier(epsilon=50, rounds=3, public=True, classes=classes)
        model.fit(X, DIED, groups=OWNERS)
        assert set(model.predict(X)) <= {"no", "yes"}


@pytest.mark.parametrize("missing", ["None", "np.nan", "pd.NA", "pd.NaT"])
def test_an_owner_that_is_missing_is_refused(missing: str) -> None:
    pd = pytest.importorskip("pandas")
    absent = {"None": None, "np.nan": np.nan, "pd.NA": pd.NA, "pd.NaT": pd.NaT}[missing]
    with pytest.raises(DataError, match="missing at example 1"):
        by_column(pd.Series(["a", absent, "b"], dtype=object))
    assert by_column(pd.Series(["a", "nan", "b"], dtype=object)).clients == 3  # the control: a name like another


def test_classes_without_the_word_are_refused() -> None:
    stated: dict[str, Any] = {"owner": OWNERS, "public": True}
    with pytest.raises(DataError, match="'yes': it is none of classes"):
        incrowd.Clients.from_arrays(X, DIED, classes=("no", "ja"), **stated)
    with pytest.raises(ConfigError, match="once"):
        incrowd.Clients.from_arrays(X, DIED, classes=("no", "no"), **stated)
