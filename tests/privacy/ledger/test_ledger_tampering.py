"""Files that were damaged, cut off, edited, put back or removed: refused, or exactly what was written."""

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from incrowd.errors import ConfigError, LedgerDamaged, LedgerError, LedgerRolledBack, LedgerUnwritable
from incrowd.privacy.ledger import chain as chain_module
from incrowd.privacy.ledger.chain import Entry, link
from incrowd.privacy.ledger.ledger import Ledger, renew_witness, verify
from tests.privacy.ledgers import SMALL, begin, quick_folder, written

EVENTS = 40  # several pages


@pytest.fixture(scope="module")
def untouched() -> Iterator[Path]:
    with quick_folder() as folder:
        written(folder / "run.ledger", events=EVENTS)
        yield folder / "run.ledger"


@pytest.fixture
def path(folder: Path, untouched: Path) -> Path:
    """A ledger of several pages, closed, with its witness."""
    path = folder / "run.ledger"
    shutil.copy(untouched, path)
    shutil.copy(witness_of(untouched), witness_of(path))
    return path


def witness_of(path: Path) -> Path:
    return path.with_name(path.name + ".witness")


def entries(path: Path) -> tuple[Entry, ...]:
    with Ledger.read(path) as ledger:
        return ledger.entries()


def charge(path: Path, *, witness: Path | None = None) -> None:
    with begin(path, witness=witness) as ledger:
        ledger.charge(SMALL)


def refused(path: Path, error: type[LedgerError], words: str) -> None:
    """Every caller that opens it is told, and nothing can be charged."""
    for opened in (begin, Ledger.read):
        with pytest.raises(error, match=words):
            opened(path)
    report = verify(path)
    assert (report["intact"], report["events"], report["epsilon"]) == (False, None, None)
    assert report["problem"]


# Damaged


def refused_or_whole(path: Path, truth: tuple[Entry, ...]) -> bool:
    """Either it is refused by all who open it, or nothing is missing: whether it was refused."""
    report = verify(path)
    try:
        with begin(path) as ledger:
            found = ledger.entries()
            ledger.charge(SMALL)
    except LedgerError:
        return True
    assert found == truth
    assert report["intact"]
    return False


@pytest.mark.parametrize("stride", [421, pytest.param(5, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_wherever_it_matters(path: Path, stride: int) -> None:
    content, witness, truth = path.read_bytes(), witness_of(path).read_bytes(), entries(path)
    masks = random.Random(stride)  # noqa: S311 - which bit is no secret
    found = 0
    offsets = [*range(100), *range(100, len(content), stride)]
    for offset in offsets:
        changed = bytes([content[offset] ^ (1 << masks.randrange(8))])
        path.write_bytes(content[:offset] + changed + content[offset + 1 :])
        witness_of(path).write_bytes(witness)
        found += refused_or_whole(path, truth)
    assert found > len(offsets) / 3  # the rest of the bytes are unused, or say nothing


@pytest.mark.parametrize("keep", [0, 1, 99, 100, 511, 4096, 4097, 9000, -4096, -1])
def test_a_truncated_ledger_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(LedgerError):
        begin(path)
    assert not verify(path)["intact"]


def test_an_emptied_or_removed_ledger_is_not_begun_again(path: Path) -> None:
    words = "gone or empty, but its witness .* saw 42 entries: put the ledger back.* `incrowd ledger fresh`"
    path.write_bytes(b"")
    with pytest.raises(LedgerRolledBack, match=words):
        begin(path)
    assert path.read_bytes() == b""
    path.unlink()
    refused(path, LedgerRolledBack, words)
    assert not path.exists()


def test_what_is_no_ledger_of_this_format_is_refused_and_left_alone(path: Path, folder: Path) -> None:
    edit(folder / "other.db", "CREATE TABLE entries (position, kind, at, body, hash)")
    (folder / "notes.txt").write_bytes(b"not a database at all" * 100)
    (folder / "zeros").write_bytes(bytes(8192))
    name = b"tableentriesentries"
    (folder / "name").write_bytes(path.read_bytes().replace(name, name.replace(b"ies", b"\xe5es", 1)))
    edit(path, "PRAGMA user_version = 3")
    for file, words in (
        (folder / "other.db", "is a SQLite database, but not a ledger: give the path of a ledger"),
        (folder / "notes.txt", "damaged or not a ledger"),
        (folder / "zeros", "damaged or not a ledger"),
        (folder / "name", "is damaged or not a ledger .*utf-8"),
        (path, "has format 3, this incrowd reads 2: use the one that wrote it"),
    ):
        content = file.read_bytes()
        refused(file, LedgerDamaged, words)
        assert file.read_bytes() == content


# Edited


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def edit_without_triggers(path: Path, *statements: str) -> None:
    """As an attacker would: the triggers are away meanwhile, and back afterwards."""
    triggers = chain_module.SCHEMA[1:]
    names = [trigger.split()[2] for trigger in triggers]
    edit(path, *(f"DROP TRIGGER {name}" for name in names), *statements, *triggers)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = replace(body, '300.0', '900.0') WHERE position = 20",
        "UPDATE entries SET at = '2001-01-01T00:00:00.000+00:00' WHERE position = 20",
        "UPDATE entries SET kind = 'release' WHERE position = 20",
        "UPDATE entries SET hash = replace(hash, substr(hash, 1, 1), 'x') WHERE position = 20",
        "UPDATE entries SET body = CAST(body AS BLOB) WHERE position = 20",
        "UPDATE entries SET body = CAST(x'ff00fe' AS TEXT) WHERE position = 20",
        "UPDATE entries SET body = replace(body, '1e-05', '0.01') WHERE position = 0",
        "DELETE FROM entries WHERE position = 20",
        "DELETE FROM entries WHERE position = 0",
        "UPDATE entries SET position = 1000 WHERE position = 41",
        "INSERT INTO entries VALUES (-1, 'charge', '', '{}', '')",
    ],
)
def test_an_edited_entry_is_found(path: Path, statement: str) -> None:
    edit_without_triggers(path, "PRAGMA ignore_check_constraints = ON", statement)
    with pytest.raises(LedgerError):
        begin(path)
    assert not verify(path)["intact"]


def test_entries_removed_from_the_end_are_missed_by_the_witness(path: Path) -> None:
    edit_without_triggers(path, "DELETE FROM entries WHERE position > 30")
    refused(path, LedgerRolledBack, "has 31 entries, its witness .* saw 42: put the latest copy")


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER entries_no_update",
        "CREATE TRIGGER more AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE position = NEW.position; END",
        "CREATE TABLE more (x)",
        "ALTER TABLE entries ADD COLUMN more",
    ],
)
def test_a_changed_schema_is_found(path: Path, statement: str) -> None:
    edit(path, statement)
    refused(path, LedgerDamaged, "had its tables or triggers changed")


@pytest.mark.parametrize(
    ("old", "new"), [("300.0", "900.0"), ("patients of 2024", "patients of 2025"), ('"epsilon":1.0', '"epsilon":9.0')]
)
def test_an_edit_with_all_hashes_put_right_contradicts_the_witness(path: Path, old: str, new: str) -> None:
    previous, statements = "", []
    for entry in entries(path):
        body = entry.body.replace(old, new)
        previous = link(previous, position=entry.position, kind=entry.kind, at=entry.at, body=body)
        statements.append(f"UPDATE entries SET body = '{body}', hash = '{previous}' WHERE position = {entry.position}")  # noqa: S608 - a test's own values
    edit_without_triggers(path, *statements)
    refused(path, LedgerRolledBack, "is not the ledger that its witness .* saw: entry 41 is another")
    witness_of(path).unlink()
    refused(path, LedgerRolledBack, "has lost its witness .* `renew_witness`")


# Put back, removed


def test_an_older_copy_is_refused(path: Path, folder: Path) -> None:
    shutil.copy(path, folder / "copy")
    charge(path)
    shutil.copy(folder / "copy", path)
    refused(path, LedgerRolledBack, "has 42 entries, its witness .* saw 43")


def test_an_older_copy_that_was_written_on_is_refused(path: Path, folder: Path) -> None:
    shutil.copy(path, folder / "copy")
    shutil.copy(witness_of(path), folder / "earlier.witness")
    charge(path)
    for _ in range(2):
        charge(folder / "copy", witness=folder / "earlier.witness")
    shutil.copy(folder / "copy", path)
    refused(path, LedgerRolledBack, "is not the ledger that its witness .* saw: entry 42 is another")


def counted_on(path: Path, copy: Path) -> None:
    """In bytes 24 to 40 SQLite counts changes, by which a connection knows whether the pages that it keeps are new."""
    before, after = copy.read_bytes(), path.read_bytes()
    path.write_bytes(before[:24] + after[24:40] + before[40:])


EXCHANGES: dict[str, Callable[[Path, Path], object]] = {
    "replaced": lambda path, copy: copy.replace(path),
    "overwritten": lambda path, copy: path.write_bytes(copy.read_bytes()),
    "counted on": counted_on,
    "removed": lambda path, _: path.unlink(),
}


@pytest.mark.parametrize("happens", EXCHANGES)
def test_a_ledger_that_is_exchanged_while_in_use_is_noticed_at_once(path: Path, folder: Path, happens: str) -> None:
    shutil.copy(path, folder / "copy")
    with begin(path) as ledger:
        ledger.charge(SMALL)
        EXCHANGES[happens](path, folder / "copy")
        with pytest.raises(LedgerRolledBack, match="put the right file back"):
            ledger.charge(SMALL)
        with pytest.raises(LedgerRolledBack):
            ledger.spent()


# Witnesses


def test_a_removed_witness_is_missed_at_once(path: Path) -> None:
    with begin(path) as ledger:
        witness_of(path).unlink()
        with pytest.raises(LedgerRolledBack, match="lost its witness"):
            ledger.charge(SMALL)
    refused(path, LedgerRolledBack, "lost its witness")
    witness_of(path).mkdir()
    refused(path, LedgerUnwritable, "witness .* cannot be read")


NO_WITNESSES = [
    *("", "[1]", "[" * 10**5, "\udcff", '{"entries": 1}', '{"entries": 1, "head": 1}'),  # the fourth is no UTF-8
    *('{"entries": "1", "head": "x"}', '{"entries": 0, "head": "x"}', '{"entries": true, "head": "x"}'),
    '{"entries": 1, "head": "x", "more": 1}',
]


@pytest.mark.parametrize("content", NO_WITNESSES, ids=range(len(NO_WITNESSES)))
def test_a_damaged_witness_is_refused(path: Path, content: str) -> None:
    witness_of(path).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(path, LedgerDamaged, "witness .* is damaged: put an intact copy back")


def test_a_lost_witness_is_renewed_by_who_knows_the_head(path: Path) -> None:
    head = entries(path)[-1].hash
    with pytest.raises(ConfigError, match=r"witness = .* only a lost one is renewed"):
        renew_witness(path, head=head)
    before = witness_of(path).read_bytes()
    witness_of(path).unlink()
    with pytest.raises(LedgerRolledBack, match=rf"the head of .* is {head}, not beef"):
        renew_witness(path, head="beef")
    assert not witness_of(path).exists()
    renew_witness(path, head=head)
    assert witness_of(path).read_bytes() == before
    assert verify(path)["intact"]
    witness_of(path).unlink()
    edit_without_triggers(path, "UPDATE entries SET at = '' WHERE position = 20")
    with pytest.raises(LedgerDamaged):
        renew_witness(path, head=head)
