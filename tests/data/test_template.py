import gzip
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incrowd.data.columns import Header, read_header, relative, template


def written(folder: Path, content: bytes, name: str = "v.csv") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "header"),
    [
        (b"a,b\n1,2\n", Header(columns=("a", "b"))),
        (b"a;b,c;d\r\n", Header(columns=("a", "b,c", "d"), delimiter=";")),
        (b"a\tb", Header(columns=("a", "b"), delimiter="\t")),
        (b"a|b|c,d", Header(columns=("a", "b", "c,d"), delimiter="|")),
        (b"\xef\xbb\xbf\n\na,b\n", Header(columns=("a", "b"))),
        (b'"a\nb","c,d"\n', Header(columns=("a\nb", "c,d"))),
        ("größe,b\n".encode(), Header(columns=("größe", "b"))),
        ("größe,b\n".encode("latin-1"), Header(columns=("größe", "b"), encoding="latin-1")),
        (b"alone\n", Header(columns=("alone",))),
    ],
)
def test_a_header_tells_names_delimiter_and_encoding(tmp_path: Path, content: bytes, header: Header) -> None:
    assert read_header(written(tmp_path, content)) == header
    assert read_header(written(tmp_path, gzip.compress(content), "v.csv.gz")) == header


@given(rest=st.binary(max_size=200))
def test_nothing_but_the_header_is_looked_at(tmp_path_factory: pytest.TempPathFactory, rest: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = written(folder, b"patient;age;died\n1;2;0\n")
    before = template(path, read_header(path), seen="v.csv")
    written(folder, b"patient;age;died\n" + rest)
    assert template(path, read_header(path), seen="v.csv") == before
    packed = gzip.compress(b"patient;age;died\n" + bytes(range(256)) * 400, mtime=0)[:300] + rest  # damaged after it
    assert read_header(written(folder, packed, "v.csv.gz")).columns == ("patient", "age", "died")
    written(folder, b"patient;age;ill\n" + rest)  # the control: another header
    assert template(path, read_header(path), seen="v.csv") != before


@given(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=5, unique=True))
def test_a_template_is_toml_whatever_columns_are_called(names: list[str]) -> None:
    text = template(Path("v.csv"), Header(columns=tuple(names)), seen='a "b"\\c.csv')
    found = tomllib.loads(text)
    assert found["data"]["columns"] == dict.fromkeys(names, "?")
    assert found["data"]["file"] == 'a "b"\\c.csv'


def test_client_and_label_that_are_named_are_no_features() -> None:
    header = Header(columns=("patient", "age", "died"), delimiter=";", encoding="latin-1")
    data = tomllib.loads(template(Path("v.csv"), header, client="patient", label="died", seen="v.csv"))["data"]
    assert (data["client"], data["label"], data["columns"]) == ("patient", "died", {"age": "?"})
    assert (data["delimiter"], data["encoding"]) == (";", "latin-1")
    assert relative(Path("/a/data/v.csv"), to=Path("/a/settings")) == "../data/v.csv"
    assert relative(Path("data/v.csv"), to=None) == "data/v.csv"
