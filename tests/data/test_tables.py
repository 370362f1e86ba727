"""Tables as hospitals have them: read by what is stated, in every kind of file, and matched by name."""

import csv
import gzip
import importlib
import importlib.util
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data import Clients, Columns, Reading, columns_of, read_features, read_table
from incrowd.data.fingerprints import digests_of_cells, table_cells
from incrowd.data.reading import AS_USUAL
from incrowd.errors import ConfigError, DataError

SCHEMA = columns_of(
    {
        "age": {"range": [0, 100], "missing": 50, "indicator": True},
        "sex": {"levels": ["f", "m"], "other": True},
        "admitted": {"dates": ["2020-01-01", "2020-01-10"], "to": [0, 1]},
        "smoker": "yes/no",
        "note": "ignore",
    }
)
WARD = Columns(client="patient", label="died", classes=("no", "yes"), schema=SCHEMA)
ROWS = """patient,note,age,sex,admitted,smoker,died
007,"x, y",25,f,2020-01-01,yes,no
12, ,,d,2020-01-06,no,yes
007,NA,75.0,m,2020-01-03,1,no
"""
EXPECTED = [[-0.5, 0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 1, 0.5, 0], [0.5, 0, 0, 1, 0, 0.2, 1]]
SHOP = Columns(client="user", label="bought", classes=2)
TABLE = """user,age,bought,spent
bob,31,1,2.5
ann,44,0,-1e3

bob,20,0,0
"""
OTHERS = ROWS.replace("007", "3").replace("12,", "4,")


def write(folder: Path, text: str | bytes, name: str = "ward.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def check_ward(data: Clients) -> None:
    assert data.examples.features.tolist() == [pytest.approx(row) for row in EXPECTED]
    assert data.examples.labels.tolist() == [0, 1, 0]
    assert data.owners == ("007", "12")
    assert [data.client(k).tolist() for k in range(2)] == [[0, 2], [1]]


def test_a_table_is_read_by_what_is_stated(tmp_path: Path) -> None:
    check_ward(Clients.from_table(write(tmp_path, ROWS), columns=WARD))
    check_ward(Clients.from_table(write(tmp_path, gzip.compress(ROWS.encode()), "ward.csv.gz"), columns=WARD))
    lines = [",".join(line.split(",")[2:6]) for line in ROWS.replace("x, y", "x").splitlines()]
    features = read_features(write(tmp_path, "\n".join(lines)), WARD)  # without clients and labels
    assert features.tolist() == [pytest.approx(row) for row in EXPECTED]
    with pytest.raises(DataError, match="has a header and no rows"):
        read_features(write(tmp_path, lines[0]), WARD)


def german(text: str) -> str:
    return text.replace("x, y", "x").replace(",", ";").replace("75.0", "75,0")


@pytest.mark.parametrize(
    ("reading", "change"),
    [
        (Reading(delimiter=";", decimal=","), german),
        (Reading(delimiter="\t"), lambda text: text.replace("x, y", "x. y").replace(",", "\t")),
        (Reading(), lambda text: "\N{BOM}" + text),
        (Reading(encoding="latin-1"), lambda text: text.replace("x, y", "Größe")),
        (Reading(blanks="strip"), lambda text: text.replace(",f,", ", f ,").replace("007,", "007 ,")),
        (Reading(missing_texts=("unknown",)), lambda text: text.replace(", ,,", ", ,Unknown,")),
        (Reading(thousands="_"), lambda text: text),
    ],
)  # fmt: skip
def test_a_table_is_read_as_it_is_written(tmp_path: Path, reading: Reading, change: Callable[[str], str]) -> None:
    path = write(tmp_path, change(ROWS).encode(reading.encoding))
    check_ward(Clients.from_table(path, columns=replace(WARD, reading=reading)))


def test_cells_are_compared_as_what_they_say(tmp_path: Path) -> None:
    def known(name: str, text: str, reading: Reading = AS_USUAL) -> list[int]:
        cells = table_cells(write(tmp_path, text, name), "id", reading)
        return sorted(digests_of_cells(cells, ("x", "t"), "id", key=b"k").exact.tolist())

    german, turned = Reading(delimiter=";", decimal=",", thousands="."), "t;x;id\nv;2,00;b\nu;1.234,50;a\n"
    plain = known("plain.csv", "id,x,t\na,1234.5,u\nb,2,v\n")
    assert known("other.csv", turned, german) == plain != known("other.csv", turned, replace(german, thousands=None))

    def bits(*cells: object) -> list[int]:
        frame = pandas.DataFrame({"x": pandas.Series(cells, dtype=object)})
        found: list[int] = table_cells(frame, "").values[:, 0].tolist()
        return found

    pandas = pytest.importorskip("pandas")
    (one,) = bits("1")
    assert bits("1.0", 1, 1.0, "1e0", "1.0000000001", np.float32(1), np.int64(1)) == [one] * 7
    assert bits("", "NA", None, math.nan, "nan", pandas.NaT) == bits("") * 6
    assert bits("0.1", np.float32(0.1), 0.1) == bits("0.1") * 3
    assert bits("-0", 0.0, "0") == bits("0") * 3
    different = bits("", "1", "0", "yes", "no", True, "1.5", 2**53, 2**60, date(2020, 1, 1), Decimal("2.5"))
    assert len(set(different)) == len(different)
    assert bits(True, "True", "2020-01-01", "yes") == bits(True, True, date(2020, 1, 1), "yes")


def test_without_a_schema_columns_are_numbers_in_files_of_every_kind(tmp_path: Path) -> None:
    texts = (TABLE, "\N{BOM}" + TABLE, TABLE.replace("\n", "\r\n"), TABLE.replace("bob", '"bob"'))
    paths = [write(tmp_path, text, f"{place}.csv") for place, text in enumerate(texts)]
    if importlib.util.find_spec("pyarrow") is not None:
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
        columns = {"user": ["bob", "ann", "bob"], "age": [31, 44, 20], "bought": [1, 0, 0], "spent": [2.5, -1e3, 0.0]}
        parquet.write_table(arrow.table(columns), tmp_path / "shop.parquet")
        paths.append(tmp_path / "shop.parquet")
        parquet.write_table(arrow.table({**columns, "age": [31, None, 20]}), tmp_path / "hole.parquet")
        with pytest.raises(DataError, match=r"hole\.parquet, row 2: age = None is missing"):
            Clients.from_table(tmp_path / "hole.parquet", columns=SHOP)
    for path in paths:
        data = Clients.from_table(path, columns=SHOP)
        assert [data.client(k).tolist() for k in range(data.clients)] == [[1], [0, 2]]
        assert data.examples.features.tolist() == [[31, 2.5], [44, -1000], [20, 0]]
        assert (data.examples.labels.tolist(), data.examples.features.dtype.name) == ([1, 0, 0], "float32")


def test_a_test_table_is_matched_by_name(tmp_path: Path) -> None:
    lines = [line.split(",") for line in OTHERS.replace("x, y", "x").splitlines()]
    turned = "\n".join(",".join(["extra", *reversed(line)]) for line in lines)
    data = Clients.from_table(write(tmp_path, ROWS), columns=WARD, test=write(tmp_path, turned, "test.csv"))
    assert data.test is not None
    assert data.test.features.tolist() == data.examples.features.tolist()
    assert data.test.labels.tolist() == data.examples.labels.tolist()


def test_control_by_position_a_reordered_test_table_would_be_another(tmp_path: Path) -> None:
    text = "patient,b,a,y\n1,2,3,0\n"
    columns = Columns(client="patient", label="y", classes=2)
    held, _ = read_table(write(tmp_path, text), columns)
    assert held.features.tolist() == [[2, 3]]  # in the order of its own header
    data = Clients.from_table(
        write(tmp_path, "patient,a,b,y\n9,3,2,0\n", "train.csv"), columns=columns, test=tmp_path / "ward.csv"
    )
    assert data.test is not None
    assert data.test.features.tolist() == [[3, 2]]


def test_test_clients_who_also_train_are_refused_and_not_named(tmp_path: Path) -> None:
    table, test = write(tmp_path, ROWS), write(tmp_path, OTHERS.replace("\n3,", "\n007,", 1), "test.csv")
    with pytest.raises(DataError, match=r"test.csv: its column 'patient' has clients who also train, so it") as refused:
        Clients.from_table(table, columns=WARD, test=test, clients=2)
    assert "007" not in str(refused.value)
    with pytest.raises(DataError, match=r"has clients who also train \(007\)"):
        Clients.from_table(table, columns=WARD, test=test, public=True)
    shared = Clients.from_table(table, columns=WARD, test=test, public=True, test_clients="shared")
    assert shared.describe()["test_set"] == "clients who may also train, so it is not unseen"
    assert Clients.from_table(table, columns=WARD, test=write(tmp_path, OTHERS, "t.csv")).describe()["test_set"] == (
        "3 examples, public: held by the server, not by any client"
    )


def many(folder: Path, clients: int = 20) -> Path:
    rows = [f"p{place:02},{place},{place % 2}" for place in range(clients) for _ in range(3)]
    return write(folder, "\n".join(["patient,x,y", *rows]), "many.csv")


def test_whole_clients_are_held_out(tmp_path: Path) -> None:
    columns = Columns(client="patient", label="y", classes=2)
    data = Clients.from_table(many(tmp_path), columns=columns, holdout_clients=0.2, public=True)
    assert data.test is not None
    assert (data.clients, len(data.test)) == (16, 12)
    train = {float(x) for k in range(16) for x in data.examples.features[data.client(k), 0]}
    assert not train & set(data.test.features[:, 0].tolist())
    assert [f"p{int(data.examples.features[data.client(k)[0], 0]):02}" for k in range(16)] == list(data.owners or ())
    again = Clients.from_table(many(tmp_path), columns=columns, holdout_clients=0.2, public=True)
    assert again.owners == data.owners


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "holdout_clients = 0.2: a share of private clients tells how many there are"),
        ({"public": True, "test_clients": "shared"}, "have no other test table"),
        ({"public": True, "holdout_clients": 1.5}, "holdout_clients = 1.5: give a number between 0 and 1"),
        ({"public": True, "holdout_clients": 0.99}, "holdout_clients = 0.99: leave at least one client"),
    ],
)
def test_what_cannot_be_held_out_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    columns = Columns(client="patient", label="y", classes=2)
    path = many(tmp_path)
    test = path if "test_clients" in fields else None
    with pytest.raises(ConfigError, match=message):
        Clients.from_table(path, columns=columns, test=test, **{"holdout_clients": 0.2, **fields})


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 100) | st.none(), st.sampled_from("fmx")), min_size=1, max_size=5))
def test_a_row_is_read_alone(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int | None, str]]) -> None:
    """What a row becomes is the same whatever rows are beside it."""
    columns = Columns(client="p", label="y", classes=2, schema={name: SCHEMA[name] for name in ("age", "sex")})
    path = tmp_path_factory.getbasetemp() / "alone.csv"
    lines = [f"p,{'' if age is None else age},{sex},0" for age, sex in rows]
    path.write_text("\n".join(["p,age,sex,y", *lines]))
    together = read_table(path, columns)[0].features.tolist()
    for line, found in zip(lines, together, strict=True):
        path.write_text(f"p,age,sex,y\n{line}\n")
        assert read_table(path, columns)[0].features.tolist() == [found]


def test_an_error_names_the_row_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    rows = [dict(zip(ROWS.splitlines()[0].split(","), line, strict=True)) for line in csv.reader(ROWS.splitlines()[1:])]
    frame, stated = (
        pandas.DataFrame(rows),
        replace(WARD, schema=columns_of({"sex": {"levels": ["f", "m"]}}), features=("sex",)),
    )
    with pytest.raises(DataError, match=r"data frame, row 2: sex = 'q' is none of"):
        Clients.from_table(frame.assign(sex=["f", "q", "m"]), columns=stated)
    with pytest.raises(DataError, match=r"row 2: patient = nan says that it is missing"):
        Clients.from_table(frame.assign(patient=["a", math.nan, "b"]), columns=WARD)
    with pytest.raises(DataError, match=r"row 1: patient = 1.5 is a number with a fraction"):
        Clients.from_table(frame.assign(patient=[1.5, 2, 3]), columns=WARD)
    with pytest.raises(DataError, match="has a column 7: give each a text as its name"):
        Clients.from_table(pandas.DataFrame({7: [1]}), columns=WARD)
    with pytest.raises(DataError, match="list is no table: give a path, a data frame or rows as dicts"):
        Clients.from_table([1], columns=WARD)


WRITTEN = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), min_size=1), st.floats(-(2.0**90), 2.0**90, width=32), st.integers(0, 1)
    ),
    min_size=1,
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-1e3", "lots", "line 3: spent = 'lots' is not a number"),
        ("20", "nan", "line 5: age = 'nan' is missing; state what stands for it"),
        ("20", "1e39", "line 5: age = '1e39' is beyond every float32; give finite numbers"),
        ("bob,31,1", "bob,31,2", "line 2: bought = '2' is no stated class; give a whole number from 0 to 1"),
        ("bob,31,1", "bob,31,yes", "line 2: bought = 'yes' is no stated class; give a whole number"),
        ("ann,", ",", "line 3: user = '' says that it is missing; say whose row it is"),
        ("ann,44,", "ann,", "line 3: 3 cells where the header has 4; check commas"),
        ("ann,", '"ann"x,', "line 3: .*check the quotes"),
        ("20,0,0", '20,0,"0', "line 5: .*check the quotes"),
        ("age,", "user,", "shop.csv has more than one column 'user'"),
        (TABLE, "", "shop.csv: is empty; give a header and rows"),
        (TABLE, "user,age,bought\n", "has a header and no rows"),
        (TABLE, "user,bought\nann,1\n", "names no column to learn from, beside client and label"),
    ],
)
def test_a_bad_table_is_named_with_line_and_remedy(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in TABLE
    with pytest.raises(DataError, match=message):
        Clients.from_table(write(tmp_path, TABLE.replace(old, new, 1), "shop.csv"), columns=SHOP)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("shop.csv", TABLE.encode() + "é,1,1,1\n".encode("latin-1"), "not UTF-8 .*save the file as UTF-8"),
        ("shop.csv.gz", TABLE.encode(), "broken or truncated gzip"),
        ("shop.csv.gz", gzip.compress(TABLE.encode(), mtime=0)[:-10], "broken or truncated gzip"),
        ("shop.csv", ("user,age,bought\n" + "a" * 200_000 + ",1,1\n").encode(), "line 2: field larger"),
        ("shop.parquet", b"not parquet", "cannot be read as Parquet|Parquet needs pyarrow"),
        ("shop.xlsx", b"", "unknown kind of table; give a file that ends in .csv, .csv.gz or .parquet"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        Clients.from_table(write(tmp_path, content, name), columns=SHOP)
    assert str(tmp_path / name) in str(error.value)


@pytest.mark.slow
@given(WRITTEN)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float, int]]) -> None:
    lines = ['"' + name.replace('"', '""') + f'",{number!r},{label}' for name, number, label in rows]
    text = "\n".join(["user,age,bought", *lines])
    columns = replace(SHOP, reading=Reading(blanks="keep", missing_texts=("",)))
    data = Clients.from_table(write(tmp_path_factory.getbasetemp(), text), columns=columns)
    assert data.examples.features[:, 0].tolist() == [number for _, number, _ in rows]
    assert data.examples.labels.tolist() == [label for *_, label in rows]
    assert data.clients == len({name for name, *_ in rows})
