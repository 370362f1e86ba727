"""Attack: an answer that ruins a server's pool, its snapshot or its memory, or that counts for another or twice.

Whoever gains from it needs no account: every answer is anonymous, so each one is looked at as if an attacker sent it.
"""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from incrowd import SeededRandomness, Server
from incrowd._random import Floats
from incrowd.drawdiscard import Reason
from incrowd.drawdiscard.kept_pool import FILE, SPECIFICATION, packed
from incrowd.drawdiscard.pool import LARGEST, Pool
from incrowd.errors import ConfigError, DataError, IncrowdError
from tests.drawdiscard.mail import asked, held, honest

SIZE = asked().size
SERVER = Server(asked(), randomness=SeededRandomness(seed=1))
TICKET = SERVER.draw().ticket


ODD: dict[str, Any] = {
    "NaN": np.full(SIZE, np.nan),
    "one NaN": np.where(np.arange(SIZE) == 1, np.nan, 0.0),
    "infinite": np.full(SIZE, -np.inf),
    "beyond squares": np.full(SIZE, 1e308),
    "beyond float64": np.full(SIZE, np.longdouble("1e4000")),
    "one huge number": np.where(np.arange(SIZE) == 0, LARGEST, 0.0),
    "too short": np.zeros(SIZE - 1),
    "too long": np.zeros(SIZE + 1),
    "a scalar": 0.0,
    "nothing": None,
    "an empty list": [],
    "a column": np.zeros((SIZE, 1)),
    "a row of a matrix": np.zeros((1, SIZE)),
    "a view of terabytes": np.broadcast_to(np.zeros(SIZE), (1 << 40, SIZE)),
    "complex": np.zeros(SIZE, complex),
    "truth values": np.zeros(SIZE, bool),
    "text": ["0"] * SIZE,
    "bytes": b"\x00" * 8 * SIZE,
    "objects": np.array([0.0] * SIZE, dtype=object),
    "whole numbers beyond all": [10**400] * SIZE,
    "uneven": [[0.0], [0.0, 1.0]],
    "a dict": {"weights": [0.0] * SIZE},
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # long doubles that no float64 holds
@pytest.mark.parametrize("odd", ODD)
def test_no_odd_answer_changes_anything(odd: str) -> None:
    before = held(SERVER)
    outcome = SERVER.offer(ODD[odd], TICKET)
    assert not outcome.accepted
    assert outcome.reason in (Reason.NOT_WEIGHTS, Reason.UNLIKE)
    assert held(SERVER)[0] == before[0]


def test_what_is_odd_about_them_was_why() -> None:
    """The control: honest answers of every plain kind of number are accepted."""
    for kind in (np.float64, np.float32, np.float16, list):
        server = Server(asked(), turned_away=1e-6)
        update, ticket = honest(server)
        plain: Any = update.tolist() if kind is list else update.astype(kind)
        assert server.offer(plain, ticket).reason is Reason.ACCEPTED
        assert server.accepted == 1


class Running:
    """The broken twin: a pool that takes whatever is finite, and updates mean and spread as it goes along."""

    def __init__(self, rows: Floats) -> None:
        self.rows = rows.copy()
        self.mean = rows.mean(axis=0)
        self.squares = np.square(rows - self.mean).sum(axis=0)

    def take(self, arrived: Floats) -> None:
        row = self.rows[0]
        change, distances = arrived - row, arrived + row - self.mean
        self.mean += change / len(self.rows)
        distances -= self.mean
        self.squares += change * distances
        row[:] = arrived


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")
def test_one_huge_answer_poisons_a_trusting_pool_for_good_and_none_poisons_ours() -> None:
    start = SeededRandomness(seed=1).stream("start").normals(4 * SIZE).reshape(4, SIZE)
    trusting, ours = Running(start), Pool(start, randomness=SeededRandomness(seed=1))
    huge = np.full(SIZE, 1e200)
    trusting.take(huge)
    trusting.take(start[0])
    assert not np.isfinite(trusting.squares).all()
    with pytest.raises(DataError):
        ours.discard(huge)
    ours.discard(np.full(SIZE, LARGEST))
    while np.abs(ours.instances).max() > 1e3:
        ours.discard(start[0])
    assert np.abs(ours.weights()).max() < 10


def test_an_answer_to_another_specification_of_equal_size_does_not_pass() -> None:
    server, other = Server(asked(), turned_away=1e-6), Server(asked(name="other"), turned_away=1e-6)
    assert other.specification.size == SIZE
    update, ticket = honest(server)
    assert other.offer(update, ticket).reason is Reason.OTHER_SPECIFICATION
    assert server.offer(update, ticket).reason is Reason.ACCEPTED


def test_no_ticket_can_be_made_or_changed_without_the_key() -> None:
    """One that names a version of the attacker's choice would be compared with that version."""
    server, twin = Server(asked(), turned_away=1e-6), Server(asked(), turned_away=1e-6)
    update, ticket = honest(server)
    changed = [
        ticket[:place] + bytes([ticket[place] ^ bit]) + ticket[place + 1 :]
        for place in range(len(ticket))
        for bit in (1, 128)
    ]
    for forged in (*changed, b"", ticket[:-1], ticket + b"x", twin.draw().ticket):
        assert server.offer(update, forged).reason in (Reason.FORGED, Reason.OTHER_SPECIFICATION)
    assert server.offer(update, ticket).reason is Reason.ACCEPTED, "the control"


def test_a_replay_counts_once_even_for_a_server_that_was_killed_and_is_opened_again(tmp_path: Path) -> None:
    server = Server(asked(), folder=tmp_path, turned_away=1e-6)
    update, ticket = honest(server)
    assert server.offer(update, ticket).reason is Reason.ACCEPTED
    before = held(server)
    assert {server.offer(update, ticket).reason for _ in range(50)} == {Reason.REPEATED}
    assert held(server) == before
    server.close()
    with Server.open(tmp_path) as again:
        assert again.offer(update.tolist(), ticket).reason is Reason.REPEATED
        assert again.accepted == 1
        other = np.nextafter(update, np.float32(0))
        assert again.offer(other, ticket).reason is not Reason.REPEATED, "one bit, and it is another"


def test_who_replays_without_being_known_owns_the_pool() -> None:
    """The control: a pool that remembers no answers is soon nothing but the one that is sent again and again."""
    server = Server(asked(merge=1.0))
    update, _ = honest(server)
    for _ in range(60):
        server._held.pool.discard(update)
    assert np.allclose(server.model().weights, update)


def test_an_answer_that_is_changed_after_it_was_looked_at_is_not_what_is_kept() -> None:
    server = Server(asked(merge=1.0), turned_away=1e-6)
    update, ticket = honest(server)
    held = update.copy()
    server.offer(update, ticket)
    update[:] = 1e6
    for drawn in (server.draw().weights, server._held.pool.draw()):
        with pytest.raises(ValueError, match="read-only"):
            drawn[:] = -1e6
    instances = server._held.pool.instances
    assert np.abs(instances).max() < 1e3
    assert any(np.array_equal(held, row) for row in instances)


def told(folder: Path, **changes: Any) -> None:
    """Change what the file says of the pool."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        (content,) = database.execute("SELECT content FROM state WHERE name = 'pool'").fetchone()
        database.execute(
            "UPDATE state SET content = ? WHERE name = 'pool'", (json.dumps({**json.loads(content), **changes}),)
        )


def state(folder: Path, name: str, content: bytes) -> None:
    """Change another part of the file."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE state SET content = ? WHERE name = ?", (content, name))


def row(folder: Path, weights: Any) -> None:
    """Change an instance in the file."""
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("UPDATE rows SET weights = ? WHERE version = 0", (np.asarray(weights).tobytes(),))


TAMPERED: dict[str, Callable[[Path], None]] = {
    "another size": lambda folder: row(folder, np.zeros(9, np.float32)),
    "double precision": lambda folder: row(folder, np.zeros(SIZE)),
    "not finite": lambda folder: row(folder, np.full(SIZE, np.nan, np.float32)),
    "no whole number of weights": lambda folder: row(folder, np.zeros(3, np.uint8)),
    "another number of instances": lambda folder: told(folder, versions=[0, 1]),
    "a version twice": lambda folder: told(folder, versions=[0, 1, 2, 2]),
    "a version that is not there": lambda folder: told(folder, versions=[0, 1, 2, 99]),
    "negative counts": lambda folder: told(folder, counts=[-1, 0, 0]),
    "too few counts": lambda folder: told(folder, counts=[0]),
    "a test that learnt something else": lambda folder: state(folder, "test", packed({"other": np.zeros(2)})),
    "a test that is none": lambda folder: state(folder, "test", b"x"),
    "another specification": lambda folder: state(folder, "specification", b"{}"),
    "no pool": lambda folder: state(folder, "pool", b"x"),
    "a short key": lambda folder: state(folder, "key", b"x"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_file_that_was_tampered_with_is_refused(tmp_path: Path, how: str) -> None:
    Server(asked(), folder=tmp_path).close()
    Server(asked(), folder=tmp_path).close()  # the control: as it was
    TAMPERED[how](tmp_path)
    with pytest.raises((DataError, ConfigError)):
        Server(asked(), folder=tmp_path)


@pytest.mark.slow
def test_no_part_of_a_file_that_is_missing_goes_unnoticed(tmp_path: Path) -> None:
    Server(asked(), folder=tmp_path).close()
    content = (tmp_path / FILE).read_bytes()
    for length in range(0, len(content), len(content) // 40):
        (tmp_path / FILE).write_bytes(content[:length])
        with pytest.raises(IncrowdError):
            Server.open(tmp_path)


def test_a_specification_that_was_exchanged_does_not_get_the_pool(tmp_path: Path) -> None:
    """Otherwise a louder promise than the one that was learnt under, say, could be printed over the same weights."""
    Server(asked(), folder=tmp_path).close()
    stated = json.loads((tmp_path / SPECIFICATION).read_text())
    (tmp_path / SPECIFICATION).write_text(json.dumps({**stated, "epsilon": 0.1}))
    with pytest.raises(ConfigError, match="another specification"):
        Server.open(tmp_path)
