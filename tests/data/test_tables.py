import gzip
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Clients, Columns, Reading, load_table
from incrowd.errors import DataError

COLUMNS = Columns(client="user", label="bought", classes=2)
TABLE = """user,age,bought,spent
bob,31,1,2.5
ann,44,0,-1e3

bob,20,0,0
"""


def load(folder: Path, text: str | bytes, columns: Columns = COLUMNS, name: str = "shop.csv") -> Clients:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_table(path, columns=columns)


def check_shop(data: Clients) -> None:
    assert data.clients == 2
    assert [data.client(k).tolist() for k in range(2)] == [[1], [0, 2]]
    assert data.examples.features.tolist() == [[31, 2.5], [44, -1000], [20, 0]]
    assert data.examples.labels.tolist() == [1, 0, 0]
    assert (data.examples.features.dtype.name, data.examples.labels.dtype.name) == ("float32", "int64")
    assert data.examples.classes == 2


@pytest.mark.parametrize("text", [TABLE, "\N{BOM}" + TABLE, TABLE.replace("\n", "\r\n"), TABLE.replace("bob", '"bob"')])
def test_a_table_becomes_a_federated_data_set(tmp_path: Path, text: str) -> None:
    data = load(tmp_path, text)
    check_shop(data)
    assert (data.name, data.test) == ("shop.csv", None)


def test_a_test_table_is_held_by_the_server(tmp_path: Path) -> None:
    load(tmp_path, TABLE)
    held = tmp_path / "held.csv"
    held.write_text("user,age,bought,spent\nzoe,1,0,2\n")
    data = load_table(str(tmp_path / "shop.csv"), columns=COLUMNS, test=str(held))
    assert data.test is not None
    assert data.clients == 2
    assert data.test.features.tolist() == [[1, 2]]
    assert data.describe()["test_set"] == "1 examples, public: held by the server, not by any client"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("31", "", "shop.csv, line 2: age = '' is missing; state what stands for it"),
        ("-1e3", "lots", "line 3: spent = 'lots' is not a number"),
        ("20", "nan", "line 5: age = 'nan' is missing; state what stands for it"),
        ("20", "1e39", "line 5: age = '1e39' is beyond every float32; give finite numbers"),
        ("bob,31,1", "bob,31,2", "line 2: bought = '2' is no stated class; give a whole number from 0 to 1"),
        ("bob,31,1", "bob,31,0.5", "line 2: bought = '0.5' is no stated class; give a whole number"),
        ("bob,31,1", "bob,31,-1", "line 2: bought = '-1' is no stated class; give a whole number"),
        ("bob,31,1", "bob,31,yes", "line 2: bought = 'yes' is no stated class; give a whole number"),
        ("bob,31,1", "bob,31,inf", "line 2: bought = 'inf' is no stated class; give a whole number"),
        ("ann,", ",", "line 3: user = '' says that it is missing; say whose row it is"),
        ("ann,44", "ann,44,", "line 3: 5 cells where the header has 4; check commas"),
        ("ann,44,", "ann,", "line 3: 3 cells where the header has 4; check commas"),
        ("ann,", '"ann"x,', "line 3: .*check the quotes"),
        ("20,0,0", '20,0,"0', "line 5: .*check the quotes"),
        ("user,", "name,", "shop.csv has no column 'user': name one of name, age, bought, spent"),
        ("age,", "user,", "shop.csv has more than one column 'user'"),
        ("spent", "age", "more than one column 'age'"),
        (TABLE, "", "shop.csv: is empty; give a header and rows"),
        (TABLE, "user,age,bought\n", "has a header and no rows"),
        (TABLE, "user,bought\nann,1\n", "names no column to learn from, beside client and label"),
    ],
)
def test_a_bad_table_is_named_with_line_and_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TABLE
    with pytest.raises(DataError, match=message):
        load(tmp_path, TABLE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("shop.csv", TABLE.encode() + "é,1,1,1\n".encode("latin-1"), "not UTF-8 .*save the file as UTF-8"),
        ("shop.csv.gz", TABLE.encode(), "broken or truncated gzip"),
        ("shop.csv.gz", gzip.compress(TABLE.encode(), mtime=0)[:-10], "broken or truncated gzip"),
        ("shop.csv", ("user,age,bought\n" + "a" * 200_000 + ",1,1\n").encode(), "line 2: field larger"),
        ("shop.xlsx", b"", "unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        load(tmp_path, content, name=name)
    assert str(tmp_path / name) in str(error.value)


ROWS = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), min_size=1), st.floats(-(2.0**90), 2.0**90, width=32), st.integers(0, 1)
    ),
    min_size=1,
)


@pytest.mark.slow
@given(ROWS)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float, int]]) -> None:
    lines = ['"' + name.replace('"', '""') + f'",{number!r},{label}' for name, number, label in rows]
    text = "\n".join(["user,age,bought", *lines])
    columns = replace(COLUMNS, reading=Reading(blanks="keep", missing_texts=("",)))
    data = load(tmp_path_factory.getbasetemp(), text, columns)
    assert data.examples.features[:, 0].tolist() == [number for _, number, _ in rows]
    assert data.examples.labels.tolist() == [label for *_, label in rows]
    assert data.clients == len({name for name, *_ in rows})


HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None


@pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    columns = {"user": ["bob", "ann", "bob"], "age": [31, 44, 20], "bought": [1, 0, 0], "spent": [2.5, -1e3, 0.0]}
    parquet.write_table(arrow.table(columns), tmp_path / "shop.parquet")
    check_shop(load_table(tmp_path / "shop.parquet", columns=COLUMNS))
    parquet.write_table(arrow.table({**columns, "age": [31, None, 20]}), tmp_path / "hole.parquet")
    with pytest.raises(DataError, match=r"hole\.parquet, row 2: age = None is missing"):
        load_table(tmp_path / "hole.parquet", columns=COLUMNS)
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as Parquet"):
        load(tmp_path, b"not parquet", name="bad.parquet")
