import gzip
from pathlib import Path

from incrowd.data import load_texts

URLS = 'label,url\n1,https://a.example/x?y=1&#10;\n0,"https://b.example/?a=1,2"\n'


def test_labels_and_texts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "urls.csv.gz"
    path.write_bytes(gzip.compress(URLS.encode()))
    urls = load_texts(str(path), text="url")
    assert urls.texts == ("https://a.example/x?y=1&#10;", "https://b.example/?a=1,2")
    assert (urls.labels.dtype.name, urls.labels.tolist(), urls.classes, len(urls)) == ("int64", [1, 0], 2, 2)
    assert "example" not in repr(urls)
