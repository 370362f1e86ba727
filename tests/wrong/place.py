"""A folder of all that people have lying about and give to the wrong command."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from incrowd.privacy.account.accounting import Budget, Relation
from incrowd.privacy.ledger.ledger import Ledger
from incrowd.runs.config import parse, tables
from incrowd.runs.run import Run

ROWS = "".join(f"p{n // 4},{n % 5}.5,{n % 3},{n % 2}\n" for n in range(40))

TABLE = """\
[data]
name = "table"
file = "table.csv"
client = "owner"
label = "y"
classes = 2
clients = 10

[privacy]
epsilon = 3.0
delta = 1e-3
rounds = 2
"""

SMALL = """\
[data]
clients = 5

[privacy]
epsilon = 3.0
delta = 1e-3
rounds = 1

[run]
"""

TEXTS = {
    "empty.toml": "",
    "broken.toml": "[privacy\nepsilon = 3",
    "digits.toml": '[data]\nname = "digits"\n\n[privacy]\nepsilon = 3.0\ndelta = 1e-3\n',
    "table.toml": TABLE,
    "words.toml": TABLE.replace("classes = 2\n", "").replace("table.csv", "words.csv"),
    "undeclared.toml": TABLE.replace("clients = 10\n", ""),
    "blank.toml": TABLE.replace('"owner"', '"?"'),
    "small.toml": SMALL,
    "records.toml": '[data]\nname = "digits"\n\n[privacy]\nunit = "record"\nepsilon = 3.0\ndelta = 1e-3\n',
    "newer.toml": 'version = "9.0"\n' + TABLE,
    "table.csv": f"owner,a,b,y\n{ROWS}",
    "words.csv": "owner,a,b,y\n" + ROWS.replace(",0\n", ",no\n").replace(",1\n", ",yes\n"),
    "header.csv": "owner,a,b,y\n",
    "empty.csv": "",
    "ragged.csv": "owner,a,b,y\np0,1,2\np1,1,2,0\n",
    "text.csv": f"owner,a,b,y\n{ROWS}p9,tall,1,0\n",
    "nan.csv": f"owner,a,b,y\n{ROWS}p9,nan,1,0\n",
    "other.csv": f"owner,a,c,y\n{ROWS}",
    "table.xlsx": "no table",
    "broken.parquet": "PAR1 and no more",
}


def prepare(place: Path) -> None:
    """Put everything there."""
    for name, text in TEXTS.items():
        (place / name).write_text(text)
    for name in ("binary.toml", "binary.csv"):
        (place / name).write_bytes(bytes(range(256)))
    (place / "folder").mkdir()
    (place / "folder" / "note.txt").write_text("nothing of ours")
    with Ledger.open(
        place / "ledger.sqlite",
        budget=Budget(epsilon=5.0, delta=1e-5),
        relation=Relation.ADD_OR_REMOVE_ONE,
        data_identity="d",
    ):
        pass
    _runs(place)


def _runs(place: Path) -> None:
    settings = parse(tables(place / "small.toml"))
    for name in ("run", "unfinished", "newer", "payerless", "cut"):
        run = Run.create(settings, place / name)
        if name == "run":
            run.train()
    with closing(sqlite3.connect(place / "newer" / "run.sqlite", isolation_level=None)) as database:
        (config,) = database.execute("SELECT value FROM settings WHERE name = 'config'").fetchone()
        changed = json.loads(config) | {"forgetting": {"after": 3}}
        database.execute("UPDATE settings SET value = ? WHERE name = 'config'", [json.dumps(changed)])
        database.execute("UPDATE settings SET value = '\"9.0\"' WHERE name = 'version'")
    with closing(sqlite3.connect(place / "cut" / "run.sqlite", isolation_level=None)) as database:
        database.execute("DELETE FROM settings")
    (place / "payerless" / "ledger.json").unlink()
    for name in ("foreign", "garbage", "search"):
        (place / name).mkdir()
    with closing(sqlite3.connect(place / "foreign" / "run.sqlite", isolation_level=None)) as database:
        database.execute("CREATE TABLE songs (title TEXT)")
    (place / "garbage" / "run.sqlite").write_bytes(bytes(range(256)))
    (place / "search" / "search.json").write_text("{}")
