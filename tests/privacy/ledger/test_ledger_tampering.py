"""Files that were damaged, cut off, edited, put back or removed: refused, or exactly what was written."""

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from incrowd.errors import (
    ConfigError,
    LedgerDamaged,
    LedgerError,
    LedgerRolledBack,
    LedgerUnwritable,
)
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


def refused(path: Path, error: type[LedgerError], words: str) -> None:
    """Whoever opens it is told, and nothing can be charged."""
    with pytest.raises(error, match=words):
        begin(path)
    with pytest.raises(error, match=words):
        Ledger.read(path)
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


def flipped(content: bytes, offset: int, mask: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ mask]) + content[offset + 1 :]


@pytest.mark.parametrize("stride", [211, pytest.param(5, marks=pytest.mark.slow)])
def test_a_flipped_bit_is_found_wherever_it_matters(path: Path, stride: int) -> None:
    content, witness, truth = path.read_bytes(), witness_of(path).read_bytes(), entries(path)
    masks = random.Random(stride)  # noqa: S311 - which bit is no secret
    found = 0
    offsets = [*range(100), *range(100, len(content), stride)] if stride > 1 else range(len(content))
    for offset in offsets:
        path.write_bytes(flipped(content, offset, 1 << masks.randrange(8)))
        witness_of(path).write_bytes(witness)
        found += refused_or_whole(path, truth)
    assert found > len(offsets) / 3  # the rest of the bytes are unused, or say nothing


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_stretch_is_found_wherever_it_matters(path: Path, seed: int) -> None:
    content, truth = bytearray(path.read_bytes()), entries(path)
    choice = random.Random(seed)  # noqa: S311 - what is damaged is no secret
    length = choice.choice([2, 16, 512, 4096])
    offset = choice.randrange(len(content) - length)
    content[offset : offset + length] = choice.choice([bytes(length), b"\xff" * length, choice.randbytes(length)])
    path.write_bytes(content)
    refused_or_whole(path, truth)


@pytest.mark.parametrize("keep", [0, 1, 16, 99, 100, 101, 511, 4095, 4096, 4097, 8192, 9000, -4096, -1])
def test_a_truncated_ledger_is_refused(path: Path, keep: int) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    with pytest.raises(LedgerError):
        begin(path)
    assert not verify(path)["intact"]


def test_a_damaged_name_is_refused_even_though_it_is_no_text(path: Path) -> None:
    content = path.read_bytes()
    assert b"tableentriesentries" in content
    path.write_bytes(content.replace(b"tableentriesentries", b"tableentr\xe5esentries"))
    refused(path, LedgerDamaged, "is damaged or not a ledger .*utf-8")


def test_an_emptied_ledger_is_not_begun_again(path: Path) -> None:
    path.write_bytes(b"")
    with pytest.raises(
        LedgerRolledBack, match=r"gone or empty, but its witness .* saw 42 entries: put the ledger back"
    ):
        begin(path)
    assert path.read_bytes() == b""


def test_what_is_no_ledger_of_this_format_is_refused_and_left_alone(path: Path, folder: Path) -> None:
    edit(folder / "other.db", "CREATE TABLE entries (position, kind, at, body, hash)")
    (folder / "notes.txt").write_bytes(b"not a database at all" * 100)
    (folder / "zeros").write_bytes(bytes(8192))
    edit(path, "PRAGMA user_version = 3")
    for file, words in (
        (folder / "other.db", "is a SQLite database, but not a ledger: give the path of a ledger"),
        (folder / "notes.txt", "damaged or not a ledger"),
        (folder / "zeros", "damaged or not a ledger"),
        (path, "has format 3, this incrowd reads 2: use the one that wrote it"),
    ):
        content = file.read_bytes()
        refused(file, LedgerDamaged, words)
        assert file.read_bytes() == content


# Edited


def edit(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def edit_without_triggers(path: Path, *statements: str) -> None:
    """As someone would who means it: the triggers are away meanwhile, and back afterwards."""
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
        "UPDATE entries SET body = replace(body, '2024', '2025') WHERE position = 0",
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


def rechained(path: Path, change: Callable[[int, str], str]) -> None:
    """Edit bodies and put every hash right again."""
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT position, kind, at, body FROM entries ORDER BY position").fetchall()
    connection.close()
    previous, statements = "", []
    for position, kind, at, body in rows:
        changed = change(position, body)
        previous = link(previous, position=position, kind=kind, at=at, body=changed)
        statements.append(f"UPDATE entries SET body = '{changed}', hash = '{previous}' WHERE position = {position}")  # noqa: S608 - a test's own values
    edit_without_triggers(path, *statements)


@pytest.mark.parametrize(
    ("old", "new"), [("300.0", "900.0"), ("patients of 2024", "patients of 2025"), ('"epsilon":1.0', '"epsilon":9.0')]
)
def test_an_edit_with_all_hashes_put_right_contradicts_the_witness(path: Path, old: str, new: str) -> None:
    rechained(path, lambda _, body: body.replace(old, new))
    refused(path, LedgerRolledBack, "is not the ledger that its witness .* saw: entry 41 is another")
    witness_of(path).unlink()
    refused(path, LedgerRolledBack, "has lost its witness .* `renew_witness`")


# Put back, removed


def test_an_older_copy_is_refused(path: Path, folder: Path) -> None:
    shutil.copy(path, folder / "copy")
    with begin(path) as ledger:
        ledger.charge(SMALL)
    shutil.copy(folder / "copy", path)
    refused(path, LedgerRolledBack, "has 42 entries, its witness .* saw 43")


def test_an_older_copy_that_was_written_on_is_refused(path: Path, folder: Path) -> None:
    shutil.copy(path, folder / "copy")
    with begin(path) as ledger:
        ledger.charge(SMALL)
    shutil.copy(folder / "copy", path)
    mark = witness_of(path).read_bytes()
    witness_of(path).unlink()
    with begin(folder / "copy", witness=copied_witness(folder, mark, 42, entries_of=folder / "copy")) as ledger:
        ledger.charge(SMALL)
        ledger.charge(SMALL)
    shutil.copy(folder / "copy", path)
    witness_of(path).write_bytes(mark)
    refused(path, LedgerRolledBack, "is not the ledger that its witness .* saw: entry 42 is another")


def copied_witness(folder: Path, mark: bytes, length: int, *, entries_of: Path) -> Path:
    """A witness of an earlier moment, as a backup would have it."""
    connection = sqlite3.connect(entries_of)
    (head,) = connection.execute("SELECT hash FROM entries WHERE position = ?", (length - 1,)).fetchone()
    connection.close()
    earlier = folder / "copy.of.witness"
    earlier.write_text(json.dumps({**json.loads(mark), "entries": length, "head": head}))
    return earlier


def replaced(path: Path, copy: Path) -> None:
    copy.replace(path)


def overwritten(path: Path, copy: Path) -> None:
    path.write_bytes(copy.read_bytes())


def removed(path: Path, _: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("happens", [replaced, overwritten, removed])
def test_a_ledger_that_is_exchanged_while_in_use_is_noticed_at_once(
    path: Path, folder: Path, happens: Callable[[Path, Path], object]
) -> None:
    shutil.copy(path, folder / "copy")
    with begin(path) as ledger:
        ledger.charge(SMALL)
        happens(path, folder / "copy")
        with pytest.raises(LedgerRolledBack, match="put the right file back"):
            ledger.charge(SMALL)
        with pytest.raises(LedgerRolledBack):
            ledger.spent()


def test_a_removed_witness_is_missed_at_once(path: Path) -> None:
    with begin(path) as ledger:
        witness_of(path).unlink()
        with pytest.raises(LedgerRolledBack, match="lost its witness"):
            ledger.charge(SMALL)
    refused(path, LedgerRolledBack, "lost its witness")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[1]",
        "7",
        '{"entries": 1}',
        '{"entries": "1", "head": "x"}',
        '{"entries": 0, "head": "x"}',
        '{"entries": true, "head": "x"}',
        '{"entries": 1, "head": 1}',
        '{"entries": 1, "head": "x", "more": 1}',
        "[" * 10**5,
        "\udcff",  # no UTF-8
    ],
    ids=lambda content: content[:40].encode("utf-8", "replace").decode(),
)
def test_a_damaged_witness_is_refused(path: Path, content: str) -> None:
    witness_of(path).write_bytes(content.encode("utf-8", "surrogateescape"))
    refused(path, LedgerDamaged, "witness .* is damaged: put an intact copy back")


def test_a_witness_that_cannot_be_read_is_refused(path: Path) -> None:
    witness_of(path).unlink()
    witness_of(path).mkdir()
    refused(path, LedgerUnwritable, "witness .* cannot be read")


def test_a_witness_can_be_kept_on_another_disk(folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    path, witness = folder / "run.ledger", disk / "witness"
    with begin(path, witness=witness) as ledger:
        ledger.charge(SMALL)
    assert not witness_of(path).exists()
    assert verify(path, witness=witness)["intact"]
    refused(path, LedgerRolledBack, "lost its witness")  # whoever forgets to name it is not let through


def test_a_witness_that_lags_behind_is_brought_up_to_date(path: Path) -> None:
    mark = witness_of(path).read_bytes()
    with begin(path) as ledger:
        ledger.charge(SMALL)
        latest = witness_of(path).read_bytes()
    witness_of(path).write_bytes(mark)  # as if a crash had come between
    assert verify(path)["intact"]
    begin(path).close()
    assert witness_of(path).read_bytes() == latest


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


def test_a_damaged_ledger_gets_no_new_witness(path: Path) -> None:
    head = entries(path)[-1].hash
    witness_of(path).unlink()
    edit_without_triggers(path, "UPDATE entries SET at = '' WHERE position = 20")
    with pytest.raises(LedgerDamaged):
        renew_witness(path, head=head)
