from pathlib import Path

from incrowd import Specification
from incrowd.drawdiscard.source import read_csv_columns

ASKED = Specification.from_formula(
    "opened ~ sender + words + length",
    name="mail",
    fields={
        "opened": {"type": "boolean"},
        "sender": {"type": "category", "levels": ["7", "shop"]},
        "words": {"type": "integer", "low": 0, "high": 500},
        "length": {"type": "count", "most": 9, "column": "the text"},
    },
    gamma=1.0,
    clip=1.0,
    epsilon=1.0,
)
HEADER = "the text,opened,unused,sender,words\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mails.csv"
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_cells_are_what_the_fields_want(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER + '"a, ""b""\nc",Yes,x,7,12\n\n007,0,,shop,1.5\n,maybe,,,many\n 5,,,x,nan\n')
    assert read_csv_columns(path, ASKED) == {
        "opened": [1, 0, "maybe", None],
        "sender": ["7", "shop", None, "x"],
        "words": [12, 1.5, "many", "nan"],
        "the text": ['a, "b"\nc', "007", None, " 5"],
    }
    assert read_csv_columns(path, ASKED, most=1)["words"] == [12]
