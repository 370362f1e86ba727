"""Every number that a folder tells: of each file, whatever its kind."""

import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from safetensors.numpy import load_file

NUMBER = re.compile(r"(?<![\w.:-])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w:-])(?!\.\d)")

PICTURE = b"\x89PNG\r\n\x1a\n"


def numbers(folder: Path) -> Iterator[list[float]]:
    """The numbers of each place that belongs together: a row, an object, a file of text."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        head = path.read_bytes()[:16]
        if head.startswith(b"SQLite format 3"):
            yield from _in_database(path)
        elif path.suffix == ".safetensors":
            yield from ([float(value) for value in array.ravel()[:50]] for array in load_file(path).values())
        elif path.suffix == ".json":
            yield from _in_json(json.loads(path.read_text()))
        elif head.startswith(PICTURE):
            yield from map(_in_text, words_of(path.read_bytes()))
        else:
            yield _in_text(path.read_text(errors="replace"))
        yield _in_text(path.name)


def told(folder: Path, private: set[int]) -> set[int]:
    """Which of these private numbers a folder tells: as they are, or by a rate and a time that stand together."""
    found = set()
    for together in numbers(folder):
        broken = [value for value in together if value and value != round(value)]
        reached = [*together, *(one * other for one, other in combinations(broken, 2))]
        reached += [one / other for one in broken for other in broken]
        found |= {secret for secret in private for value in reached if abs(value / secret - 1) < 1e-9}
    return found


def words_of(picture: bytes) -> Iterator[str]:
    """What a PNG says in words: its pixels are packed into bytes that look like any numbers."""
    place = len(PICTURE)
    while place < len(picture):
        size, kind = int.from_bytes(picture[place : place + 4], "big"), picture[place + 4 : place + 8]
        if kind in (b"tEXt", b"iTXt", b"zTXt"):
            said = picture[place + 8 : place + 8 + size].partition(b"\0")[2]
            yield (zlib.decompress(said[1:]) if kind == b"zTXt" else said).decode(errors="replace")
        place += size + 12


def _in_database(path: Path) -> Iterator[list[float]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - the name is the file's own
            yield [float(value) for value in row if isinstance(value, int | float)]
            for value in row:
                if isinstance(value, str):
                    yield from _in_json(json.loads(value)) if value[:1] in ("{", "[") else [_in_text(value)]
    connection.close()


def _in_json(value: object) -> Iterator[list[float]]:
    children = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    yield [float(child) for child in children if isinstance(child, int | float)]
    for child in children:
        if isinstance(child, str):
            yield _in_text(child)
        elif isinstance(child, dict | list):
            yield from _in_json(child)


def _in_text(text: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(text)]
