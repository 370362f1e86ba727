import gzip
from pathlib import Path

import pytest

from incrowd.data import load_texts
from incrowd.errors import ConfigError, DataError

URLS = 'label,url\n1,https://a.example/x?y=1&#10;\n0,"https://b.example/?a=1,2"\n'


def test_labels_and_texts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "urls.csv.gz"
    path.write_bytes(gzip.compress(URLS.encode()))
    urls = load_texts(str(path), text="url")
    assert urls.texts == ("https://a.example/x?y=1&#10;", "https://b.example/?a=1,2")
    assert (urls.labels.dtype.name, urls.labels.tolist(), urls.classes, len(urls)) == ("int64", [1, 0], 2, 2)
    assert "example" not in repr(urls)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (URLS.replace("url\n", "link\n"), "no column 'url': name one of label, link"),
        (URLS.replace("0,", "2,"), "urls.csv, line 3: label = '2'; give a whole number from 0 to 1"),
        (URLS.replace("1,https", "spam,https"), "urls.csv, line 2: label = 'spam'"),
        ("label,url\n", "has a header and no rows"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "urls.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        load_texts(path, text="url")


def test_unusable_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="classes"):
        load_texts(tmp_path / "urls.csv", text="url", classes=0)
